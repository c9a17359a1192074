import os
import platform

import pytest

from stepprobe.instruments import environment as room
from stepprobe.instruments.environment import environment


def test_what_matters_for_speed_is_recorded(monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    monkeypatch.setenv("PYTORCH_ALLOC_CONF", "expandable_segments:True")
    monkeypatch.setenv("TOKENIZERS_PARALLELISM", "false")
    found = environment()
    assert found["python"].startswith(platform.python_version())
    assert found["cpu.count"] == str(os.cpu_count())
    assert found["env.OMP_NUM_THREADS"] == "3"
    assert found["env.PYTORCH_ALLOC_CONF"] == "expandable_segments:True"
    assert found["env.TOKENIZERS_PARALLELISM"] == "false"


@pytest.mark.parametrize(
    "name",
    ["HF_TOKEN", "WANDB_API_KEY", "PATH", "HOME", "USER", "TORCH_HUB_TOKEN", "NCCL_SECRET", "ACCELERATE_PASSWORD"],
)
def test_nothing_else_of_the_users_environment_is(monkeypatch, name):
    monkeypatch.setenv(name, "do-not-record")
    assert "do-not-record" not in environment().values()


def test_a_machine_without_proc_says_what_it_can(monkeypatch, tmp_path):
    monkeypatch.setattr(room, "Path", lambda name: tmp_path / name.lstrip("/"))
    found = environment()
    assert found["cpu.model"] == platform.machine()
    assert "memory.total" not in found
    assert all(found.values())
