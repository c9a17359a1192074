"""The trainings whose changes are predicted: a tiny model in a plain loop, each option a change that a finding names.

    python bench/forecast_job.py --steps 60 --order random      # and the same with --order grouped, --order packed …

Rows are random tokens of log-normal length; a prompt part has no label. One thread, so that CPU time is all there is.
"""

import argparse
import time

import torch
from torch.nn import functional
from torch.utils.data import DataLoader, Dataset
from transformers import Gemma3ForCausalLM, Gemma3TextConfig, Qwen3Config, Qwen3ForCausalLM

VOCABULARY, GROUPED_BATCHES = 2048, 50
"""Fifty batches are sorted by length at a time, as the HF Trainer does it."""


class Rows(Dataset):
    """Random tokens of log-normal length, the first part of each a prompt; reading one may take its time."""

    def __init__(self, count, options):
        dice = torch.Generator().manual_seed(options.seed)
        lengths = torch.exp(torch.randn(count, generator=dice) * options.spread) * options.median
        self.lengths = lengths.long().clamp(8, options.longest).tolist()
        self.slow_ms, self.vocabulary, self.seed = options.slow_ms, options.vocabulary, options.seed

    def __len__(self):
        return len(self.lengths)

    def __getitem__(self, index):
        if self.slow_ms:
            time.sleep(self.slow_ms / 1000)  # as a disk or a network would
        dice = torch.Generator().manual_seed(self.seed + index)
        return torch.randint(1, self.vocabulary, (self.lengths[index],), generator=dice)


def padded(rows, prompt):
    """A rectangle with its mask; prompt and padding have no label."""
    longest = max(map(len, rows))
    ids = torch.stack([functional.pad(row, (0, longest - len(row))) for row in rows])
    mask = torch.stack([functional.pad(torch.ones_like(row), (0, longest - len(row))) for row in rows])
    labels = ids.masked_fill(mask == 0, -100)
    for row, ids_of_row in zip(labels, rows, strict=True):
        row[: int(len(ids_of_row) * prompt)] = -100
    return {"input_ids": ids, "attention_mask": mask, "labels": labels}


def packed(packs, longest):
    """Each pack in one row, its positions beginning anew with each of its parts: attention stays inside each part."""
    ids = torch.zeros(len(packs), longest, dtype=torch.long)
    labels, positions = torch.full_like(ids, -100), torch.zeros_like(ids)
    for place, parts in enumerate(packs):
        start = 0
        for part in parts:
            end = start + len(part)
            ids[place, start:end] = labels[place, start:end] = part
            labels[place, start] = -100
            positions[place, start:end] = torch.arange(len(part))
            start = end
        positions[place, start:] = torch.arange(longest - start)
    return {"input_ids": ids, "position_ids": positions, "labels": labels}


def packs_of(drawn, rows, longest):
    """Index lists of at most ``longest`` tokens, best fit decreasing."""
    packs = []
    for index in sorted(drawn, key=rows.lengths.__getitem__, reverse=True):
        size = rows.lengths[index]
        fitting = [pack for pack in packs if pack[0] >= size]
        pack = min(fitting, key=lambda one: one[0], default=None)
        if pack is None:
            pack = [longest]
            packs.append(pack)
        pack[0] -= size
        pack.append(index)
    return [pack[1:] for pack in packs]


def batches_of(rows, options):
    """Index lists: rows at random, or sorted by length inside groups of fifty batches; or lists of packs."""
    size, dice = options.rows, torch.Generator().manual_seed(1)
    drawn = torch.randperm(len(rows), generator=dice).tolist()
    if options.order == "packed":
        drawn = packs_of(drawn[: 1000 * size], rows, options.longest)
        drawn = [drawn[index] for index in torch.randperm(len(drawn), generator=dice).tolist()]
    drawn = drawn[: size * options.steps]
    if options.order == "grouped":
        group = size * GROUPED_BATCHES
        drawn = [
            index
            for start in range(0, len(drawn), group)
            for index in sorted(drawn[start : start + group], key=rows.lengths.__getitem__)
        ]
    found = [drawn[start : start + size] for start in range(0, len(drawn) - size + 1, size)]
    mixed = torch.randperm(len(found), generator=dice).tolist()
    return [found[index] for index in mixed]


class Packs(Dataset):
    """Several rows under one index: a list of theirs."""

    def __init__(self, rows, batches):
        self.rows, self.packs = rows, [pack for batch in batches for pack in batch]

    def __len__(self):
        return len(self.packs)

    def __getitem__(self, index):
        return [self.rows[part] for part in self.packs[index]]


def loader_of(options):
    """The DataLoader."""
    rows = Rows(options.rows * options.steps * (8 if options.order == "packed" else 1), options)
    batches = batches_of(rows, options)
    if options.order == "packed":
        return DataLoader(
            Packs(rows, batches), options.rows, collate_fn=lambda packs: packed(packs, options.longest), num_workers=0
        )
    return DataLoader(
        rows,
        batch_sampler=batches,
        collate_fn=lambda chosen: padded(chosen, options.prompt),
        num_workers=options.workers,
    )


def model_of(options):
    """A tiny Qwen3, or a tiny Gemma 3 whose layers all have a sliding window."""
    sizes = {
        "vocab_size": options.vocabulary,
        "hidden_size": options.width,
        "intermediate_size": 3 * options.width,
        "num_hidden_layers": 3,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": options.width // 4,
        "max_position_embeddings": 1024,
        "attn_implementation": "sdpa",
    }
    torch.manual_seed(options.seed)
    if not options.window:
        return Qwen3ForCausalLM(Qwen3Config(**sizes))
    layers = ["sliding_attention"] * 3
    return Gemma3ForCausalLM(Gemma3TextConfig(**sizes, sliding_window=options.window, layer_types=layers))


def on_labelled_rows(model):
    """Let the model compute head and loss on the rows alone that have a label."""

    def forward(labels, **batch):
        hidden = model.model(**batch).last_hidden_state[:, :-1].flatten(0, 1)
        targets = labels[:, 1:].flatten()
        rows = (targets != -100).nonzero().squeeze(1)
        return {"loss": functional.cross_entropy(model.lm_head(hidden[rows]).float(), targets[rows])}

    model.forward = forward


def parse():
    """What to train."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--longest", type=int, default=512, help="slots that a row has at most, and a pack has")
    parser.add_argument("--rows", type=int, default=8)
    parser.add_argument("--median", type=float, default=70)
    parser.add_argument("--spread", type=float, default=0.6)
    parser.add_argument("--order", choices=("random", "grouped", "packed"), default="random")
    parser.add_argument("--prompt", type=float, default=0.0, help="part of each row that has no label")
    parser.add_argument("--labelled-rows", action="store_true", help="head and loss on labelled rows only")
    parser.add_argument("--checkpointing", action="store_true")
    parser.add_argument("--workers", type=int, default=0)
    parser.add_argument("--slow-ms", type=float, default=0.0, help="what reading one row takes")
    parser.add_argument("--window", type=int, default=0)
    parser.add_argument("--vocabulary", type=int, default=VOCABULARY)
    parser.add_argument("--width", type=int, default=64)
    return parser.parse_args()


def main():
    """Train."""
    options = parse()
    torch.set_num_threads(1)
    loader = loader_of(options)
    model = model_of(options)
    if options.checkpointing:
        model.gradient_checkpointing_enable({"use_reentrant": False})
    if options.labelled_rows:
        on_labelled_rows(model)
    model.train()
    optimizer = torch.optim.AdamW(model.parameters(), 1e-3)
    for batch in loader:
        model(**batch, use_cache=False)["loss"].backward()
        optimizer.step()
        optimizer.zero_grad()


if __name__ == "__main__":
    main()
