"""MFU, HFU, floors: known answers, and what cannot be is refused."""

import pytest

from stepprobe.analysis.ledger.job import read_job
from stepprobe.analysis.limits.decoder import read_decoder
from stepprobe.analysis.limits.efficiency import efficiency, step_shapes
from stepprobe.analysis.limits.flops import hardware, micro_step, total
from stepprobe.model.experiments import Counted, Harness, Limit, Measured, Structure
from tests.fakes.records import CLEAN, COUNTS, FakeProcess, evidence
from tests.unit.profile.test_flops import QWEN3

MS = 1_000_000
SQUARE = total(micro_step(read_decoder(QWEN3), 2, 256, "square"))
REAL = total(micro_step(read_decoder(QWEN3), 2, 256, "real"))


def harness(**changes):
    fields = {
        "schema": 1,
        "source": "replay",
        "root": "Qwen3ForCausalLM",
        "rank": 0,
        "device": "cpu",
        "dtype": "float32",
    }
    fields |= {"threads": 1, "micro_steps": 2, "batches": [], "labelled_share": None, "captured_loss": None}
    return Harness(**{**fields, "replayed_loss": None, "longest": None, "vocabulary": None, **changes})


def structure(**changes):
    return Structure(**{"config": QWEN3, "weights": [], "embedding_gradient": True, "attention": "sdpa", **changes})


def limit(kind="matmul", work=10**9, ms=10.0, **changes):
    times = [round(ms * MS)] * 3
    return Limit(
        **{"kind": kind, "size": 512, "dtype": "float32", "work": work, "wall_ns": times, "thread_ns": times, **changes}
    )


def counted(flops=SQUARE, rows=2, length=256, **changes):
    return Counted(rows=rows, length=length, flops={"aten.mm": flops} if flops else {}, **changes)


def job(off_cpu=None, shapes=(("2×256 masked", 40),), accounts=CLEAN, real=1024, **facts):
    process = FakeProcess(**{"optimizer": "AdamW", "gradient_accumulation_steps": 2, **facts})
    process.steps(30, accounts, {**COUNTS, "micro_steps": 2, "real": real}, off_cpu=off_cpu)
    return read_job(evidence(process.sites(shapes=list(shapes))))


def lines(*more, rate_ms=10.0):
    return [harness(), limit(ms=rate_ms), limit("copy", 10**8), limit("dispatch", 1000, 2.0), structure(), *more]


def told(*more, at=None, rate_ms=10.0):
    figures, tables, notes = efficiency(lines(*more, rate_ms=rate_ms), at or job(), {})
    return {name: one.value for name, one in figures.items()}, {table.name: table for table in tables}, " ".join(notes)


def test_known_utilisation():
    figures, tables, notes = told(counted())
    # 100 ms a step, 1e11 FLOP/s
    assert figures["flops.per_step"] == 2 * REAL
    assert figures["mfu"] == pytest.approx(2 * REAL / 1e10)
    assert figures["mfu.square"] == pytest.approx(2 * SQUARE / 1e10)
    executed = hardware(micro_step(read_decoder(QWEN3), 2, 256), True, False)
    assert figures["hfu"] == pytest.approx(2 * executed / 1e10)
    assert next(iter(tables)) == "ceilings"
    assert "last digit" in tables["flops"].caption
    assert "they should be equal" not in notes


def test_checkpointing_is_in_hfu_alone():
    bare = told(counted())[0]
    figures, _, _ = efficiency([*lines()[:-1], structure(checkpointing=True), counted()], job(), {})
    checkpointed = {name: one.value for name, one in figures.items()}
    assert checkpointed["mfu"] == bare["mfu"]
    assert checkpointed["hfu"] > bare["hfu"]


TINY = {
    **QWEN3, "hidden_size": 8, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2,
    "num_key_value_heads": 1, "head_dim": 4, "vocab_size": 32, "layer_types": ["full_attention"],
}  # fmt: skip
"""A token costs 1,664 FLOPs forward by hand: q and o 2·8·8 each, k and v 2·8·4 each, three of the MLP 2·8·16 each, the
output layer 2·8·32. A pair of query and key costs 32: two products of 2·8."""


def of_rows(batches, at=None, records=(), config=TINY):
    """Figures and notes for rows of these lengths, in micro-batches of 2 × 256 slots, two a step."""
    made = [harness(batches=batches), *lines()[1:-1], structure(config=config), *records]
    figures, tables, notes = efficiency(made, at or job(real=260), {})
    return figures, {table.name: table for table in tables}, " ".join(notes)


def test_padding_is_no_work_of_the_real_tokens():
    """Rows of 100 and 30 tokens: 130 tokens, 100·101/2 + 30·31/2 pairs; forward and twice that; two of them a step."""
    by_hand = 2 * 3 * (130 * 1664 + (5050 + 465) * 32)
    figures, tables, _ = of_rows([[100, 30]])
    assert figures["mfu.real"].value == pytest.approx(by_hand / 1e10)
    assert figures["mfu"].value == pytest.approx(2 * 3 * (512 * 1664 + 2 * (256 * 257 // 2) * 32) / 1e10)
    assert "all slots, padding among them" in figures["mfu"].method
    assert "attention within each row" in figures["mfu.real"].method
    rows = {row[0]: row for row in tables["flops"].rows}
    assert rows["mfu.real"][2] == pytest.approx(by_hand / 1e9)
    assert rows["mfu (headline)"][1] == "all slots, padding among them"
    assert "Of the ceiling: over 100 ms (" in tables["flops"].caption
    assert "× 100 GFLOP/s" in tables["flops"].caption


def test_real_tokens_of_a_model_without_a_config_count_the_square_of_each_row():
    counts = [counted(10 * length + 2 * length**2, 1, length) for length in (64, 128)]
    figures, _, _ = of_rows([[100, 30]], records=counts, config={})
    assert figures["mfu.real"].value == pytest.approx(2 * (1300 + 2 * (100**2 + 30**2)) / 1e10)
    assert "every query with every key of its row" in figures["mfu.real"].method


def test_one_counted_length_tells_nothing_of_rows_of_other_lengths():
    figures, _, notes = of_rows([[100, 30]], records=[counted()], config={})
    assert "mfu.real" not in figures
    assert "mfu.square" in figures
    assert "mfu.real is not told: the FLOPs of rows of other lengths" in notes


@pytest.mark.parametrize(
    ("batches", "at", "why"),
    [
        ([], {"real": 260}, "no row's length was seen"),
        ([[256, 256]], {"real": 260}, "so their lengths are not known"),
        ([[256, 256]], {"real": 1024, "counts__real": "no attention mask, so all slots"}, "nobody knows which slots"),
    ],
)
def test_real_tokens_are_not_told_where_lengths_are_not_known(batches, at, why):
    figures, tables, notes = of_rows(batches, at=job(**at))
    assert "mfu.real" not in figures
    assert "mfu" in figures
    assert "mfu.real is not told: " in notes
    assert why in notes
    assert next(row for row in tables["flops"].rows if row[0] == "mfu.real")[2:] == (None, None)


def test_more_than_the_bursts_is_refused():
    quick = {"wall_ns": 30 * MS, "thread_ns": 30 * MS, "process_ns": 30 * MS}
    step = Measured(experiment="scaling", block=0, rows=2, length=256, real=512, **quick)
    figures, _, notes = told(counted(), step, limit(block=0))
    assert "mfu.micro_step" not in figures
    assert "mfu.micro_step would be 121%" in notes


def test_more_than_the_ceiling_is_refused_with_the_mistake():
    figures, tables, notes = told(
        counted(), rate_ms=14.0
    )  # 7.1e10 FLOP/s: 7.25e9 by the real mask, 8.05e9 by the square
    assert "mfu" not in figures
    assert {"mfu", "mfu.square", "hfu"}.isdisjoint(figures)
    assert "refused" in notes
    assert "flops.per_step" in figures
    assert [row[-1] for row in tables["flops"].rows] == [None, None, None, None]
    figures, _, notes = told(counted(), rate_ms=13.0)  # between the two conventions
    assert figures["mfu"] < 1
    assert "mfu.square" not in figures
    assert f"{SQUARE / REAL:.2f} times" in notes


def test_arithmetic_that_is_not_the_counter_is_set_aside():
    figures, _, notes = told(counted(SQUARE + 1))
    assert "equal to the last digit" in notes
    assert figures["flops.per_step"] == 2 * (SQUARE + 1)  # at the very shape
    elsewhere = job(shapes=(("2×128", 40),))
    assert "flops.per_step" not in told(counted(SQUARE + 1), at=elsewhere)[0]  # one length gives no terms
    short = total(micro_step(read_decoder(QWEN3), 1, 64, "square")) + 64
    figures, _, notes = told(counted(SQUARE + 512), counted(short, 1, 64), at=elsewhere)
    told_at_128 = total(micro_step(read_decoder(QWEN3), 2, 128, "square"))
    assert figures["flops.per_step"] == 2 * (told_at_128 + 2 * 128)
    assert "mfu" not in figures
    assert figures["mfu.square"] > 0


def test_a_count_that_failed_is_said():
    _, _, notes = told(counted(0, failure="DataDependentOutputException: no"))
    assert "DataDependentOutputException" in notes
    assert "arithmetic of the config alone" in notes


def test_a_model_that_arithmetic_does_not_know_is_counted_alone():
    strange = structure(config={**QWEN3, "kv_lora_rank": 8})
    figures, _, notes = efficiency([*lines()[:-1], strange, counted()], job(), {})
    assert "MLA" in " ".join(notes)
    assert figures["flops.per_step"].value == 2 * SQUARE
    assert "full square" in figures["flops.per_step"].method or "every key" in figures["flops.per_step"].method


def test_shapes_of_the_run_are_weighted():
    process = job(shapes=(("2×256 masked", 30), ("2×128", 10), ("2×8×128", 10), ("512", 10))).main
    assert step_shapes(process) == {(2, 256): 1.5, (2, 128): 0.5}


def test_time_off_the_cpu_does_not_lower_utilisation_on_one_thread():
    busy = {**CLEAN, "forward.mlp": 64.0}
    quiet, other = told(counted())[0], told(counted(), at=job({"forward.mlp": 50.0}, accounts=busy))[0]
    assert other["mfu"] == pytest.approx(quiet["mfu"])


def test_bursts_beside_the_micro_steps_give_a_share_that_a_busy_machine_leaves_alone():
    def micro(block, slow):
        times = {"wall_ns": round(900 * MS * slow), "thread_ns": round(60 * MS * slow), "process_ns": 60 * MS}
        return Measured(experiment="scaling", block=block, rows=2, length=256, real=512, **times)

    def share(slow, dtype="float32"):
        beside = [
            line for block in range(3) for line in (micro(block, slow), limit(ms=10 * slow, block=block, dtype=dtype))
        ]
        return told(counted(), *beside)[0].get("mfu.micro_step")

    assert share(1.0) == pytest.approx(REAL / 0.06 / 1e11)
    assert share(1.5) == pytest.approx(share(1.0))  # the machine was slower for both
    assert share(1.0, "bfloat16") is None  # bursts of another element type tell nothing


def test_floors_stand_against_the_ledger_and_add_up_once():
    figures, tables, _ = told(counted(operators={"mlp": 100, "attention": 500}))
    rows = {row[0]: row for row in tables["floors"].rows}
    mlp = 2 * sum(product.forward for product in micro_step(read_decoder(QWEN3), 2, 256) if product.part == "mlp")
    assert rows["forward · mlp"][2] == pytest.approx(mlp / 1e11 * 1e3)
    assert rows["data · fetch rows"][2:4] == (0.0, "none needed")
    assert rows["data · fetch rows"][4] == pytest.approx(0.2)
    assert "unattributed" not in rows
    assert figures["recoverable.step"] == pytest.approx(sum(row[4] for row in tables["floors"].rows))
    assert figures["recoverable.step"] + figures["floor.step"] <= 100.0 + 1e-9
    assert len(rows) == len(tables["floors"].rows)


def test_calls_alone_are_no_floor_to_recover_from():
    """A model without a config: its operators were counted, its FLOPs by account were not."""
    bare = [*lines()[:-1], structure(config={}), counted(operators={"mlp": 100, "norm": 20})]
    figures, tables, notes = efficiency(bare, job(), {})
    rows = {row[0]: row for row in next(one for one in tables if one.name == "floors").rows}
    assert rows["forward · mlp"][3:] == ("work not known", None)
    assert rows["data · fetch rows"][3:] == ("none needed", pytest.approx(0.2))
    assert not {"recoverable.step", "floor.step"} & figures.keys()
    assert any("recoverable.step is not told" in note for note in notes)
    caption = next(one for one in tables if one.name == "floors").caption
    assert "FLOPs and bytes of forward · mlp, forward · norm" in caption


def test_an_account_below_its_floor_recovers_nothing_and_is_said():
    fast = {**CLEAN, "forward.mlp": 0.5, "unattributed": 14.0}
    _, tables, notes = told(counted(), at=job(accounts=fast))
    row = next(row for row in tables["floors"].rows if row[0] == "forward · mlp")
    assert row[4] == 0
    assert "forward · mlp" in notes


def test_without_steps_the_ceilings_still_stand():
    figures, tables, notes = efficiency(lines(counted()), None, {})
    assert "limit.matmul_flops" in figures
    assert "mfu" not in figures
    assert [table.name for table in tables] == ["ceilings", "flops_layers"]
    assert any("not told" in note for note in notes)


def test_nothing_at_all_gives_no_figure():
    figures, tables, notes = efficiency([], None, {})
    assert (figures, tables) == ({}, ())
    assert len(notes) >= 3


def test_layers_are_told_by_kind():
    kinds = {"layer_types": ["sliding_attention"] * 3 + ["full_attention"], "sliding_window": 16}
    told_of = structure(config={**QWEN3, **kinds})
    _, tables, _ = efficiency([*lines()[:-1], told_of], job(), {})
    rows = next(table for table in tables if table.name == "flops_layers").rows
    assert [row[:2] for row in rows] == [(3, "sliding 16"), (1, "full"), (1, "output layer")]
    assert rows[0][2] < rows[1][2]
    assert rows[0][3] == rows[1][3]
