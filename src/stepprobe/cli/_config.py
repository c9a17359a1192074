"""Options that are kept in ``stepprobe.toml``, or in ``[tool.stepprobe]`` of ``pyproject.toml``."""

from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from stepprobe.cli._parser import nearest
from stepprobe.errors import UsageError


def read_config(folder: Path, commands: Collection[str]) -> tuple[str, Mapping[str, Mapping[str, object]]]:
    """Return the config's file name and its table for each command; ``stepprobe.toml`` goes before ``pyproject.toml``.

    Raises:
        UsageError: The file cannot be read, or has a table that is no command's.
    """
    if (folder / "stepprobe.toml").is_file():
        return "stepprobe.toml", _checked("stepprobe.toml", _read(folder / "stepprobe.toml"), commands)
    if (folder / "pyproject.toml").is_file():
        tool = _read(folder / "pyproject.toml").get("tool")
        tables = tool.get("stepprobe", {}) if isinstance(tool, dict) else {}
        return "pyproject.toml", _checked("pyproject.toml", tables, commands)
    return "", {}


def _read(path: Path) -> dict[str, Any]:
    import tomllib

    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise UsageError(f"cannot read {path.name}: {error.strerror}") from error
    except ValueError as error:
        raise UsageError(f"{path.name} is not TOML: {error}") from error


def _checked(name: str, tables: object, commands: Collection[str]) -> Mapping[str, Mapping[str, object]]:
    if not isinstance(tables, dict):
        raise UsageError(f"{name}: tool.stepprobe is {tables!r}; it must hold a table for each command")
    for key, table in tables.items():
        if key not in commands:
            raise UsageError(
                f"{name}: {key!r} is no command{nearest(key, commands)}; options go in a table, like [run]"
            )
        if not isinstance(table, dict):
            raise UsageError(f"{name}: {key} is {table!r}; it must be a table of options, [{key}]")
    return tables
