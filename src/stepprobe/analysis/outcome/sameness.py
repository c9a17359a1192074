"""Whether a second run is the same job as the first, so that it can be held to what the first promised."""

import shlex

from stepprobe.analysis.ledger.process import Process
from stepprobe.model.evidence import Evidence

MACHINE = ("cpu.model", "cpu.usable", "platform", "env.OMP_NUM_THREADS", "env.CUDA_VISIBLE_DEVICES")
"""What of the environment makes it another machine for a training."""
PACKAGES = ("torch", "transformers", "trl", "peft", "accelerate")


def apart(runs: tuple[Evidence, Evidence], processes: tuple[Process, Process]) -> str:
    """Return why the two runs are no runs of one job; empty where they may be."""
    models = [(one.facts.get("model"), one.facts.get("parameters")) for one in processes]
    if None not in (models[0][1], models[1][1]):
        if models[0][1] == models[1][1]:
            return ""
        named = [f"{model} of {count:,} parameters" for model, count in models]
        return f"the model is another one ({named[0]} before, {named[1]} after), so nothing was promised for it"
    scripts = [script(run) for run in runs]
    if scripts[0] != scripts[1]:
        named_scripts = f"{scripts[0]} before, {scripts[1]} after"
        return f"the scripts are different ones ({named_scripts}), and which model they train was not seen"
    return ""


def surroundings(runs: tuple[Evidence, Evidence], processes: tuple[Process, Process]) -> list[str]:
    """Return what changed around the job and changes what a step costs."""
    found = [
        f"{name} {before} → {after}"
        for name in MACHINE
        if (before := runs[0].environment.get(name, "")) != (after := runs[1].environment.get(name, ""))
    ]
    headers = [process.records.header for process in processes]
    for name in PACKAGES:
        before, after = (header.versions.get(name, "absent") for header in headers)
        if before != after:
            found.append(f"{name} {before} → {after}")
    if headers[0].world_size != headers[1].world_size:
        found.append(f"world size {headers[0].world_size} → {headers[1].world_size}")
    return found


def script(run: Evidence) -> str:
    """Return the script or module of a command line; all of it where neither shows."""
    try:
        words = shlex.split(run.subject)
    except ValueError:
        words = run.subject.split()
    for place, word in enumerate(words):
        if word.endswith(".py"):
            return word.rpartition("/")[2]
        if word == "-m" and place + 1 < len(words) and words[place + 1] != "torch.distributed.run":
            return words[place + 1]
    return run.subject
