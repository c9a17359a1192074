"""Argument parsing that says what was probably meant, and defaults from a config file."""

import argparse
import difflib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NoReturn

from stepprobe.errors import UsageError

_UNKNOWN = "unrecognized arguments: "


class Parser(argparse.ArgumentParser):
    """The parser of one command. Wrong use raises UsageError, so that it is told like every other error."""

    def error(self, message: str) -> NoReturn:
        """Raise instead of leaving the process; for an option that is not known, offer the nearest that is.

        Raises:
            UsageError: Always.
        """
        unknown = message.removeprefix(_UNKNOWN)
        if unknown != message and not unknown.startswith("-"):
            data = "; a dataset goes behind --data" if "--data" in self.options() else ""
            message = f"{unknown} is one argument too many{data}"
        elif unknown != message:
            message = f"unknown option {unknown}{nearest(unknown.split()[0].partition('=')[0], self.options())}"
        raise UsageError(f"{message}; see {self.prog} --help")

    def options(self) -> list[str]:
        """Return the long options."""
        return [option for option in self._option_string_actions if option.startswith("--")]

    def take_defaults(self, table: Mapping[str, object], source: str) -> None:
        """Let a config's table stand for options that are not given; keys are the long options without dashes.

        Raises:
            UsageError: A key or its value does not fit.
        """
        for key, value in table.items():
            action = self._option_string_actions.get(f"--{key}")
            if action is None or key == "help":
                keys = [option.removeprefix("--") for option in self.options()]
                raise UsageError(f"{source}: unknown key {key!r}{nearest(key, keys)}; keys are the long options")
            self.set_defaults(**{action.dest: _convert(action, value, f"{source}: {key}")})


class Several(argparse.Action):
    """Values that may be given at once or one by one; together they stand in the place of the default."""

    def __call__(
        self,
        parser: argparse.ArgumentParser,
        namespace: argparse.Namespace,
        values: str | Sequence[Any] | None,
        option: str | None = None,
    ) -> None:
        """Add the values to those that were given before."""
        before: Sequence[Any] = getattr(namespace, self.dest)
        setattr(namespace, self.dest, [*(() if before is self.default else before), *(values or ())])


def nearest(word: str, known: Iterable[str]) -> str:
    """Return a question that offers the most similar of the known words, or nothing."""
    found = difflib.get_close_matches(word, list(known), n=1)
    return f" (did you mean {found[0]}?)" if found else ""


def _convert(action: argparse.Action, value: object, place: str) -> object:
    if action.nargs == 0:
        if not isinstance(value, bool):
            raise UsageError(f"{place} is {value!r}; it must be true or false")
        return value
    if isinstance(action, Several):
        return [_single(action, one, place) for one in (value if isinstance(value, list) else [value])]
    return _single(action, value, place)


def _single(action: argparse.Action, value: object, place: str) -> object:
    if isinstance(value, bool | dict | list):
        raise UsageError(f"{place} is {value!r}; it must be one value")
    try:
        converted = action.type(str(value)) if callable(action.type) else str(value)
    except (ValueError, argparse.ArgumentTypeError) as error:
        raise UsageError(f"{place}: {error}") from error
    if action.choices is not None and converted not in action.choices:
        raise UsageError(f"{place} is {value!r}; it must be one of {', '.join(map(str, action.choices))}")
    return converted


def positive(text: str) -> int:
    """Read a whole number of at least one."""
    if not text.isascii() or not text.isdigit() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number of at least 1")
    return int(text)


def warmup(text: str) -> str:
    """Read ``auto`` or a whole number of steps."""
    if text != "auto" and not (text.isascii() and text.isdigit()):
        raise argparse.ArgumentTypeError(f"{text!r} is neither auto nor a whole number of steps")
    return text
