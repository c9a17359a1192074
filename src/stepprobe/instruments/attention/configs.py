"""MODEL, read: a folder, a ``config.json`` or a hub id in the local cache, without weights and without remote code."""

import difflib
import json
from pathlib import Path
from typing import Any

from stepprobe.errors import NotObserved, UsageError

OLDEST = (4, 53)
NEWEST = (5, 24)
"""Versions of transformers between which this was tried."""
_DTYPE = (4, 56)


class Config:
    """A model's config with what has to be said about it."""

    def __init__(self, config: Any, notes: tuple[str, ...] = (), remote: bool = False) -> None:
        self.config, self.notes, self.remote = config, notes, remote

    @property
    def text(self) -> Any:
        """The part of the config that describes the language model."""
        return self.config.get_text_config()


def need_transformers() -> str:
    """Return the version of transformers.

    Raises:
        NotObserved: It or torch is not installed, or it is too old.
    """
    try:
        import torch  # noqa: F401
        import transformers
    except ImportError as error:
        raise NotObserved(
            f"{error}; the mask probe builds the model's own class: pip install torch transformers (for a CPU will do)"
        ) from error
    version = str(transformers.__version__)
    if _pair(version) < OLDEST:
        raise NotObserved(
            f"transformers {version} is older than {_dots(OLDEST)}, the first with mask functions; upgrade it"
        )
    return version


def of_type(dtype: Any) -> dict[str, Any]:
    """Return the argument that sets the element type of a model, by the name that this transformers gives it."""
    import transformers

    return {"dtype" if _pair(str(transformers.__version__)) >= _DTYPE else "torch_dtype": dtype}


def version_notes(version: str) -> tuple[str, ...]:
    """Return what has to be said about a version of transformers that was not tried."""
    if _pair(version) > NEWEST:
        return (f"transformers {version} is newer than {_dots(NEWEST)}, the newest tried; the controls still fire.",)
    return ()


def read_config(model: str, remote_code: bool = False) -> Config:
    """Read MODEL.

    Args:
        model: A folder, a JSON file or a hub id.
        remote_code: Whether code that comes with the model may run.

    Raises:
        UsageError: There is no such model, or it needs code of its own and that was not asked for.
    """
    path = Path(model)
    if path.is_dir():
        path = path / "config.json"
    if path.suffix == ".json" or path.exists():
        return _from_file(path, remote_code)
    return _from_cache(model, remote_code)


def _from_file(path: Path, remote_code: bool) -> Config:
    try:
        raw = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise UsageError(
            f"no model at {path}: {error.strerror}; name a folder with config.json, the file itself, or a cached hub id"
        ) from error
    except ValueError as error:
        raise UsageError(f"{path} is no JSON: {error}; name the config.json of a model") from error
    if not isinstance(raw, dict) or not isinstance(raw.get("model_type"), str):
        raise UsageError(f"{path} is no model config: it has no model_type; name the config.json of a model")
    return _built(raw, path.parent, remote_code)


def _from_cache(model: str, remote_code: bool) -> Config:
    from huggingface_hub import try_to_load_from_cache
    from huggingface_hub.errors import HFValidationError

    try:
        cached = try_to_load_from_cache(model, "config.json")
    except HFValidationError as error:
        raise UsageError(f"no model {model!r}: there is no such path, and it is no hub id ({error})") from error
    if not isinstance(cached, str):
        raise UsageError(
            f"no model {model!r}: there is no such path, and the local hub cache does not hold it; "
            f"fetch it once with: hf download {model} config.json"
        )
    return _from_file(Path(cached), remote_code)


def read_raw(raw: dict[str, Any]) -> Config:
    """Return the config of transformers' own that a JSON object describes.

    Raises:
        UsageError: transformers knows no such model or refuses its config.
    """
    return _built(raw, Path(), remote_code=False)


def _built(raw: dict[str, Any], folder: Path, remote_code: bool) -> Config:
    from transformers import CONFIG_MAPPING, AutoConfig

    kind = raw["model_type"]
    notes: list[str] = []
    if kind not in CONFIG_MAPPING:
        if "auto_map" not in raw:
            near = difflib.get_close_matches(kind, list(CONFIG_MAPPING.keys()), n=1)
            meant = f" (did you mean {near[0]}?)" if near else ""
            raise UsageError(
                f"this transformers knows no model_type {kind!r}{meant}; upgrade transformers, or check the config"
            )
        if not remote_code:
            raise UsageError(f"{kind!r} needs code that comes with the model; let it run with: --with remote-code")
        return Config(AutoConfig.from_pretrained(folder, trust_remote_code=True), remote=True)
    if "auto_map" in raw:
        notes.append(
            "The config names code of its own (auto_map); transformers' class is used and that code is not run."
        )
    try:
        config = CONFIG_MAPPING[kind].from_dict(raw)
        known = {**type(config)().to_dict(), **_GENERAL}
    except Exception as error:  # what a config class raises on a value that it refuses differs from class to class
        raise UsageError(
            f"{kind} config refused by transformers: {type(error).__name__}: {str(error)[:200]}"
        ) from error
    unknown = sorted(key for key in raw if key not in known and not key.startswith("_"))
    if unknown:
        shown = ", ".join(unknown[:6]) + (f" and {len(unknown) - 6} more" if len(unknown) > 6 else "")
        notes.append(
            f"Fields of the config that {type(config).__name__} does not name: {shown}. They were kept, unused."
        )
    return Config(config, tuple(notes))


_GENERAL = dict.fromkeys(
    [
        "architectures",
        "torch_dtype",
        "dtype",
        "auto_map",
        "transformers_version",
        "attn_implementation",
        "quantization_config",
        "use_cache",
        "tie_word_embeddings",
        "bos_token_id",
        "eos_token_id",
        "pad_token_id",
        "sep_token_id",
        "rope_theta",
        "rope_scaling",
    ]
)


def _pair(version: str) -> tuple[int, int]:
    parts = version.split(".")
    return int(parts[0]), int(parts[1])


def _dots(pair: tuple[int, int]) -> str:
    return ".".join(map(str, pair))
