"""Lightning: a module around a tiny Qwen3, its data loader, and a trainer that accumulates, clips and logs.

python examples/lightning_module.py --steps 20
"""

import argparse
import logging
import warnings
from functools import partial

import lightning
import torch
from tiny import load_conversations, load_tokenizer
from torch.utils.data import DataLoader
from transformers import Qwen3Config, Qwen3ForCausalLM


class ChatModule(lightning.LightningModule):
    def __init__(self, vocab_size, max_length):
        super().__init__()
        self.model = Qwen3ForCausalLM(
            Qwen3Config(
                vocab_size=vocab_size,
                hidden_size=192,
                intermediate_size=512,
                num_hidden_layers=4,
                num_attention_heads=6,
                num_key_value_heads=2,
                head_dim=32,
                max_position_embeddings=max_length,
            )
        )

    def training_step(self, batch, batch_idx):
        loss = self.model(**batch, use_cache=False).loss
        self.log("loss", loss)
        return loss

    def validation_step(self, batch, batch_idx):
        self.log("validation_loss", self.model(**batch, use_cache=False).loss)

    def on_train_batch_end(self, outputs, batch, batch_idx):
        print(f"step {self.global_step} loss {outputs['loss'].item()!r}", flush=True)

    def configure_optimizers(self):
        optimizer = torch.optim.AdamW(self.parameters(), lr=1e-3)
        scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=self.trainer.max_steps)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": scheduler, "interval": "step"}}


def collate(rows, tokenizer, max_length):
    texts = [tokenizer.apply_chat_template(row["messages"], tokenize=False) for row in rows]
    encoded = tokenizer(texts, max_length=max_length, truncation=True, padding=True, return_tensors="pt")
    labels = encoded["input_ids"].masked_fill(encoded["attention_mask"] == 0, -100)
    return {"input_ids": encoded["input_ids"], "attention_mask": encoded["attention_mask"], "labels": labels}


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", help="folder of JSONL files with chat messages (default: made-up conversations)")
    parser.add_argument("--tokenizer", help="folder of a tokenizer (default: a small one, trained on the data)")
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--batch-size", type=int, default=4)
    parser.add_argument("--gradient-accumulation", type=int, default=2)
    parser.add_argument("--max-length", type=int, default=192)
    parser.add_argument("--validate-every", type=int, default=0, help="batches between validations (default: never)")
    return parser.parse_args()


def main():
    arguments = parse_arguments()
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    warnings.filterwarnings("ignore", module="lightning")  # advice about workers and devices
    lightning.seed_everything(0, verbose=False)
    rows = load_conversations(arguments.data)
    tokenizer = load_tokenizer(arguments.tokenizer, rows)
    held_out, rows = rows[:16], rows[16:]
    sizes = {"batch_size": arguments.batch_size, "drop_last": True}
    collated = partial(collate, tokenizer=tokenizer, max_length=arguments.max_length)
    loader = DataLoader(rows, shuffle=True, collate_fn=collated, **sizes)
    validation = DataLoader(held_out, collate_fn=collated, **sizes)
    lightning.Trainer(
        max_steps=arguments.steps,
        accumulate_grad_batches=arguments.gradient_accumulation,
        gradient_clip_val=1.0,
        val_check_interval=arguments.validate_every or 1.0,
        num_sanity_val_steps=0,
        accelerator="cpu",
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    ).fit(ChatModule(len(tokenizer), arguments.max_length), loader, validation if arguments.validate_every else None)


if __name__ == "__main__":
    main()
