"""What is warned of inside a wrapper is said of who called it."""

import _thread
import gc
import logging
import operator
import sys
import time
import warnings
import weakref

import pytest

from stepprobe.instruments.attach import callers
from stepprobe.instruments.attach.callers import Places, named, tell, unseen


class Compiler:
    """As much of ``torch.compiler`` as a wrapper asks for."""

    def __init__(self, tracing=False):
        self.is_dynamo_compiling = lambda: tracing


class Odd:
    """``operator.index`` warns of what this returns, in C."""

    def __index__(self):
        return True  # noqa: PLE0305


def warns(level=2):
    warnings.warn("as planted", stacklevel=level)


def line():
    return sys._getframe(1).f_lineno


@pytest.fixture
def wrapped():
    def wrapper_of(function):
        @unseen(function)
        def wrapper(*args):
            return function(*args)

        return wrapper

    return wrapper_of


@pytest.fixture
def index():
    """``operator.index`` in a wrapper, as PyTorch's C functions are."""
    call = named(operator.index, Compiler())

    @unseen(operator.index)
    def wrapper(value):
        return call(value)

    return wrapper


def test_no_stacklevel_counts_a_wrapper(wrapped):
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        at = line() + 1
        wrapped(wrapped(warns))()
        wrapped(lambda: wrapped(warns)(3))()
    assert [(one.filename, one.lineno) for one in told] == [(__file__, at), (__file__, at + 1)]


@pytest.mark.skipif(sys.version_info < (3, 11), reason="its logging passes over no frames")
def test_nor_does_logging(wrapped, caplog):
    wrapped(lambda: logging.getLogger("planted").warning("as planted", stacklevel=2))()
    assert caplog.records[0].funcName == "test_nor_does_logging"


def test_a_wrapper_keeps_its_name_and_what_it_wraps(wrapped):
    wrapper = wrapped(warns)
    assert (wrapper.__name__, wrapper.__wrapped__) == ("warns", warns)
    assert wrapper.__code__.co_filename == __file__ + callers.MARK


def test_a_warning_in_c_names_the_line_that_called(index):
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        at = line() + 1
        index(Odd())
        list(map(index, [Odd()]))
    assert [(one.filename, one.lineno) for one in told] == [(__file__, at), (__file__, at + 1)]


def test_it_is_told_once_for_each_line_that_called(index):
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("default")
        at = line() + 2
        for _ in range(3):
            index(Odd())
            index(Odd())
    assert [one.lineno for one in told] == [at, at + 1]


@pytest.mark.parametrize(("module", "count"), [(__name__, 1), ("stepprobe", 0)])
def test_filters_see_the_module_that_called(index, module, count):
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("ignore")
        warnings.filterwarnings("always", module=module)
        index(Odd())
    assert len(told) == count


def test_a_function_that_is_traced_is_the_one_that_was_there():
    seen = []
    named(lambda: seen.append(sys._getframe(1).f_code.co_name), Compiler(tracing=True))()
    assert seen == ["called"]


def test_a_thread_without_any_other_frame():
    done = []
    call = named(done.append, Compiler())
    _thread.start_new_thread(call, (1,))
    while not done:
        time.sleep(0.001)
    assert done == [1]


def test_places_are_remembered_up_to_a_limit(monkeypatch):
    monkeypatch.setattr(callers, "MOST", 1)
    known = Places(len)
    first, second = known.meet(sys._getframe()), known.meet(sys._getframe())
    assert list(known.values()) == [first]
    assert second.call(([1, 2],), {}) == 2


def test_the_compiler_is_told_of_all_stand_ins(index, monkeypatch):
    monkeypatch.setattr(callers, "_told", [])
    monkeypatch.setattr(callers, "_made", [])
    codes = []
    index(0)
    tell(codes.append)
    index(0)
    assert [code.co_firstlineno for code in codes] == [line() - 3, line() - 1]
    assert {code.co_name for code in codes} == {callers.STAND_IN}


@pytest.mark.parametrize("name", ["made_anew", __name__, 7])
def test_a_namespace_that_code_was_run_in_is_not_kept_alive(index, name):
    namespace = {"__name__": name, "index": index, "kept": Odd()}
    alive = weakref.ref(namespace["kept"])
    exec("def call():\n    return index(3)\nfound = call()\nagain = index(4)", namespace)
    assert (namespace["found"], namespace["again"]) == (3, 4)
    del namespace
    gc.collect()
    assert alive() is None
