"""The machine, the interpreter and the settings under which a measurement was taken."""

import os
import platform
import re
import time
from pathlib import Path

from stepprobe import __version__

_SETTINGS = re.compile(
    r"(OMP|MKL|OPENBLAS|NUMEXPR)_NUM_THREADS|(CUDA|HIP|ROCR)_VISIBLE_DEVICES|CUDA_LAUNCH_BLOCKING|CUBLAS_WORKSPACE_CONFIG"
    r"|TOKENIZERS_PARALLELISM|HF_HUB_OFFLINE|PYTHON(HASHSEED|UNBUFFERED|OPTIMIZE|MALLOC)|WORLD_SIZE"
    r"|(PYTORCH|TORCH|TORCHINDUCTOR|TORCHDYNAMO|NCCL|GLOO|ACCELERATE|KMP|MALLOC)_\w+"
)
"""Environment variables that change speed; no other variable is ever recorded."""

_SECRET = re.compile(r"KEY|SECRET|PASSW|CREDENTIAL|(?<!NIZERS_)TOKEN(?!IZER)|AUTH")


def environment() -> dict[str, str]:
    """Return versions, machine and settings by name; what this machine does not tell is absent."""
    found = {
        "stepprobe": __version__,
        "python": f"{platform.python_version()} ({platform.python_implementation()})",
        "platform": platform.platform(),
        "started": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "cpu.model": _first(Path("/proc/cpuinfo"), r"^model name\s*:\s*(.+)$") or platform.machine(),
        "cpu.count": str(os.cpu_count() or ""),
        "cpu.usable": _usable_cpus(),
        "cpu.load": _load(),
        "memory.total": _first(Path("/proc/meminfo"), r"^MemTotal:\s*(.+)$"),
        **{f"env.{name}": value for name, value in sorted(os.environ.items()) if _is_setting(name)},
    }
    return {name: value for name, value in found.items() if value}


def _is_setting(name: str) -> bool:
    return _SETTINGS.fullmatch(name) is not None and _SECRET.search(name) is None


def _first(path: Path, pattern: str) -> str:
    try:
        match = re.search(pattern, path.read_text(errors="replace"), re.MULTILINE)
    except OSError:
        return ""
    return match[1].strip() if match else ""


def _usable_cpus() -> str:
    return str(len(os.sched_getaffinity(0))) if hasattr(os, "sched_getaffinity") else ""


def _load() -> str:
    try:
        return " ".join(f"{load:.2f}" for load in os.getloadavg())
    except OSError:
        return ""
