"""Acting after an import."""

import importlib
import sys

import pytest

from stepprobe.instruments.attach.imports import AfterImport


@pytest.fixture
def module(tmp_path, monkeypatch):
    (tmp_path / "watched_module.py").write_text("value = 1\n")
    monkeypatch.syspath_prepend(tmp_path)
    before = list(sys.meta_path)
    yield "watched_module"
    sys.meta_path[:] = before
    sys.modules.pop("watched_module", None)


def test_the_action_runs_when_the_module_has_run(module):
    seen = []
    AfterImport({module: lambda found: seen.append(found.value)}).install()
    importlib.import_module(module)
    assert seen == [1]


def test_a_later_from_import_gets_what_was_replaced(module):
    AfterImport({module: lambda found: setattr(found, "value", 2)}).install()
    from watched_module import value

    assert value == 2


def test_a_module_that_is_there_already_is_caught_up_with(module):
    importlib.import_module(module)
    seen = []
    AfterImport({module: lambda found: seen.append(found.value)}).install()
    assert seen == [1]


def test_a_module_that_does_not_exist_stays_missing():
    before = list(sys.meta_path)
    AfterImport({"no_such_module_at_all": lambda _: None}).install()
    try:
        with pytest.raises(ModuleNotFoundError):
            importlib.import_module("no_such_module_at_all")
    finally:
        sys.meta_path[:] = before
