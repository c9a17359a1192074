"""The run folder of a profile: drawn again, verified, compared, and read for its fit."""

import json

import pytest

from stepprobe import session
from stepprobe.cli import main
from tests.fakes.experiments import FakeExperiments, evidence
from tests.fakes.records import clean_process

BATCHES = [[256, 128, 64, 100], [200, 30, 20, 10]] * 20


class Shown:
    def __init__(self, evidence):
        self.evidence = evidence

    def observe(self):
        return self.evidence


def kept(tmp_path, **planted):
    experiments = FakeExperiments(noise=0.02, batches=BATCHES, **planted).quiet().scaling().end()
    shown = Shown(evidence(experiments, clean_process()))
    return session.ask(shown, "profile", out=tmp_path / "runs", name="train", argv=("stepprobe", "profile"))


def test_a_folder_is_drawn_again_and_verified(tmp_path, capsys):
    result = kept(tmp_path)
    assert result.problems == ()
    assert session.report(result.folder).report == result.report
    assert session.verify(result.folder).verdict == "ok"
    assert main(["report", str(result.folder)]) == 0
    shown = capsys.readouterr().out
    assert "What each change would gain" in shown
    assert f"stepprobe compare {result.folder} AFTER" in shown
    for form in ("markdown", "html", "json"):
        assert main(["report", str(result.folder), "--format", form]) == 0
        assert "bucketing" in capsys.readouterr().out


def test_two_folders_are_compared(tmp_path, capsys):
    folders = [str(kept(tmp_path, seed=seed).folder) for seed in (1, 2)]
    main(["compare", *folders])
    assert "undecided" in capsys.readouterr().out


@pytest.mark.parametrize("command", ["padding", "bucket"])
def test_the_lengths_take_their_cost_from_a_folder(tmp_path, capsys, command):
    data = tmp_path / "lengths.jsonl"
    data.write_text("".join(json.dumps({"length": length}) + "\n" for length in [100, 200, 900, 40] * 30))
    run = [command, str(data), "--out", str(tmp_path / "runs"), "--json", "--fit", str(kept(tmp_path).folder)]
    assert main(run) == 0
    said = capsys.readouterr().out
    if command == "bucket":
        assert "a measured fit" in said
    refused = FakeExperiments().scaling(shapes=((1, 128), (1, 1024))).end()
    shown = Shown(evidence(refused))
    folder = session.ask(shown, "profile", out=tmp_path / "runs", name="train", argv=("stepprobe", "profile")).folder
    assert main([*run[:-1], str(folder)]) == 2
    assert "three terms need three shapes" in capsys.readouterr().err
