"""The clocks of a repetition, on a device that only writes down what it is told."""

from types import SimpleNamespace

from stepprobe.instruments.experiments.machine import Machine, device_kind
from stepprobe.instruments.experiments.timing import Reading, Stopwatch
from tests.fakes.harness import FakeClocks, FakeModule, FakeTorch


class Device:
    """A card that works on for a while after it was given its work."""

    def __init__(self, clocks):
        self.clocks, self.told, self.pending = clocks, [], 0

    def synchronize(self):
        self.told.append("synchronize")
        self.clocks.spend(self.pending, thread=0, process=0)
        self.pending = 0

    def Event(self, enable_timing):  # noqa: N802 - torch's name
        assert enable_timing
        return SimpleNamespace(record=lambda: self.told.append("record"), elapsed_time=lambda other: 2.5)


def test_work_that_the_card_still_has_is_waited_for_and_what_came_before_is_not_counted():
    clocks = FakeClocks()
    device = Device(clocks)
    device.pending = 9_000  # of the step before

    def work():
        device.told.append("work")
        clocks.spend(100, thread=60, process=80)
        device.pending = 400
        return 7

    found, reading = Stopwatch(SimpleNamespace(cuda=device), "cuda", clocks).timed(work)
    assert found == 7
    assert reading == Reading(wall_ns=500, thread_ns=60, process_ns=80, device_ns=2_500_000)
    assert device.told == ["synchronize", "record", "work", "record", "synchronize"]


def test_without_a_card_there_is_no_device_time():
    clocks = FakeClocks()
    assert Stopwatch(FakeTorch(), "cpu", clocks).timed(lambda: clocks.spend(5))[1] == Reading(5, 5, 5, None)


def test_the_steadiest_clock_and_the_warm_ups_depend_on_the_device():
    torch = FakeTorch()
    on_cpu = Machine(torch, FakeModule())
    assert (on_cpu.kind, on_cpu.warm_ups) == ("cpu", 1)
    assert on_cpu.steady_ns(Reading(9, 3, 4, None)) == 3
    torch.get_num_threads = lambda: 4  # a thread's own clock does not see the others
    assert on_cpu.steady_ns(Reading(9, 3, 4, None)) == 9
    module = FakeModule()
    module.weight.device = SimpleNamespace(type="cuda")
    on_card = Machine(torch, module)
    assert (on_card.kind, on_card.warm_ups) == ("cuda", 3)
    assert on_card.steady_ns(Reading(9, 3, 4, 7)) == 7
    assert device_kind(SimpleNamespace(parameters=lambda: iter(()))) == "cpu"
