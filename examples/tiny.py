"""What the example scripts share: a few made-up conversations and a tokenizer trained on them.

Each script takes `--data` and `--tokenizer` folders (see `make_dataset.py`); without them it makes its own from here,
so that it runs alone, offline, the same way each time.
"""

import json
import random
from pathlib import Path

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import AutoTokenizer, PreTrainedTokenizerFast

PAD, START, END = "<|pad|>", "<|im_start|>", "<|im_end|>"
CHAT_TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{{ message['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)

THINGS = ["list", "tuple", "string", "set", "file", "socket", "thread", "queue", "matrix", "token", "tensor", "batch"]
VERBS = ["sort", "copy", "split", "join", "open", "close", "send", "count", "merge", "reverse"]


def made_up_conversations(count=256, seed=0):
    """Question and answer of one to twelve sentences: lengths are skewed, as they are in real chats."""
    dice = random.Random(seed)
    rows = []
    for number in range(count):
        verb, thing = dice.choice(VERBS), dice.choice(THINGS)
        steps = [
            f"Step {step}: {dice.choice(VERBS)} the {dice.choice(THINGS)} with {dice.randrange(100)} items."
            for step in range(1, min(12, int(dice.paretovariate(1.2))) + 1)
        ]
        messages = [
            {"role": "user", "content": f"How do I {verb} a {thing}?"},
            {"role": "assistant", "content": " ".join(steps)},
        ]
        rows.append({"messages": messages, "source": f"made-up-{number % 3}"})
    return rows


def load_conversations(folder):
    """Rows of all JSONL files of a folder, in the order of their names; made-up ones where there is no folder."""
    if folder is None:
        return made_up_conversations()
    files = sorted(Path(folder).glob("*.jsonl"))
    if not files:
        raise SystemExit(f"{folder}: no .jsonl file in it; examples/make_dataset.py makes one")
    return [json.loads(line) for file in files for line in file.read_text("utf-8").splitlines()]


def chat_tokenizer(texts, vocab_size, show_progress=False):
    """Train a byte-level BPE on texts and give it a chat template."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=[PAD, START, END],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=show_progress,
    )
    tokenizer.train_from_iterator(texts, trainer)
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, pad_token=PAD, eos_token=END, chat_template=CHAT_TEMPLATE, padding_side="right"
    )


def load_tokenizer(folder, rows, vocab_size=512):
    """The tokenizer of a folder, or a small one trained on the rows themselves."""
    if folder is not None:
        return AutoTokenizer.from_pretrained(folder)
    return chat_tokenizer((message["content"] for row in rows for message in row["messages"]), vocab_size)
