"""``stepprobe trace`` as a person uses it."""

import csv
import gzip
import json

import pytest

from stepprobe.cli import main
from stepprobe.instruments.trace.reader import read
from tests.fakes.traces import Builder, training
from tests.unit.trace.test_ranks import job


@pytest.fixture(autouse=True)
def elsewhere(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def written(tmp_path, built, name="trace.json"):
    (tmp_path / name).write_bytes(built.text())
    return str(tmp_path / name)


def test_one_object_with_the_promised_figures(tmp_path, capsys):
    assert main(["trace", written(tmp_path, training()), "--json"]) == 0
    shown = json.loads(capsys.readouterr().out)
    names = "step_wall busy_share idle_share carried_over_share linked_share kernels double_count_factor"
    names += " comm_overlap_share read_mb_per_cpu_s"
    assert {f"trace.{name}" for name in names.split()} <= set(shown["figures"])
    assert shown["figures"]["trace.step_wall"]["value"] == 1.0
    assert all(control["ok"] for control in shown["controls"])


def test_text_html_verify_and_report_work_on_its_folder(tmp_path, capsys):
    assert main(["trace", written(tmp_path, training())]) == 0
    assert "device · compute" in capsys.readouterr().out
    (folder,) = (tmp_path / "stepprobe-runs").iterdir()
    assert "<svg" in (folder / "report.html").read_text()
    assert main(["verify", str(folder)]) == 0
    assert main(["report", str(folder), "--json"]) == 0
    shown = capsys.readouterr().out
    assert json.loads(shown[shown.index("{") :])["command"] == "trace"


def test_no_host_name_or_path_is_kept(tmp_path):
    built = training()
    about = {"traceName": "/home/someone/trace.json", "host_name": "secret-host", "schemaVersion": 1}
    (tmp_path / "trace.json").write_bytes(built.text(about=about))
    assert main(["trace", str(tmp_path / "trace.json")]) == 0
    (folder,) = (tmp_path / "stepprobe-runs").iterdir()
    kept = b"".join(path.read_bytes() for path in folder.glob("*.columns"))
    assert b"secret-host" not in kept
    assert b"someone" not in kept


def test_a_folder_of_ranks(tmp_path, capsys):
    (tmp_path / "job").mkdir()
    for rank, built in enumerate(job()):
        written(tmp_path / "job", built, f"rank{rank}.json")
    assert main(["trace", str(tmp_path / "job"), "--json"]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert shown["figures"]["trace.ranks"]["value"] == 3
    assert shown["figures"]["trace.straggler"]["value"] == 1


def test_one_unreadable_rank_is_told_and_the_others_reported(tmp_path, capsys):
    first, second, _ = job()
    files = [written(tmp_path, first, "a.json"), written(tmp_path, second, "b.json")]
    (tmp_path / "c.json").write_bytes(b"not a trace")
    assert main(["trace", *files, str(tmp_path / "c.json")]) == 0
    shown = capsys.readouterr().out
    assert "not read: c.json" in " ".join(shown.split())
    assert "verdict: warn" in shown


@pytest.mark.parametrize(
    ("content", "code", "said"),
    [(None, 2, "does not exist"), (b"", 3, "empty"), (b"{}", 3, "traceEvents"), (b"[1, 2]", 3, "not one whole event")],
)
def test_what_cannot_be_read_is_an_error_and_leaves_no_run(tmp_path, capsys, content, code, said):
    if content is not None:
        (tmp_path / "bad.json").write_bytes(content)
    assert main(["trace", str(tmp_path / "bad.json")]) == code
    assert said in capsys.readouterr().err
    runs = tmp_path / "stepprobe-runs"
    assert not runs.exists() or not list(runs.iterdir())


def test_an_empty_folder_and_a_bad_target_are_wrong_use(tmp_path, capsys):
    (tmp_path / "none").mkdir()
    assert main(["trace", str(tmp_path / "none")]) == 2
    trace = written(tmp_path, training())
    assert main(["trace", trace, "--table", str(tmp_path / "no" / "x.csv")]) == 2
    assert main(["trace", trace, trace, "--perfetto", str(tmp_path / "x.json")]) == 2
    assert "name one file" in capsys.readouterr().err


def test_the_table_as_csv_is_harmless_in_a_spreadsheet(tmp_path):
    built = training()
    built.kernel("=HYPERLINK(1)", 10_000, 10_500, built.launch(1_000, 1_100), launched=1_000)
    assert main(["trace", written(tmp_path, built), "--table", str(tmp_path / "top.csv"), "--top", "30"]) == 0
    with open(tmp_path / "top.csv", newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    assert {"kernel", "rows [count]", "sum [ms]", "of step [1]"} <= set(rows[0])
    assert "'=HYPERLINK" in [one["kernel"] for one in rows]
    assert sum(float(one["rows [count]"]) for one in rows) == pytest.approx(13 / 3, rel=1e-3)  # of three steps


def shown(tmp_path, capsys, built):
    assert main(["trace", written(tmp_path, built), "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def test_a_gain_is_a_ceiling_in_percent_of_the_step(tmp_path, capsys):
    found = shown(tmp_path, capsys, training())
    wall = found["figures"]["trace.step_wall"]["value"]
    remedies = [(one["cost"], remedy["predicted"]) for one in found["findings"] for remedy in one["remedies"]]
    assert remedies
    assert all(gain["bound"] and gain["high"] >= cost["value"] for cost, gain in remedies)
    assert main(["trace", written(tmp_path, training())]) == 0
    text = " ".join(capsys.readouterr().out.replace("\N{NO-BREAK SPACE}", " ").split())
    high = max(gain["high"] for _, gain in remedies) / wall
    assert f"up to −{high:.0%}".replace("%", " %") in text
    assert "95 %" not in text[text.index("would save at most") : text.index("seen in")]


def test_rows_and_ms_are_of_one_step(tmp_path, capsys):
    """Three steps of one product of 0.3 ms each."""
    tables = {one["name"]: one for one in shown(tmp_path, capsys, training())["tables"]}
    row = next(one for one in tables["kernels"]["rows"] if one[0] == "sm90_gemm")
    assert row[1:3] == [1, pytest.approx(0.3)]
    assert "Rows and ms are per traced step and device, mean of 3." in tables["kernels"]["caption"]


@pytest.mark.parametrize(("waits", "said"), [(60_000, "the largest part of that"), (200_000, "most of that")])
def test_most_is_more_than_half(tmp_path, capsys, waits, said):
    """Idle: first while the host waits for data, then 110 µs of others."""
    built = Builder()
    built.step(1, 0, 1_000_000)
    built.kernel("gemm", 0, 1_000, built.launch(100, 200), launched=100)
    built.data(1_000, 1_000 + waits)
    built.kernel("gemm", 1_000 + waits, 890_000, built.launch(900 + waits, 950 + waits), launched=900 + waits)
    built.sync(890_000, 945_000)
    assert f" {said}: host waits for data" in shown(tmp_path, capsys, built)["headline"]


def test_top_bounds_the_tables_and_sums_the_rest(tmp_path, capsys):
    assert main(["trace", written(tmp_path, training()), "--top", "2", "--json"]) == 0
    capsys.readouterr()
    (folder,) = (tmp_path / "stepprobe-runs").iterdir()
    assert "(2 more)" in (folder / "report.html").read_text()


@pytest.mark.parametrize("name", ["out.json", "out.json.gz"])
@pytest.mark.parametrize("form", ["text", "compact", "packed"])
def test_perfetto_holds_the_trace_and_our_track(tmp_path, name, form):
    built = training(2, ns=3)
    (tmp_path / "trace.json").write_bytes(getattr(built, form)())
    assert main(["trace", str(tmp_path / "trace.json"), "--perfetto", str(tmp_path / name)]) == 0
    content = (tmp_path / name).read_bytes()
    events = json.loads(gzip.decompress(content) if name.endswith(".gz") else content)["traceEvents"]
    ours = [one for one in events if one.get("cat") == "stepprobe"]
    assert len(events) - len(ours) == len(built.events) + 2
    by_step = {}
    for one in ours:
        by_step[one["args"]["step"]] = by_step.get(one["args"]["step"], 0) + round(one["dur"] * 1000)
    assert by_step == {"ProfilerStep#10": 1_000_003, "ProfilerStep#11": 1_000_003}
    again = read(tmp_path / name)
    assert again.header.rows == len(built.events)


def test_device_only_and_host_only_traces(tmp_path, capsys):
    alone = Builder()
    alone.kernel("gemm", 0, 500, 7)
    alone.kernel("gemm", 700, 900, 8)
    assert main(["trace", written(tmp_path, alone)]) == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert "no launch rows" in shown
    assert "no operation rows" in shown
    host = Builder()
    host.step(0, 0, 1000)
    host.op("aten::mm", 100, 300)
    assert main(["trace", written(tmp_path, host)]) == 0
    assert "no device rows" in " ".join(capsys.readouterr().out.split())


def test_the_table_as_json(tmp_path):
    assert main(["trace", written(tmp_path, training()), "--table", str(tmp_path / "top.json")]) == 0
    rows = json.loads((tmp_path / "top.json").read_text())
    assert [one["kernel"] for one in rows][:2] == ["sm90_gemm", "multi_tensor_apply_kernel"]
    assert rows[0]["sum [ms]"] == pytest.approx(0.3)


def test_traces_too_large_for_columns_leave_summaries(tmp_path, capsys, monkeypatch):
    shown = []
    files = [written(tmp_path, built, f"rank{rank}.json") for rank, built in enumerate(job())]
    for most in (1 << 30, 1):
        monkeypatch.setattr("stepprobe.instruments.trace.files.COLUMNS_MOST", most)
        assert main(["trace", *files, "--json", "--out", str(tmp_path / str(most))]) == 0
        shown.append(json.loads(capsys.readouterr().out)["figures"])
        (folder,) = (tmp_path / str(most)).iterdir()
        kept = [path.name for path in folder.iterdir() if path.name[0] == "0"]
        assert len(kept) == 3
        assert all(name.endswith(".columns" if most > 1 else ".summary.json") for name in kept)
        assert main(["verify", str(folder)]) == 0
        capsys.readouterr()
    for figures in shown:
        del figures["trace.read_mb_per_cpu_s"]
    assert shown[0] == shown[1]


def test_without_numpy_the_next_step_is_named(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr("stepprobe.cli._packages.find_spec", lambda name: None)
    assert main(["trace", written(tmp_path, training())]) == 2
    assert "pip install numpy" in capsys.readouterr().err


def test_two_runs_of_trace_are_not_compared_as_trainings(tmp_path, capsys):
    assert main(["trace", written(tmp_path, training())]) == 0
    assert main(["trace", written(tmp_path, training(4))]) == 0
    folders = sorted((tmp_path / "stepprobe-runs").iterdir())
    assert main(["compare", *map(str, folders)]) == 2
    assert "stepprobe run" in capsys.readouterr().err
