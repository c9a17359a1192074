"""The kinds of training that we promise to cover, unmodified, end to end."""

import subprocess
import sys

import pytest

from stepprobe.model.records import decode_process
from tests.e2e.conftest import STEPS

pytestmark = pytest.mark.e2e

EXAMPLES = {
    "HF Trainer": (("sft_trainer.py", "--steps", f"{STEPS}"), 0),
    "TRL with LoRA": (("trl_lora.py", "--steps", f"{STEPS}"), 0),
    "Lightning": (("lightning_module.py", "--steps", f"{STEPS}"), 0),
    "plain loop": (("plain_loop.py", "--steps", f"{STEPS}"), 0),
    "two ranks": (("ddp_gloo.py", "--steps", f"{STEPS}"), 2),
}
SPLIT = ("forward.attention", "forward.mlp", "backward.attention", "backward.mlp")


def evidence(folder):
    return [decode_process(file.name, file.read_bytes()) for file in sorted(folder.glob("steps-rank*-pid*.jsonl"))]


each_example = pytest.mark.parametrize(("command", "ranks"), EXAMPLES.values(), ids=EXAMPLES)


@each_example
def test_the_script_behaves_as_without_us(bare, attached, command, ranks):
    alone, observed = bare(*command, ranks=ranks), attached(*command, ranks=ranks)
    assert alone.returncode == observed.returncode == 0
    assert alone.losses == observed.losses
    assert alone.losses, alone.stdout
    assert len(list(observed.folder.glob("trace-rank*.columns"))) == max(ranks, 1)
    assert observed.figures["trace.ranks"] == max(ranks, 1)


@each_example
def test_every_step_is_seen_and_closes_to_the_nanosecond(attached, command, ranks):
    observed = attached(*command, ranks=ranks)
    assert observed.figures["step.count"] == STEPS
    assert observed.figures["ledger.closure_ns"] == 0
    processes = evidence(observed.folder)
    assert len(processes) == max(ranks, 1)
    for process in processes:
        assert process.notes == ()
        assert [step.index for step in process.steps] == list(range(STEPS))
        assert all(sum(wall for wall, _ in step.accounts.values()) == step.wall_ns for step in process.steps)


@pytest.mark.noisy
@each_example
def test_little_stays_unattributed(attached, command, ranks):
    observed = attached(*command, ranks=ranks)
    # what the thread did: on a busy machine a preemption falls where it falls, and is told as off the CPU
    for process in evidence(observed.folder):
        steps = [step for step in process.steps[3:] if step.end != "exit"]
        steps = [step for step in steps if not step.aside]
        spent = [step.accounts.get("unattributed", (0, 0)) for step in steps]
        assert sum(wall - off for wall, off in spent) <= 0.02 * sum(step.cpu_ns for step in steps)


@each_example
def test_tokens_are_counted(attached, command, ranks):
    figures = attached(*command, ranks=ranks).figures
    assert (
        0 < figures["tokens.labelled_per_step"] <= figures["tokens.real_per_step"] <= figures["tokens.slots_per_step"]
    )


@pytest.mark.noisy
@pytest.mark.parametrize("name", ["HF Trainer", "TRL with LoRA", "Lightning", "plain loop"])
def test_forward_and_backward_are_split(attached, name):
    figures = attached(*EXAMPLES[name][0]).figures
    for account in SPLIT:
        assert figures[f"ledger.{account}"] > 0.01 * figures["step.wall"], account


@each_example
def test_verify_accepts_the_run(attached, command, ranks):
    folder = attached(*command, ranks=ranks).folder
    verified = subprocess.run(
        [sys.executable, "-m", "stepprobe", "verify", str(folder)], capture_output=True, text=True
    )
    assert verified.returncode == 0, verified.stderr


@pytest.mark.noisy
def test_lightnings_validation_is_an_account_of_its_own(attached):
    figures = attached("lightning_module.py", "--steps", "12", "--validate-every", "4").figures
    assert figures["ledger.eval"] > 0.02 * figures["step.wall"]
    assert figures["tokens.slots_per_step"] > 0
    assert 0 < figures["ledger.logging"] < 0.2 * figures["step.wall"]


@pytest.mark.noisy
def test_the_slow_rank_is_named(attached):
    observed = attached("ddp_gloo.py", "--steps", "60", "--slow-rank", "1", ranks=2)
    # on a busy machine the others' waiting hides in the noise; then the rank's own extra work is what is named
    ranks = [finding for finding in observed.document["findings"] if finding["kind"].startswith("rank.")]
    assert any("rank 1" in finding["title"].lower() and "ddp_gloo.py" in finding["where"] for finding in ranks), ranks


def test_steps_ends_the_job_cleanly(attached):
    observed = attached("plain_loop.py", "--steps", "400", run_options=("--steps", "8", "--warmup", "2"))
    assert observed.returncode == 0
    assert observed.figures["step.measured"] == 8
    assert observed.figures["step.count"] == 10 + len([1 for one in evidence(observed.folder)[0].steps if one.aside])


def test_the_length_that_trl_cuts_rows_to_is_noted(attached):
    (process,) = evidence(attached(*EXAMPLES["TRL with LoRA"][0]).folder)
    assert process.facts["max_length"] == 128
