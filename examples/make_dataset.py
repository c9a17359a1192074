"""Build a chat-style dataset and its tokenizer from the standard library of the Python that runs this.

A row is one documented function or class: its signature is the question, its docstring the answer. The sources are
parsed, never imported. The same Python gives the same files, byte for byte:

    OUT/data/train.jsonl   {"messages": [{"role", "content"}, …], "source": "net"}
    OUT/tokenizer/         byte-level BPE with a chat template, for AutoTokenizer.from_pretrained
    OUT/made.json          what it was made from; a finished OUT is not made again
"""

import argparse
import ast
import collections
import inspect
import json
import random
import sys
import sysconfig
import warnings
from pathlib import Path

from rich.console import Console
from rich.progress import track

SOURCES = {
    "concurrency": "asyncio concurrent multiprocessing queue sched selectors subprocess threading",
    "data": "calendar collections configparser csv dbm heapq json pickle plistlib shelve sqlite3 tomllib xml zoneinfo",
    "io": "_pyio bz2 fileinput glob gzip io lzma os pathlib shutil tarfile tempfile zipfile",
    "language": "abc ast contextlib copy dataclasses dis enum functools importlib inspect tokenize types typing",
    "math": "_pydecimal bisect decimal fractions numbers random statistics",
    "net": "email ftplib http imaplib ipaddress mailbox poplib smtplib socket socketserver ssl urllib wsgiref xmlrpc",
    "text": "codecs difflib encodings gettext html locale pprint re reprlib string textwrap",
    "tools": "argparse cProfile cmd doctest logging optparse pdb profile pydoc timeit trace traceback unittest",
}
"""Top-level modules by the source name that their rows carry."""

VERSION = 1
"""Raise it when the same standard library would give other rows."""


def library_files(library):
    """(source, file) of every module that is named in SOURCES and there."""
    for source, modules in SOURCES.items():
        for module in modules.split():
            files = [library / f"{module}.py", *sorted((library / module).rglob("*.py"))]
            yield from ((source, file) for file in files if file.is_file() and "test" not in file.parts)


def signature(node):
    """The line with which a function or class begins."""
    if isinstance(node, ast.ClassDef):
        bases = ", ".join(ast.unparse(base) for base in node.bases)
        return f"class {node.name}({bases})" if bases else f"class {node.name}"
    returns = f" -> {ast.unparse(node.returns)}" if node.returns else ""
    keyword = "async def" if isinstance(node, ast.AsyncFunctionDef) else "def"
    return f"{keyword} {node.name}({ast.unparse(node.args)}){returns}"


def file_rows(source, module, text):
    """Rows of one source file, in the order of the file."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # old modules hold escape sequences that the parser remarks on
        tree = ast.parse(text)
    definitions = [
        node for node in ast.walk(tree) if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef)
    ]
    for node in sorted(definitions, key=lambda node: node.lineno):
        docstring = inspect.cleandoc(ast.get_docstring(node, clean=False) or "")
        if docstring:
            question = f"What does this do in {module}?\n\n{signature(node)}"
            messages = [{"role": "user", "content": question}, {"role": "assistant", "content": docstring}]
            yield {"messages": messages, "source": source}


def build_rows(library, console):
    """All rows, mixed by a fixed seed, as a training set is."""
    rows = []
    for source, file in track(list(library_files(library)), "reading the standard library", console=console):
        parts = file.relative_to(library).with_suffix("").parts
        module = ".".join(part for part in parts if part != "__init__")
        rows += file_rows(source, module, file.read_text("utf-8", errors="replace"))
    random.Random(0).shuffle(rows)
    return rows


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, required=True, help="folder for data/ and tokenizer/")
    parser.add_argument("--vocab-size", type=int, default=4096)
    arguments = parser.parse_args()
    console = Console(stderr=True)
    made = {"version": VERSION, "python": sys.version, "vocab_size": arguments.vocab_size}
    stamp = arguments.out / "made.json"
    if stamp.is_file() and json.loads(stamp.read_text("utf-8")) == made:
        console.print(f"dataset and tokenizer are there: {arguments.out}", highlight=False)
        return

    rows = build_rows(Path(sysconfig.get_path("stdlib")), console)
    (arguments.out / "data").mkdir(parents=True, exist_ok=True)
    lines = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
    (arguments.out / "data" / "train.jsonl").write_text(lines, "utf-8")
    counts = collections.Counter(row["source"] for row in rows)
    listing = ", ".join(f"{name} {counts[name]}" for name in sorted(counts))
    console.print(f"{len(rows)} rows: {listing}", highlight=False)

    with console.status("training a byte-level BPE on them"):
        from tiny import chat_tokenizer  # loads transformers, which takes a while

        texts = (message["content"] for row in rows for message in row["messages"])
        chat_tokenizer(texts, arguments.vocab_size).save_pretrained(arguments.out / "tokenizer")
    stamp.write_text(json.dumps(made), "utf-8")
    console.print(f"dataset and tokenizer: {arguments.out}", highlight=False)


if __name__ == "__main__":
    main()
