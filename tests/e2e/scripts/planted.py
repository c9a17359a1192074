"""A small GPT whose training wastes time in a way given by name, and tells how much: python planted.py STEPS PLANT.

Prints, for each step, the milliseconds that the plant took by its own clock (0 where it cannot time itself).
"""

import gc
import sys
import tempfile
import time

import torch
from torch import nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint
from torch.utils.data import DataLoader, Dataset

STEPS, PLANT = int(sys.argv[1]), sys.argv[2]
VOCABULARY = 4096 if PLANT == "prompts" else 256  # so that head and loss are a good part of the step
WIDTH, LENGTH, ROWS = 64, 64, 4
torch.manual_seed(0)
torch.set_num_threads(1)
spent = 0.0


class Planted:
    """Times what is inside."""

    def __enter__(self):
        self.begin = time.perf_counter()

    def __exit__(self, *_):
        global spent
        spent += time.perf_counter() - self.begin


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, x):
        rows, length, _ = x.shape
        q, k, v = self.qkv(x).view(rows, length, 3, 4, -1).permute(2, 0, 3, 1, 4)
        return self.out(functional.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2))


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm, self.attention = nn.LayerNorm(WIDTH), Attention()
        self.mlp = nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH))

    def forward(self, x):
        x = x + self.attention(self.norm(x))
        return x + self.mlp(x)


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, WIDTH)
        self.blocks = nn.ModuleList(Block() for _ in range(3))
        self.lm_head = nn.Linear(WIDTH, VOCABULARY)

    def forward(self, input_ids, attention_mask=None):
        x = self.embedding(input_ids)
        for block in self.blocks:
            x = checkpoint(block, x, use_reentrant=False) if PLANT == "checkpointing" else block(x)
        return self.lm_head(x)


class Rows(Dataset):
    def __len__(self):
        return ROWS * STEPS

    def __getitem__(self, index):
        if PLANT == "slow getitem":
            with Planted():
                time.sleep(0.004)
        generator = torch.Generator().manual_seed(index)
        return torch.randint(1, VOCABULARY, (LENGTH + 1,), generator=generator)


def collate(rows):
    if PLANT == "slow collate":
        with Planted():
            time.sleep(0.015)
    return torch.stack(rows)


def after_step(model, optimizer):
    if PLANT == "sleep after the step":
        with Planted():
            time.sleep(0.04)
    if PLANT == "collector":
        with Planted():
            gc.collect()
    if PLANT == "saves":
        state = [model.state_dict(), optimizer.state_dict()] * 4
        with tempfile.TemporaryFile() as file, Planted():
            torch.save(state, file)
    if PLANT == "many syncs":
        with Planted():
            sum(value.item() for parameter in model.parameters() for value in parameter.flatten()[:60])
    if PLANT == "evaluation":
        model.eval()
        with Planted(), torch.no_grad():
            for index in range(8):
                model(Rows()[index][None, :-1])
        model.train()


def train():
    model = Model()
    optimizer = torch.optim.AdamW(model.parameters())
    loader = DataLoader(Rows(), batch_size=ROWS, collate_fn=collate)
    batches = iter(loader)
    told = 0.0
    for _ in range(STEPS):
        if PLANT == "loader made anew":
            loader = DataLoader(Rows(), batch_size=ROWS, num_workers=1)
            with Planted():
                batches = iter(loader)
        batch = next(batches)
        ids, targets, mask = batch[:, :-1], batch[:, 1:].clone(), None
        if PLANT == "padding":
            mask = torch.ones_like(ids)
            mask[:, LENGTH // 4 :] = 0
        if PLANT == "prompts":
            targets[:, : LENGTH * 7 // 8] = -100
        if PLANT == "forward for nothing":
            with Planted(), torch.no_grad():
                model(ids)
        loss = functional.cross_entropy(model(ids, attention_mask=mask).flatten(0, 1), targets.flatten())
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        after_step(model, optimizer)
        print(f"{1000 * (spent - told):.6f}")
        told = spent


train()
