"""Data-parallel training of a small network on CPU ranks with gloo.

python -m torch.distributed.run --standalone --nproc-per-node 2 examples/ddp_gloo.py --slow-rank 1
"""

import argparse
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

VOCABULARY, LENGTH = 256, 64


class TinyModel(nn.Module):
    def __init__(self, width=256):
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, width)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))
        self.norm = nn.LayerNorm(width)
        self.lm_head = nn.Linear(width, VOCABULARY)

    def forward(self, input_ids):
        x = self.embedding(input_ids)
        return self.lm_head(self.norm(x + self.mlp(x)))


def augment(slow):
    """Work before the forward that one machine does more slowly than the others."""
    if slow:
        time.sleep(0.03)


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--batch-size", type=int, default=24)
    parser.add_argument("--slow-rank", type=int, default=-1, help="rank that sleeps 30 ms each step")
    return parser.parse_args()


def main():
    arguments = parse_arguments()
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    tokens = torch.randint(VOCABULARY, (arguments.batch_size * arguments.steps * dist.get_world_size(), LENGTH + 1))
    dataset = TensorDataset(tokens)
    loader = DataLoader(dataset, batch_size=arguments.batch_size, sampler=DistributedSampler(dataset, seed=0))
    model = DistributedDataParallel(TinyModel())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    for step, (batch,) in enumerate(loader):
        augment(rank == arguments.slow_rank)
        logits = model(batch[:, :-1])
        loss = nn.functional.cross_entropy(logits.flatten(0, 1), batch[:, 1:].flatten())
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        print(f"rank {rank} step {step} loss {loss.item()!r}\n", end="", flush=True)  # one write: ranks share a stream
    dist.destroy_process_group()
    time.sleep(0.3)  # PyTorch aborts if a thread of gloo still lets go of a Python object when the interpreter ends


if __name__ == "__main__":
    main()
