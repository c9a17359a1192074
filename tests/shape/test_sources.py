"""The size and manners of every source file, so that a limit does not regrow quietly."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "src" / "stepprobe"
FILES = sorted(PACKAGE.rglob("*.py"))
FILE_LINES = 400
FUNCTION_LINES = 40
OLDEST = (3, 10)
VAGUE = {"manager", "helper", "helpers", "utils", "util", "handler", "common", "misc", "info", "data"}
FRAMEWORKS = {"torch", "transformers", "trl", "peft", "accelerate", "datasets", "lightning"}


def long_functions(tree):
    return [
        f"{node.name}: {node.end_lineno - node.lineno + 1} lines"
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.end_lineno - node.lineno >= FUNCTION_LINES
    ]


def prints(tree):
    return [
        node.lineno
        for node in ast.walk(tree)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "print"
    ]


def vague_names(path, tree):
    words = set(path.stem.lower().split("_"))
    for node in ast.walk(tree):
        if isinstance(node, ast.ClassDef):
            words.update(word for word in VAGUE - {"data", "info"} if node.name.lower().endswith(word))
    return words & VAGUE


def framework_imports_at_import_time(node):
    """Return frameworks imported outside functions; what only a type checker reads does not count."""
    found = set()
    for child in ast.iter_child_nodes(node):
        match child:
            case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.Lambda():
                continue
            case ast.If(test=ast.Name(id="TYPE_CHECKING")):
                continue
            case ast.Import():
                found |= {alias.name.partition(".")[0] for alias in child.names}
            case ast.ImportFrom(module=str(module)):
                found.add(module.partition(".")[0])
            case _:
                found |= framework_imports_at_import_time(child)
    return found & FRAMEWORKS


@pytest.fixture(params=FILES, ids=lambda path: str(path.relative_to(PACKAGE)))
def source(request):
    return request.param, ast.parse(request.param.read_text(encoding="utf-8"))


def test_files_stay_small(source):
    assert len(source[0].read_text(encoding="utf-8").splitlines()) <= FILE_LINES


def test_functions_stay_small(source):
    assert long_functions(source[1]) == []


def test_names_say_something(source):
    assert vague_names(*source) == set()


def test_only_the_command_line_prints(source):
    path, tree = source
    if not {PACKAGE / "cli", PACKAGE / "launch" / "inject"} & set(path.parents):  # the latter has no caller to tell
        assert prints(tree) == []


def test_frameworks_are_imported_inside_functions(source):
    assert framework_imports_at_import_time(source[1]) == set()


def test_what_runs_in_the_users_process_is_written_for_their_older_python():
    injected = [PACKAGE / "__init__.py", PACKAGE / "model" / "accounts.py", PACKAGE / "launch" / "arm.py"]
    injected += [path for path in FILES if {"inject", "adapters", "attach", "experiments"} & set(path.parts)]
    assert len(injected) > 20
    for path in injected:
        ast.parse(path.read_text(encoding="utf-8"), str(path), feature_version=OLDEST)
    with pytest.raises(SyntaxError):
        ast.parse("try: ...\nexcept* OSError: ...", feature_version=OLDEST)


def test_there_are_sources():
    assert len(FILES) > 20


def test_each_check_catches_its_fault():
    long = ast.parse("def f():\n" + "    x = 1\n" * FUNCTION_LINES)
    assert long_functions(long) == ["f: 41 lines"]
    assert long_functions(ast.parse("def f():\n" + "    x = 1\n" * (FUNCTION_LINES - 1))) == []
    assert prints(ast.parse("def f():\n  print(1)")) == [2]
    assert vague_names(Path("run_utils.py"), ast.parse("class StepManager: ...")) == {"utils", "manager"}
    assert framework_imports_at_import_time(ast.parse("try:\n  import torch.nn\nexcept ImportError: ...")) == {"torch"}
    assert framework_imports_at_import_time(ast.parse("class A:\n  from trl import x")) == {"trl"}
    assert framework_imports_at_import_time(ast.parse("def f():\n  import torch")) == set()


def test_rooms_look_down_never_up():
    command = [sys.executable, "-c", "from importlinter.cli import lint_imports_command; lint_imports_command()"]
    checked = subprocess.run([*command, "--no-cache"], cwd=ROOT, capture_output=True, text=True, check=False)
    assert checked.returncode == 0, checked.stdout + checked.stderr
    assert "KEPT" in checked.stdout
