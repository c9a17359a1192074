"""Run a training script as it is under torch's profiler and write a Kineto trace of a few of its steps.

    python bench/gpu/traced.py TRACE.json SKIP STEPS script.py [ARGUMENTS...]

A step ends with the optimizer's; SKIP of them go by before STEPS are written. Exit code 3: the script made too few.
"""

import runpy
import sys
from pathlib import Path


def main(trace: str, skip: int, steps: int, script: str) -> int:
    """Run the script, write the trace."""
    import torch
    from torch.optim.optimizer import register_optimizer_step_post_hook

    written: list[str] = []

    def ready(profiler: torch.profiler.profile) -> None:
        profiler.export_chrome_trace(trace)
        written.append(trace)

    activities = [torch.profiler.ProfilerActivity.CPU]
    if torch.cuda.is_available():
        activities.append(torch.profiler.ProfilerActivity.CUDA)
    plan = torch.profiler.schedule(wait=max(0, skip - 1), warmup=1, active=steps, repeat=1)
    with torch.profiler.profile(
        activities=activities, schedule=plan, on_trace_ready=ready, record_shapes=True
    ) as profiler:
        register_optimizer_step_post_hook(lambda *_: profiler.step())
        sys.path.insert(0, str(Path(script).parent))
        runpy.run_path(script, run_name="__main__")
    if not written:
        print(f"{script} made no {skip + steps} steps: nothing was written", file=sys.stderr)
    return 0 if written else 3


if __name__ == "__main__":
    if len(sys.argv) < 5:
        sys.exit(__doc__)
    destination, skipped, recorded, *command = sys.argv[1:]
    sys.argv = command
    sys.exit(main(destination, int(skipped), int(recorded), command[0]))
