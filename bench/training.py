"""The two trainings whose overhead is measured: a plain loop with a step over 100 ms, an HF Trainer step near 45 ms.

Both tell the CPU time of the training thread at the end of each step, by means of their own: the same with and without
the instrument.

    python bench/training.py plain 200                # prints [[CPU ns, attached], ...] of each step's end
    python bench/training.py plain 200 --alternate D  # hooks taken out and put back, block by block; evidence to D
"""

import argparse
import json
import time
from collections.abc import Callable

BLOCK = 10
"""Steps in a block. Blocks go attached, bare, bare, attached, so that a drift of the machine cancels."""

EachStep = Callable[[int], None]
"""Called at the end of each step with the thread's CPU time in ns."""


def plain(steps: int, each_step: EachStep) -> None:
    """Train a small GPT in a plain PyTorch loop."""
    import torch
    from torch import nn
    from torch.nn import functional
    from torch.utils.data import DataLoader, TensorDataset

    torch.manual_seed(0)
    torch.set_num_threads(1)
    vocabulary, width, heads = 2048, 128, 4

    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norm_1, self.norm_2 = nn.LayerNorm(width), nn.LayerNorm(width)
            self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
            self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            rows, length, _ = x.shape
            q, k, v = self.qkv(self.norm_1(x)).view(rows, length, 3, heads, -1).permute(2, 0, 3, 1, 4)
            seen = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
            x = x + self.out(seen.transpose(1, 2).reshape(x.shape))
            return x + self.mlp(self.norm_2(x))

    model = nn.Sequential(
        nn.Embedding(vocabulary, width), *(Block() for _ in range(4)), nn.LayerNorm(width), nn.Linear(width, vocabulary)
    )
    rows = torch.randint(0, vocabulary, (8 * steps, 129))
    optimizer = torch.optim.AdamW(model.parameters(), 3e-4)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda _: 1.0)
    for (batch,) in DataLoader(TensorDataset(rows), batch_size=8):
        logits = model(batch[:, :-1])
        functional.cross_entropy(logits.view(-1, vocabulary), batch[:, 1:].reshape(-1)).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()
        each_step(time.thread_time_ns())


def trainer(steps: int, each_step: EachStep) -> None:
    """Train a tiny Qwen3 with HF Trainer."""
    import tempfile

    import torch
    from transformers import Qwen3Config, Qwen3ForCausalLM, Trainer, TrainerCallback, TrainingArguments

    torch.manual_seed(0)
    torch.set_num_threads(1)
    config = Qwen3Config(
        vocab_size=2048,
        hidden_size=128,
        intermediate_size=384,
        num_hidden_layers=4,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=32,
    )
    ids = torch.randint(0, 2048, (4 * steps, 96))
    rows = [{"input_ids": row, "attention_mask": torch.ones_like(row), "labels": row} for row in ids]

    class Tell(TrainerCallback):
        def on_step_end(self, *_: object, **__: object) -> None:
            each_step(time.thread_time_ns())

    with tempfile.TemporaryDirectory() as folder:
        settings = TrainingArguments(
            output_dir=folder,
            per_device_train_batch_size=4,
            max_steps=steps,
            logging_steps=10,
            save_strategy="no",
            report_to=[],
            use_cpu=True,
            disable_tqdm=True,
        )
        Trainer(model=Qwen3ForCausalLM(config), args=settings, train_dataset=rows, callbacks=[Tell()]).train()


TRAININGS = {"plain": plain, "trainer": trainer}


def attached_in(step: int) -> bool:
    """Return whether the hooks are in place in this step, when they alternate."""
    return step // BLOCK % 4 in (0, 3)


def main() -> None:
    """Train and print."""
    parser = argparse.ArgumentParser()
    parser.add_argument("training", choices=TRAININGS)
    parser.add_argument("steps", type=int)
    parser.add_argument("--alternate", metavar="FOLDER")
    arguments = parser.parse_args()
    ends: list[tuple[int, bool]] = []
    observer = None
    if arguments.alternate:
        from stepprobe.launch.arm import arm

        observer = arm(arguments.alternate)

    def each_step(cpu_ns: int) -> None:
        step = len(ends)
        ends.append((cpu_ns, attached_in(step)))
        if observer is not None and attached_in(step + 1) != attached_in(step):
            (observer.resume if attached_in(step + 1) else observer.suspend)()

    TRAININGS[arguments.training](arguments.steps, each_step)
    print(json.dumps(ends))


if __name__ == "__main__":
    main()
