"""A tiny Qwen3 under the HF Trainer, with batches of a kind given by name: python masked.py KIND [ATTENTION].

The text of every batch holds the token 4242, which no evidence may hold.
"""

import sys
import tempfile

import torch
from transformers import Qwen3Config, Qwen3ForCausalLM, Trainer, TrainingArguments
from transformers.models.qwen3 import modeling_qwen3

KIND, ATTENTION = sys.argv[1], (sys.argv[2:] or ["sdpa"])[0]
LENGTH, SECRET = 32, 4242
torch.manual_seed(0)


class Rows(torch.utils.data.Dataset):
    def __len__(self):
        return 64

    def __getitem__(self, index):
        return torch.full((LENGTH,), SECRET)


def collate(rows):
    ids = torch.stack(rows)
    batch = {"input_ids": ids, "labels": ids.clone()}
    if KIND in ("right", "patched", "packed-ones"):
        batch["attention_mask"] = torch.ones_like(ids)
    if KIND in ("right", "patched"):
        batch["attention_mask"][-1, 20:] = 0
    if KIND.startswith("packed"):
        batch["position_ids"] = torch.cat([torch.arange(12), torch.arange(20)]).repeat(len(rows), 1)
    if KIND == "square":
        batch["attention_mask"] = torch.ones(len(rows), 1, LENGTH, LENGTH, dtype=torch.bool).tril()
    return batch


config = Qwen3Config(
    vocab_size=5000, hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=2,
    num_key_value_heads=1, head_dim=16, max_position_embeddings=64,
    **({"use_sliding_window": True, "sliding_window": LENGTH, "max_window_layers": 0} if KIND == "window" else {}),
)  # fmt: skip
config._attn_implementation = ATTENTION
model = Qwen3ForCausalLM(config)
if KIND == "patched":  # the script's own opinion of masks, which the class's config does not tell
    modeling_qwen3.create_causal_mask = lambda **_: None
with tempfile.TemporaryDirectory() as scratch:
    Trainer(
        model=model,
        args=TrainingArguments(
            output_dir=scratch, max_steps=5, per_device_train_batch_size=2, save_strategy="no", report_to="none",
            use_cpu=True, disable_tqdm=True,
        ),
        train_dataset=Rows(),
        data_collator=collate,
    ).train()  # fmt: skip
