"""A plain PyTorch loop: own tiny GPT, gradient accumulation, clipping, a learning-rate schedule.

python examples/plain_loop.py --steps 20
"""

import argparse

import torch
from tiny import load_conversations, load_tokenizer
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader


class Attention(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)

    def forward(self, x):
        batch, length, width = x.shape
        query, key, value = self.qkv(x).view(batch, length, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        mixed = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        return self.out(mixed.transpose(1, 2).reshape(batch, length, width))


class Block(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.norm_1 = nn.LayerNorm(width)
        self.attention = Attention(width, heads)
        self.norm_2 = nn.LayerNorm(width)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x):
        x = x + self.attention(self.norm_1(x))
        return x + self.mlp(self.norm_2(x))


class TinyGPT(nn.Module):
    def __init__(self, vocab_size, width=256, layers=4, heads=4, max_length=256):
        super().__init__()
        self.token_embedding = nn.Embedding(vocab_size, width)
        self.position_embedding = nn.Embedding(max_length, width)
        self.blocks = nn.ModuleList(Block(width, heads) for _ in range(layers))
        self.norm = nn.LayerNorm(width)
        self.lm_head = nn.Linear(width, vocab_size, bias=False)

    def forward(self, input_ids):
        positions = torch.arange(input_ids.shape[1], device=input_ids.device)
        x = self.token_embedding(input_ids) + self.position_embedding(positions)
        for block in self.blocks:
            x = block(x)
        return self.lm_head(self.norm(x))


def collate(rows, tokenizer, max_length):
    texts = [tokenizer.apply_chat_template(row["messages"], tokenize=False) for row in rows]
    encoded = tokenizer(texts, max_length=max_length, truncation=True, padding=True, return_tensors="pt")
    encoded["labels"] = encoded["input_ids"].masked_fill(encoded["attention_mask"] == 0, -100)
    return encoded


def batches(loader):
    while True:
        yield from loader


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", help="folder of JSONL files with chat messages (default: made-up conversations)")
    parser.add_argument("--tokenizer", help="folder of a tokenizer (default: a small one, trained on the data)")
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--batch-size", type=int, default=4)
    parser.add_argument("--gradient-accumulation", type=int, default=2)
    parser.add_argument("--max-length", type=int, default=192)
    return parser.parse_args()


def main():
    arguments = parse_arguments()
    torch.manual_seed(0)
    rows = load_conversations(arguments.data)
    tokenizer = load_tokenizer(arguments.tokenizer, rows)
    loader = DataLoader(
        rows,
        batch_size=arguments.batch_size,
        shuffle=True,
        drop_last=True,
        collate_fn=lambda batch: collate(batch, tokenizer, arguments.max_length),
    )
    model = TinyGPT(len(tokenizer), max_length=arguments.max_length)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=arguments.steps)

    source = batches(loader)
    model.train()
    for step in range(arguments.steps):
        total = 0.0
        for _ in range(arguments.gradient_accumulation):
            batch = next(source)
            logits = model(batch["input_ids"])
            loss = functional.cross_entropy(logits[:, :-1].flatten(0, 1), batch["labels"][:, 1:].flatten())
            (loss / arguments.gradient_accumulation).backward()
            total += loss.item() / arguments.gradient_accumulation
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        scheduler.step()
        optimizer.zero_grad(set_to_none=True)
        print(f"step {step} loss {total!r}", flush=True)


if __name__ == "__main__":
    main()
