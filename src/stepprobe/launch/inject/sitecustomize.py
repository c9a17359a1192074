"""Put first on PYTHONPATH by ``stepprobe run``: runs the sitecustomize that it hides, then arms the instrument.

It finds stepprobe by its own place, not by sys.path: the script's Python may be another one, without our dependencies.
It must never break the user's process: every failure becomes one line on standard error.
"""

import os
import sys


def _run_hidden(here: str) -> None:
    """Run the sitecustomize that would have run without us, found as the interpreter would have found it."""
    import importlib.machinery
    import importlib.util

    path = [entry for entry in sys.path if os.path.abspath(entry or os.curdir) != here]
    spec = importlib.machinery.PathFinder.find_spec("sitecustomize", path)
    if spec is not None and spec.loader is not None:
        module = importlib.util.module_from_spec(spec)
        sys.modules["sitecustomize"] = module
        spec.loader.exec_module(module)


def _arm(package: str, folder: str) -> None:
    import importlib.util

    if "stepprobe" not in sys.modules:
        init = os.path.join(package, "__init__.py")
        spec = importlib.util.spec_from_file_location("stepprobe", init, submodule_search_locations=[package])
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        sys.modules["stepprobe"] = module
        spec.loader.exec_module(module)
    from stepprobe.launch import arm

    arm.arm(folder)


def _main() -> None:
    here = os.path.dirname(os.path.abspath(__file__))
    try:
        _run_hidden(here)
    finally:  # what the user's own sitecustomize raises is theirs to see, as it would be without us
        folder = os.environ.get("STEPPROBE_RUN")
        if folder:
            try:
                _arm(os.path.dirname(os.path.dirname(here)), folder)
            except Exception as error:
                print(f"stepprobe: could not attach, the script runs unobserved: {error!r}", file=sys.stderr)


_main()
