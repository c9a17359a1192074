"""Shapes of results that are remembered: nothing of a capture depends on it."""

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

import msgspec  # noqa: E402

from stepprobe.instruments.attention import observed, remembered  # noqa: E402
from stepprobe.instruments.attention.remembered import Results  # noqa: E402
from stepprobe.model.attention import CAPTURE, read_capture  # noqa: E402
from tests.fakes import attention as fake  # noqa: E402

TYPES = (
    *("qwen3", "mistral", "gemma3_text", "llama4_text", "qwen3_5_text", "cohere2", "olmo3", "smollm3"),
    *("gemma4_text", "phi3", "gpt_oss", "falcon", "bloom", "doge", "deepseek_v3", "mixtral"),
)
KINDS = ("none", "right", "packed", "packed-ones")


def captured(config, kind):
    return read_capture(fake.evidence(config, kind, size=2).files[CAPTURE])


@pytest.fixture
def no_twin(monkeypatch):
    """The twin computes with values and remembers nothing."""
    monkeypatch.setattr(observed.twin, "observe_twin", lambda *_: ())


@pytest.mark.usefixtures("no_twin")
@pytest.mark.parametrize("kind", TYPES)
def test_a_capture_is_the_same_as_when_each_operation_is_carried_out(kind, monkeypatch):
    config = fake.config(kind)
    quick = [captured(config, batch) for batch in KINDS]
    monkeypatch.setattr(Results, "of", lambda self, func, args, kwargs, run: run())
    assert quick == [captured(config, batch) for batch in KINDS]
    assert all(capture.calls for capture in quick)


@pytest.mark.usefixtures("no_twin")
def test_the_comparison_sees_a_type_that_is_forgotten(monkeypatch):
    config = fake.config("gemma3_text")
    right = captured(config, "none")
    monkeypatch.setattr(remembered, "_told", lambda value: getattr(value, "shape", 0))
    assert msgspec.structs.replace(captured(config, "none"), notes=right.notes) != right


def asked(function, *args, **named):
    """What is remembered gives the same as what is run, and how many of the two calls were run."""
    results, ran = Results(), []

    def run():
        ran.append(1)
        return function(*args, **named)

    first, second = (results.of(function, args, named, run) for _ in range(2))
    return first, second, len(ran)


def test_like_operations_are_run_once():
    ops, left, right = torch.ops.aten, bare(2, 3, 4), bare(4, dtype=torch.bfloat16)
    for made in (
        asked(ops.mul.Tensor, left, right),
        asked(ops.cat.default, [left, left.transpose(0, 1).contiguous().transpose(0, 1)], 2),
        asked(ops.mean.dim, left, [-1], True, dtype=torch.float64),
    ):
        first, second, ran = made
        assert ran == 1
        assert second is not first
        assert (first.shape, first.stride(), first.dtype) == (second.shape, second.stride(), second.dtype)


def test_views_changes_in_place_and_values_are_always_run():
    ops, left = torch.ops.aten, bare(2, 3, 4)
    cases = (
        (ops.view.default, left, [6, 4]),
        (ops.add_.Tensor, left, left),
        (ops.mul.Tensor, left, torch.ones(4)),
        (ops.mul.Tensor, left, bare(4, dtype=torch.complex64)),
        (ops.topk.default, left, 2),
    )
    for function, *args in cases:
        results, ran = Results(), []
        for _ in range(2):
            results.of(function, args, {}, lambda ran=ran: ran.append(1) or left)
        assert len(ran) == 2, function


def test_what_decides_on_the_result_is_told_apart():
    results, ops, whole = Results(), torch.ops.aten, bare(3, 3, dtype=torch.int64)
    transposed = bare(3, 4).t()
    calls = [
        (ops.mul.Tensor, (whole, 1)),
        (ops.mul.Tensor, (whole, 1.0)),
        (ops.mul.Tensor, (bare(3, 3), 1)),
        (ops.neg.default, (bare(4, 3),)),
        (ops.neg.default, (transposed,)),
    ]
    for _ in range(2):
        for function, args in calls:
            made, right = results.of(function, args, {}, lambda f=function, a=args: f(*a)), function(*args)
            assert (made.shape, made.stride(), made.dtype) == (right.shape, right.stride(), right.dtype)


def bare(*shape, dtype=torch.float32):
    return torch.empty(shape, dtype=dtype, device="meta")
