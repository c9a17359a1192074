"""Tiny trainings of many kinds whose step can be taken over: `python stepping.py KIND [--steps N]`.

Each prints its losses to all digits. None of them knows of stepprobe.
"""

import argparse
import sys
import tempfile

import torch
from torch import nn
from torch.nn import functional

VOCABULARY, WIDTH, LENGTH = 64, 32, 24
COUNTS = {"calls": 0}


def rows_of(count=96, seed=0):
    drawn = torch.Generator().manual_seed(seed)
    lengths = torch.randint(6, LENGTH + 1, (count,), generator=drawn).tolist()
    return [torch.randint(1, VOCABULARY, (length,), generator=drawn) for length in lengths]


def collate(rows):
    length = max(len(row) for row in rows)
    ids = torch.zeros(len(rows), length, dtype=torch.long)
    mask = torch.zeros_like(ids)
    for place, row in enumerate(rows):
        ids[place, : len(row)] = row
        mask[place, : len(row)] = 1
    return {"input_ids": ids, "attention_mask": mask, "labels": ids.masked_fill(mask == 0, -100)}


class Model(nn.Module):
    """Embedding, a norm with a running mean, dropout, a head; it counts its calls."""

    def __init__(self, fixed_length=None, in_place=False, in_script=False):
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, WIDTH)
        self.norm = nn.BatchNorm1d(WIDTH)
        self.mix = nn.Linear(WIDTH, WIDTH)
        self.head = nn.Linear(WIDTH, VOCABULARY)
        self.fixed_length, self.in_place, self.in_script = fixed_length, in_place, in_script
        self.calls = 0

    def forward(self, input_ids, attention_mask=None):
        self.calls += 1
        if self.in_script:
            COUNTS["calls"] += 1
        if self.fixed_length and input_ids.shape[1] != self.fixed_length:
            raise ValueError(f"this model takes {self.fixed_length} tokens, not {input_ids.shape[1]}")
        if self.in_place:
            self.mix.weight.data.mul_(0.999)
        hidden = self.norm(self.embedding(input_ids).transpose(1, 2)).transpose(1, 2)
        hidden = functional.dropout(functional.gelu(self.mix(hidden.cumsum(dim=1))), 0.2, self.training)
        return self.head(hidden)


def loss_of(logits, labels):
    rows, length, vocabulary = logits.shape
    shifted = logits[:, :-1].reshape(rows * (length - 1), vocabulary)
    return functional.cross_entropy(shifted, labels[:, 1:].reshape(-1))


def loader_of(fixed=False):
    rows = [torch.cat([row, row])[:6] for row in rows_of()] if fixed else rows_of()
    return torch.utils.data.DataLoader(rows, batch_size=4, shuffle=True, collate_fn=collate)


def batches(loader):
    while True:
        yield from loader


def plain(arguments):
    torch.manual_seed(0)
    fixed = arguments.kind == "fixed"
    model = Model(6 if fixed else None, arguments.kind == "in_place", arguments.kind == "in_script")
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.99)
    source = batches(loader_of(fixed))
    for step in range(arguments.steps):
        total = 0.0
        for _ in range(arguments.accumulation):
            batch = next(source)
            if arguments.kind != "two_parts":
                logits = model(batch["input_ids"], batch["attention_mask"])
                loss = loss_of(logits, batch["labels"]) / arguments.accumulation
            if arguments.kind == "twice":
                loss = loss + model(batch["input_ids"]).mean()
            if arguments.kind == "not_a_number":
                loss = loss * float("nan")
            if arguments.kind == "two_parts":
                logits = model(batch["input_ids"])
                first = logits.detach().requires_grad_()
                loss = loss_of(first, batch["labels"])
                loss.backward()
                logits.backward(first.grad)
            else:
                loss.backward(retain_graph=arguments.kind == "two_losses")
            if arguments.kind == "two_losses":
                loss.backward()
            total += loss.item()
        optimizer.step()
        scheduler.step()
        optimizer.zero_grad(set_to_none=arguments.kind != "zeros")
        print(f"step {step} loss {total!r}", flush=True)
    print(f"calls {model.calls} mean {model.norm.running_mean.sum().item()!r}")


def interrupted(arguments):
    """A training that catches an interrupt, as many do to write a checkpoint."""
    try:
        plain(arguments)
    except KeyboardInterrupt:
        print("caught an interrupt", flush=True)
        sys.exit(3)


def accelerated(arguments):
    from accelerate import Accelerator
    from accelerate.utils import set_seed

    set_seed(0)
    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=arguments.accumulation)
    model = Model()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader_of())
    source = batches(loader)
    for step in range(arguments.steps * arguments.accumulation):
        batch = next(source)
        with accelerator.accumulate(model):
            loss = loss_of(model(batch["input_ids"]), batch["labels"])
            accelerator.backward(loss)
            accelerator.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()
        print(f"step {step} loss {loss.item()!r}", flush=True)


def trainer(arguments):
    from transformers import Qwen3Config, Qwen3ForCausalLM, Trainer, TrainerCallback, TrainingArguments, set_seed

    class Telling(TrainerCallback):
        def on_log(self, args, state, control, logs=None, **_):
            if "loss" in logs:
                print(f"step {state.global_step} loss {logs['loss']!r}", flush=True)

    set_seed(0)
    own = trl_of(Telling, arguments) if arguments.kind == "trl" else None
    if own is None:
        model = Qwen3ForCausalLM(tiny(Qwen3Config, attention_dropout=0.1))
        with tempfile.TemporaryDirectory() as folder:
            settings = TrainingArguments(folder, max_steps=arguments.steps, **shared(arguments))
            own = Trainer(model, settings, collate, rows_of(), callbacks=[Telling()])
    own.train()
    print(f"tokens {getattr(own, '_total_train_tokens', None)} flos {own.state.total_flos!r}")


def tiny(config, **more):
    shape = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "head_dim": 16}
    heads = {"num_attention_heads": 2, "num_key_value_heads": 1}
    return config(vocab_size=VOCABULARY, max_position_embeddings=256, **shape, **heads, **more)


def shared(arguments):
    return {
        "gradient_accumulation_steps": arguments.accumulation,
        "per_device_train_batch_size": 4,
        "logging_steps": 1,
        "save_strategy": "no",
        "report_to": "none",
        "use_cpu": True,
        "disable_tqdm": True,
        "learning_rate": 1e-2,
    }


def trl_of(callback, arguments):
    from datasets import Dataset
    from peft import LoraConfig
    from transformers import PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM
    from trl import SFTConfig, SFTTrainer

    tokenizer = PreTrainedTokenizerFast(tokenizer_object=words(), pad_token="w0", eos_token="w1")
    with tempfile.TemporaryDirectory() as folder:
        return SFTTrainer(
            Qwen3ForCausalLM(tiny(Qwen3Config)),
            SFTConfig(folder, max_steps=arguments.steps, bf16=False, max_length=64, **shared(arguments)),
            train_dataset=Dataset.from_list([{"input_ids": row.tolist()} for row in rows_of()]),
            processing_class=tokenizer,
            callbacks=[callback()],
            peft_config=LoraConfig(r=4, target_modules="all-linear", task_type="CAUSAL_LM", lora_dropout=0.2),
        )


def words():
    from tokenizers import Tokenizer, models, pre_tokenizers

    tokenizer = Tokenizer(models.WordLevel({f"w{number}": number for number in range(VOCABULARY)}, unk_token="w2"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    return tokenizer


def lightning(arguments):
    import lightning

    class Module(lightning.LightningModule):
        def __init__(self):
            super().__init__()
            self.model = Model()

        def training_step(self, batch, batch_idx):
            loss = loss_of(self.model(batch["input_ids"]), batch["labels"])
            self.log("loss", loss)
            return loss

        def on_train_batch_end(self, outputs, batch, batch_idx):
            print(f"step {self.global_step} loss {outputs['loss'].item()!r}", flush=True)

        def configure_optimizers(self):
            return torch.optim.AdamW(self.parameters(), lr=1e-2)

    lightning.seed_everything(0, verbose=False)
    lightning.Trainer(
        max_steps=arguments.steps,
        accumulate_grad_batches=arguments.accumulation,
        accelerator="cpu",
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    ).fit(Module(), loader_of())


KINDS = {
    "accelerate": accelerated,
    "trainer": trainer,
    "trl": trainer,
    "lightning": lightning,
    "interrupt": interrupted,
}


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("kind")
    parser.add_argument("--steps", type=int, default=12)
    parser.add_argument("--accumulation", type=int, default=2)
    arguments = parser.parse_args()
    KINDS.get(arguments.kind, plain)(arguments)


if __name__ == "__main__":
    main()
