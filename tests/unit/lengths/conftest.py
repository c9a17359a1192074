import json
import os
from pathlib import Path

import pytest

from stepprobe.instruments.dataset.counting import Settings
from stepprobe.instruments.dataset.subject import Dataset
from stepprobe.model.evidence import Evidence
from stepprobe.model.lengths import decode


def observe(*sources, more=None, **settings):
    """Read a dataset and return what was counted."""
    planned = Evidence(probe="padding", command="padding", subject="a test", environment={}, files={})
    own = {key: settings.pop(key) for key in ("workers", "cache", "block_rows") if key in settings}
    subject = Dataset(
        sources=[str(one) if isinstance(one, Path) else one for one in sources],
        planned=planned,
        settings=Settings(**settings),
        **own,
    )
    return decode(subject.observe().files)


@pytest.fixture
def tokenizer(tmp_path):
    """A tokenizer of words, with a chat template that marks what the assistant wrote."""
    return make_tokenizer(tmp_path / "words")


def make_tokenizer(folder, template=True, pad=True, marks=True):
    tokenizers = pytest.importorskip("tokenizers")
    from stepprobe.instruments.dataset import tokenizer as loading

    folder.mkdir(exist_ok=True)
    vocabulary = {"[UNK]": 0, "[PAD]": 1, "user": 2, "assistant": 3, ":": 4}
    backend = tokenizers.Tokenizer(tokenizers.models.WordLevel(vocabulary, unk_token="[UNK]"))
    backend.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    backend.save(str(folder / "tokenizer.json"))
    begin, end = ("{% generation %}", "{% endgeneration %}") if marks else ("", "")
    written = (
        "{% for m in messages %}{{ m.role }} : {% if m.role == 'assistant' %}"
        + begin
        + "{{ m.content }}"
        + end
        + "{% else %}{{ m.content }}{% endif %} {% endfor %}"
    )
    config = {**({"chat_template": written} if template else {}), **({"pad_token": "[PAD]"} if pad else {})}
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    return loading.load(str(folder))


@pytest.fixture
def shared():
    """Real text and tokenizers that are not part of the project."""
    place = os.environ.get("STEPPROBE_SHARED_DATA")
    if not place or not Path(place).is_dir():
        pytest.skip("no real corpus: STEPPROBE_SHARED_DATA names no folder")
    return Path(place)


def write_jsonl(path, rows, opened=open):
    """Write rows, one JSON object a line."""
    with opened(path, "wt") as file:
        file.writelines(json.dumps(row) + "\n" for row in rows)
    return path


def refused(error, words, *sources, **settings):
    """Assert that a dataset is refused with these words."""
    with pytest.raises(error) as raised:
        observe(*sources, **settings)
    assert all(word in str(raised.value) for word in words), str(raised.value)
