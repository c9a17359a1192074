"""Supervised fine-tuning of a tiny Qwen3 with the Hugging Face Trainer, as many people write it.

python examples/sft_trainer.py --steps 40
python examples/sft_trainer.py --data OUT/data --tokenizer OUT/tokenizer   (both from make_dataset.py)
"""

import argparse
import tempfile

import torch
from tiny import load_conversations, load_tokenizer
from transformers import Qwen3Config, Qwen3ForCausalLM, Trainer, TrainingArguments, set_seed


class ChatDataset(torch.utils.data.Dataset):
    """One conversation a row; the loss is taken on the assistant's answer only."""

    def __init__(self, rows, tokenizer, max_length):
        self.rows = rows
        self.tokenizer = tokenizer
        self.max_length = max_length

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, index):
        messages = self.rows[index]["messages"]
        prompt = self.tokenizer.apply_chat_template(messages[:-1], tokenize=False, add_generation_prompt=True)
        text = self.tokenizer.apply_chat_template(messages, tokenize=False)
        encoded = self.tokenizer(
            text, max_length=self.max_length, truncation=True, padding="max_length", return_tensors="pt"
        )
        labels = encoded["input_ids"][0].clone()
        labels[encoded["attention_mask"][0] == 0] = -100
        labels[: len(self.tokenizer(prompt)["input_ids"])] = -100
        return {
            "input_ids": encoded["input_ids"][0],
            "attention_mask": encoded["attention_mask"][0],
            "labels": labels,
        }


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", help="folder of JSONL files with chat messages (default: made-up conversations)")
    parser.add_argument("--tokenizer", help="folder of a tokenizer (default: a small one, trained on the data)")
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--batch-size", type=int, default=4)
    parser.add_argument("--gradient-accumulation", type=int, default=2)
    parser.add_argument("--max-length", type=int, default=192)
    parser.add_argument("--hidden", type=int, default=128)
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--gpu", action="store_true", help="train on the GPU, in bf16 (default: on the CPU)")
    return parser.parse_args()


def main():
    arguments = parse_arguments()
    set_seed(0)
    rows = load_conversations(arguments.data)
    tokenizer = load_tokenizer(arguments.tokenizer, rows)
    config = Qwen3Config(
        vocab_size=len(tokenizer),
        hidden_size=arguments.hidden,
        intermediate_size=3 * arguments.hidden,
        num_hidden_layers=arguments.layers,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=arguments.hidden // 4,
        max_position_embeddings=arguments.max_length,
        pad_token_id=tokenizer.pad_token_id,
        eos_token_id=tokenizer.eos_token_id,
    )
    with tempfile.TemporaryDirectory() as scratch:
        trainer = Trainer(
            model=Qwen3ForCausalLM(config),
            args=TrainingArguments(
                output_dir=scratch,
                max_steps=arguments.steps,
                per_device_train_batch_size=arguments.batch_size,
                gradient_accumulation_steps=arguments.gradient_accumulation,
                learning_rate=1e-3,
                warmup_steps=5,
                logging_steps=5,
                save_strategy="no",
                report_to="none",
                use_cpu=not arguments.gpu,
                bf16=arguments.gpu,
            ),
            train_dataset=ChatDataset(rows, tokenizer, arguments.max_length),
            processing_class=tokenizer,
        )
        result = trainer.train()
    print(f"final training loss {result.training_loss!r}")


if __name__ == "__main__":
    main()
