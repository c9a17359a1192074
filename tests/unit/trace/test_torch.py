"""CPU traces that the installed torch writes are read, and say that they know no device."""

import pytest

from stepprobe.analysis.trace.report import trace_report
from stepprobe.instruments.trace.reader import read
from stepprobe.model.evidence import Evidence
from stepprobe.model.trace import encode_columns

STEPS = 3


@pytest.fixture(scope="module", params=[False, True], ids=["plain", "with_stack"])
def trace(request, tmp_path_factory):
    torch = pytest.importorskip("torch")
    path = tmp_path_factory.mktemp("torch") / "trace.json.gz"
    model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.ReLU(), torch.nn.Linear(8, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    data = torch.utils.data.DataLoader(torch.randn(4 * (STEPS + 1), 8), batch_size=4)
    activities = [torch.profiler.ProfilerActivity.CPU]
    schedule = torch.profiler.schedule(wait=0, warmup=1, active=STEPS, repeat=1)
    more = {"with_stack": request.param, "with_modules": request.param}
    with torch.profiler.profile(activities=activities, schedule=schedule, **more) as profile:
        for batch in data:
            model(batch).sum().backward()
            optimizer.step()
            optimizer.zero_grad()
            profile.step()
    profile.export_chrome_trace(str(path))
    return path


def test_it_is_streamed_with_its_steps(trace):
    columns = read(trace)
    assert columns.header.layout == "streamed"
    assert columns.header.losses == ()
    found = trace_report(
        Evidence(
            probe="trace",
            command="trace",
            subject="t",
            environment={},
            files={"a.columns": b"".join(encode_columns(columns))},
        )
    )
    assert found.figures["trace.steps"].value == STEPS
    assert found.figures["trace.dataloader"].value > 0
    assert found.verdict == "warn"
    assert any("no device rows" in note for note in found.notes)
    (host,) = [table for table in found.tables if table.name == "host"]
    assert any(str(row[0]).startswith("aten::") for row in host.rows)
