"""`stepprobe profile` on real tiny trainings: the step is taken over, driven, and put back without a trace."""

import importlib.util
import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from stepprobe.model.experiments import Done, Dropped, Harness, Measured, Restored, decode_experiments
from stepprobe.model.records import decode_process
from tests.e2e.conftest import run_once

pytestmark = pytest.mark.e2e

STEPPING = Path(__file__).parent / "scripts" / "stepping.py"
KINDS = {
    "plain": "replay",
    "zeros": "replay",
    "accelerate": "replay",
    "trainer": "Trainer.training_step",
    "trl": "Trainer.training_step",
}
SHORT = ("--steps", "4", "--time", "1", "--anyway")
KEPT = {"parameters", "buffers", "gradients", "optimizer", "scheduler", "random", "counters"}

HARNESS = """
import torch

class Own:
    def __init__(self):
        self.model = torch.nn.Sequential(torch.nn.Embedding(50, 16), torch.nn.Linear(16, 50))
    def batch(self, rows, length, real=None):
        return torch.randint(0, 50, (rows, length))
    def step(self, batch):
        loss = torch.nn.functional.cross_entropy(self.model(batch).flatten(0, 1), batch.flatten())
        loss.backward()
        return loss.detach()
    def root(self):
        return self.model
    def trainable_modules(self):
        return [self.model]

def make():
    return Own()

def lacking():
    return object()

def rootless():
    made = Own()
    made.root = lambda: 3
    return made

def leaving():
    raise SystemExit(4)

def failing():
    raise ValueError("no harness today")
"""


def lines(job):
    """Return what a finished job printed about its losses, on either stream, in order."""
    return re.findall(r"(?:step \d+ loss|calls) -?[\d.]+.*|tokens \S+ flos.*", job.stdout + job.stderr)


def experiments(folder):
    (file,) = folder.glob("experiments-rank0-pid*.jsonl")
    records, _ = decode_experiments(file.name, file.read_bytes())
    return records


def one(records, kind):
    (found,) = [record for record in records if isinstance(record, kind)]
    return found


def process(folder):
    (file,) = folder.glob("steps-rank0-pid*.jsonl")
    return decode_process(file.name, file.read_bytes())


@pytest.fixture(scope="session")
def stepping(jobs_folder, environment):
    def run(kind, *options):
        return run_once(jobs_folder, [sys.executable, str(STEPPING), kind, *options], environment, attached=False)

    return run


@pytest.fixture(scope="session")
def profiled(jobs_folder, environment):
    """`profiled("plain", "--steps", "5", options=("--keep-training",))`."""

    def run(kind, *words, options=(), more=None):
        command = [sys.executable, "-m", "stepprobe", "profile", *SHORT, *options, "--"]
        command += [sys.executable, str(STEPPING), kind, *words]
        return run_once(jobs_folder, command, {**environment, **(more or {})}, attached=True)

    return run


@pytest.mark.parametrize("kind", KINDS)
def test_the_training_goes_on_bit_for_bit(stepping, profiled, kind):
    alone, observed = stepping(kind), profiled(kind, options=("--keep-training",))
    assert alone.returncode == 0, alone.stderr
    assert lines(observed) == lines(alone)
    assert len(lines(alone)) >= 12


@pytest.mark.parametrize(("kind", "source"), KINDS.items())
def test_the_scripts_own_step_is_driven(profiled, kind, source):
    records = experiments(profiled(kind, options=("--keep-training",)).folder)
    first = records[0]
    assert isinstance(first, Harness)
    assert first.source == source
    assert first.captured_loss == first.replayed_loss is not None
    assert first.micro_steps == 2
    assert first.batches
    assert 0 < first.labelled_share <= 1
    answers = [record for record in records if isinstance(record, Measured | Dropped)]
    asked = [record for record in answers if record.experiment in ("scaling", "heldout")]
    # on a busy machine the time may be up before a shape is warm; but the script's step never raised
    assert not [one for one in asked if isinstance(one, Dropped) and re.match(r"\w+(Error|Exception):", one.text)]
    assert asked
    restored = one(records, Restored)
    assert restored.unchanged == dict.fromkeys(KEPT, True)
    assert isinstance(records[-1], Done)


@pytest.mark.parametrize("kind", KINDS)
def test_the_steps_of_the_experiments_are_set_aside(profiled, kind):
    steps = process(profiled(kind, options=("--keep-training",)).folder).steps
    traced = [step.index for step in steps if step.aside == "profiler"]
    assert traced == list(range(5, 5 + len(traced)))
    assert 2 <= len(traced) <= 4  # one to warm the profiler up, and one to three
    assert [step.index for step in steps if step.aside == "experiments"] == [traced[-1] + 1, traced[-1] + 2]


@pytest.mark.parametrize("kind", ["plain", "trainer"])
def test_no_wait_of_the_harness_is_booked_on_the_script(profiled, kind):
    sites = process(profiled(kind, options=("--keep-training",)).folder).sites
    assert sites is not None
    assert not [site for site in map(str, sites.syncs) if "stepprobe" in site]


def test_without_a_trace_the_experiments_follow_the_steps_at_once(profiled):
    observed = profiled("plain", options=("--keep-training", "--no-trace"))
    assert {step.index: step.aside for step in process(observed.folder).steps if step.aside} == {
        5: "experiments",
        6: "experiments",
    }
    assert not list(observed.folder.glob("trace-*"))


def test_gradient_accumulation_is_counted(profiled, stepping):
    words = ("--accumulation", "3")
    observed = profiled("plain", *words, options=("--keep-training",))
    assert experiments(observed.folder)[0].micro_steps == 3
    assert lines(observed) == lines(stepping("plain", *words))


def test_the_job_ends_behind_the_experiments(profiled):
    observed = profiled("plain", "--steps", "4000")
    assert observed.returncode in (0, 3)
    assert len(list(observed.folder.glob("trace-*.columns"))) == 1
    assert len(lines(observed)) <= 11
    assert "ended the script after 4 steps and 1 to warm up, and " in observed.stderr
    assert "for trace and experiments; --keep-training lets it go on" in observed.stderr
    assert "steps, as asked" not in observed.stderr
    assert "--no-masks" not in observed.stderr
    verified = subprocess.run([sys.executable, "-m", "stepprobe", "verify", str(observed.folder)], capture_output=True)
    assert verified.returncode == 0, verified.stderr


REFUSED = {
    "in_place": "changes parameters in place",
    "twice": "called more than once before backward",
    "two_losses": "backward keeps its graph",
    "two_parts": "backward is called more than once for a call of the root module; name the step",
    "not_a_number": "the loss of the script's own step is nan",
}


@pytest.mark.parametrize(("kind", "reason"), REFUSED.items())
def test_what_cannot_be_driven_is_refused_and_costs_nothing(stepping, profiled, kind, reason):
    observed = profiled(kind, options=("--keep-training",))
    assert any(note.startswith("no experiments: ") and reason in note for note in process(observed.folder).notes)
    assert not list(observed.folder.glob("experiments-*"))
    assert reason in " ".join(observed.stderr.split())
    assert lines(observed) == lines(stepping(kind))


def test_a_script_that_is_too_short_is_told_how_many_steps(profiled):
    observed = profiled("plain", "--steps", "5")
    assert any("ended before them; they need 11" in note for note in process(observed.folder).notes)


def test_a_counter_of_the_script_that_changed_is_told(profiled):
    observed = profiled("in_script", options=("--keep-training",))
    unchanged = one(experiments(observed.folder), Restored).unchanged
    assert [kind for kind, same in unchanged.items() if not same] == ["counters"]


def test_a_model_of_one_length_keeps_the_shapes_that_it_takes(profiled):
    observed = profiled("fixed", options=("--keep-training", "--time", "20"))  # on a busy machine 1 s is soon up
    records = experiments(observed.folder)
    dropped = [record for record in records if isinstance(record, Dropped) and record.reason == "refused"]
    assert any("this model takes 6 tokens" in record.text for record in dropped)
    assert one(records, Restored).unchanged == dict.fromkeys(KEPT, True)


@pytest.fixture(scope="session")
def beside(tmp_path_factory):
    folder = tmp_path_factory.mktemp("beside")
    (folder / "own_steps.py").write_text(HARNESS)
    return {"PYTHONPATH": os.pathsep.join(filter(None, [os.environ.get("PYTHONPATH"), str(folder)]))}


@pytest.mark.parametrize("kind", ["plain", "trainer"])
def test_a_named_harness_is_driven_in_the_scripts_place(stepping, profiled, beside, kind):
    observed = profiled(kind, options=("--keep-training", "--harness", "own_steps:make"), more=beside)
    first = experiments(observed.folder)[0]
    assert (first.source, first.root) == ("own_steps:make", "Sequential")
    assert lines(observed) == lines(stepping(kind))


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("no_such_steps:make", "no_such_steps cannot be imported"),
        ("own_steps:absent", "has no function absent"),
        ("own_steps:lacking", "has no method batch, step, root, trainable_modules"),
        ("own_steps:rootless", "the step cannot be driven: AttributeError"),
        ("own_steps:leaving", "leaving() raised SystemExit: 4"),
        ("own_steps:failing", "failing() raised ValueError: no harness today"),
    ],
)
def test_a_harness_that_is_none_is_told_and_costs_nothing(stepping, profiled, beside, name, reason):
    observed = profiled("plain", options=("--keep-training", "--harness", name), more=beside)
    assert any(reason in note for note in process(observed.folder).notes)
    assert lines(observed) == lines(stepping("plain"))


def test_several_ranks_are_refused(jobs_folder, environment):
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    script = STEPPING.parents[3] / "examples" / "ddp_gloo.py"
    command = [sys.executable, "-m", "stepprobe", "profile", *SHORT, "--", *launcher, str(script), "--steps", "12"]
    observed = run_once(jobs_folder, command, environment, attached=True)
    notes = [decode_process(file.name, file.read_bytes()).notes for file in observed.folder.glob("steps-rank*")]
    assert len(notes) == 2
    assert all(any("more than one rank" in note for note in one) for one in notes)


@pytest.mark.parametrize("name", [signal.SIGINT, signal.SIGKILL])
def test_what_was_measured_before_a_signal_is_kept(tmp_path, environment, name):
    command = [sys.executable, "-m", "stepprobe", "profile", "--steps", "2", "--time", "600", "--anyway", "--"]
    command += [sys.executable, str(STEPPING), "interrupt", "--steps", "4000"]
    with subprocess.Popen(
        command, cwd=tmp_path, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as job:
        deadline = time.monotonic() + 120
        while not (found := measuring(tmp_path)) and time.monotonic() < deadline:
            time.sleep(0.05)
        assert found, "no experiment was begun"
        os.kill(int(re.search(r"pid(\d+)", found.name)[1]), name)
        out, err = job.communicate(timeout=120)
    records, _ = decode_experiments(found.name, found.read_bytes())
    assert any(isinstance(record, Measured) for record in records)
    assert json.loads((found.parent / "report.json").read_text())["command"] == "profile"
    if name == signal.SIGINT:
        assert b"caught an interrupt" in out, err
        assert job.returncode == 3
        assert one(records, Restored).unchanged == dict.fromkeys(KEPT, True)
        assert records[-1] == Done(reason="interrupted")


def measuring(folder):
    for file in folder.glob("stepprobe-runs/*/experiments-*.jsonl"):
        if b'"measured"' in file.read_bytes():
            return file
    return None


@pytest.mark.skipif(importlib.util.find_spec("lightning") is None, reason="lightning is not installed")
def test_lightning_goes_on_bit_for_bit(stepping, profiled):
    observed = profiled("lightning", options=("--keep-training",))
    assert lines(observed) == lines(stepping("lightning"))
    first = experiments(observed.folder)[0]
    assert first.source == "LightningModule.training_step"
    assert first.captured_loss == first.replayed_loss is not None
    assert one(experiments(observed.folder), Restored).unchanged == dict.fromkeys(KEPT, True)
