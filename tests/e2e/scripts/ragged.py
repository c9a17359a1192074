"""A small model on rows of different lengths: python ragged.py STEPS PADDING ORDER.

PADDING is ``fixed`` or ``longest``, ORDER ``chance`` or ``grouped``; the rows are the same ones in all four.
"""

import sys

import torch
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader

STEPS, PADDING, ORDER = int(sys.argv[1]), sys.argv[2], sys.argv[3]
VOCABULARY, WIDTH, LONGEST, ROWS = 256, 64, 320, 4
torch.manual_seed(0)
torch.set_num_threads(1)


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, WIDTH)
        self.blocks = nn.ModuleList(
            nn.Sequential(nn.Linear(WIDTH, 8 * WIDTH), nn.GELU(), nn.Linear(8 * WIDTH, WIDTH)) for _ in range(4)
        )
        self.lm_head = nn.Linear(WIDTH, VOCABULARY)

    def forward(self, input_ids, attention_mask):
        x = self.embedding(input_ids) * attention_mask[..., None]
        for block in self.blocks:
            x = x + block(x)
        return self.lm_head(x)


def rows():
    lengths = (8 + 60 * torch.empty(ROWS * STEPS).exponential_()).long().clamp(8, LONGEST - 20)
    return [torch.randint(1, VOCABULARY, (length,)) for length in lengths]


def batches(found):
    order = torch.randperm(len(found)).tolist()
    if ORDER == "grouped":
        order.sort(key=lambda index: len(found[index]))
    together = [order[start : start + ROWS] for start in range(0, len(order), ROWS)]
    return [together[index] for index in torch.randperm(len(together))]


def collate(chosen):
    width = LONGEST if PADDING == "fixed" else max(map(len, chosen))
    ids = torch.stack([functional.pad(row, (0, width - len(row))) for row in chosen])
    return {"input_ids": ids, "attention_mask": (ids > 0).long(), "labels": ids.masked_fill(ids == 0, -100)}


def train():
    model = Model()
    optimizer = torch.optim.SGD(model.parameters(), 1e-3)
    found = rows()
    for batch in DataLoader(found, batch_sampler=batches(found), collate_fn=collate):
        labels = batch.pop("labels")
        loss = functional.cross_entropy(model(**batch).flatten(0, 1), labels.flatten())
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()


train()
