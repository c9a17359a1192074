"""The dataset builder, on a small made-up library: what it takes, what it leaves, and that it never imports."""

import importlib.util
import io
from pathlib import Path

import pytest
from rich.console import Console

EXAMPLES = Path(__file__).parents[3] / "examples"

SOCKET = '''
raise SystemExit("imported")

class Socket(Base):
    """A door."""

    async def send(self, data: bytes, *, flags=0) -> int:
        """Send it.

        All of it.
        """
'''


def load(name):
    specification = importlib.util.spec_from_file_location(name, EXAMPLES / f"{name}.py")
    module = importlib.util.module_from_spec(specification)
    specification.loader.exec_module(module)
    return module


make_dataset = load("make_dataset")


@pytest.fixture
def library(tmp_path):
    files = {
        "socket.py": SOCKET,
        "json/__init__.py": 'def loads(text):\n    "Read JSON."\n\ndef silent():\n    return "\\d"\n',
        "json/decoder.py": 'class Decoder:\n    """Decode."""\n',
        "json/test/test_json.py": 'def test_it():\n    """Not for training."""\n',
        "unlisted.py": 'def f():\n    """Not named in SOURCES."""\n',
    }
    for name, text in files.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return tmp_path


def build(library):
    return make_dataset.build_rows(library, Console(file=io.StringIO()))


def test_a_row_is_a_question_with_the_signature_and_the_docstring_as_answer(library):
    answers = {row["messages"][0]["content"]: (row["messages"][1]["content"], row["source"]) for row in build(library)}
    assert answers == {
        "What does this do in socket?\n\nclass Socket(Base)": ("A door.", "net"),
        "What does this do in socket?\n\nasync def send(self, data: bytes, *, flags=0) -> int": (
            "Send it.\n\nAll of it.",
            "net",
        ),
        "What does this do in json?\n\ndef loads(text)": ("Read JSON.", "data"),
        "What does this do in json.decoder?\n\nclass Decoder": ("Decode.", "data"),
    }


def test_rows_are_chats_of_user_and_assistant(library):
    for row in build(library):
        assert [message["role"] for message in row["messages"]] == ["user", "assistant"]
        assert all(message["content"].strip() for message in row["messages"])


def test_the_same_library_gives_the_same_rows_in_the_same_order(library):
    assert build(library) == build(library)


def test_rows_of_one_file_are_mixed_among_the_others(library):
    for number in range(20):
        with (library / "socket.py").open("a") as file:
            file.write(f'\ndef f{number}():\n    """Number {number}."""\n')
    sources = [row["source"] for row in build(library)]
    assert sources != sorted(sources, reverse=True)
    assert sources != sorted(sources)


def test_every_listed_module_belongs_to_one_source():
    modules = [module for names in make_dataset.SOURCES.values() for module in names.split()]
    assert len(modules) == len(set(modules))


def test_examples_are_scripts_as_users_write_them():
    scripts = sorted(EXAMPLES.glob("*.py"))
    assert {"sft_trainer.py", "trl_lora.py", "plain_loop.py", "ddp_gloo.py"} <= {script.name for script in scripts}
    for script in scripts:
        assert "import stepprobe" not in script.read_text()
        assert "from stepprobe" not in script.read_text()
