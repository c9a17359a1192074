"""Fine-tune LoRA adapters on a tiny Qwen3 with TRL's SFTTrainer and PEFT.

python examples/trl_lora.py --steps 20
"""

import argparse
import tempfile

from datasets import Dataset
from peft import LoraConfig
from tiny import load_conversations, load_tokenizer
from transformers import Qwen3Config, Qwen3ForCausalLM, set_seed
from trl import SFTConfig, SFTTrainer


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", help="folder of JSONL files with chat messages (default: made-up conversations)")
    parser.add_argument("--tokenizer", help="folder of a tokenizer (default: a small one, trained on the data)")
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--batch-size", type=int, default=4)
    parser.add_argument("--gradient-accumulation", type=int, default=2)
    parser.add_argument("--max-length", type=int, default=128)
    parser.add_argument("--rank", type=int, default=8)
    return parser.parse_args()


def main():
    arguments = parse_arguments()
    set_seed(0)
    rows = load_conversations(arguments.data)
    tokenizer = load_tokenizer(arguments.tokenizer, rows)
    model = Qwen3ForCausalLM(
        Qwen3Config(
            vocab_size=len(tokenizer),
            hidden_size=128,
            intermediate_size=384,
            num_hidden_layers=4,
            num_attention_heads=4,
            num_key_value_heads=2,
            head_dim=32,
            max_position_embeddings=1024,
            pad_token_id=tokenizer.pad_token_id,
            eos_token_id=tokenizer.eos_token_id,
        )
    )
    with tempfile.TemporaryDirectory() as scratch:
        trainer = SFTTrainer(
            model=model,
            args=SFTConfig(
                output_dir=scratch,
                max_steps=arguments.steps,
                per_device_train_batch_size=arguments.batch_size,
                gradient_accumulation_steps=arguments.gradient_accumulation,
                max_length=arguments.max_length,
                learning_rate=2e-3,
                logging_steps=5,
                save_strategy="no",
                report_to="none",
                use_cpu=True,
                bf16=False,
            ),
            train_dataset=Dataset.from_list([{"messages": row["messages"]} for row in rows]),
            processing_class=tokenizer,
            peft_config=LoraConfig(r=arguments.rank, target_modules="all-linear", task_type="CAUSAL_LM"),
        )
        result = trainer.train()
    print(f"final training loss {result.training_loss!r}")


if __name__ == "__main__":
    main()
