"""When NCCL is given gin's RMA plugin, and when what the user chose stands."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from gin.backends.nccl_gin import plugin


@pytest.fixture(autouse=True)
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A plugin, and a home without NCCL's settings."""
    monkeypatch.setattr(plugin, "path", lambda: tmp_path / plugin.NAME)
    monkeypatch.setenv("HOME", str(tmp_path))
    for name in [name for name in os.environ if name.startswith("NCCL_")]:
        monkeypatch.delenv(name)
    return tmp_path / plugin.NAME


class Ranks:
    """An exchange with ranks that answer what is given."""

    def __init__(self, *others: str) -> None:
        self.others = others

    def gather(self, tag: str, make: Callable[[], Any]) -> list[Any]:
        return [make(), *self.others]


@pytest.fixture(autouse=True)
def no_nics(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plugin, "_nics", list)


def test_is_named_where_nothing_speaks_against_it(installed: Path) -> None:
    assert plugin.choose(Ranks(""), 2, 2) == ""
    assert os.environ[plugin.VARIABLE] == str(installed)
    assert plugin.choose(Ranks(""), 2, 2) == ""  # its own value is not the user's
    del os.environ[plugin.VARIABLE]


@pytest.mark.parametrize(
    "setting",
    [
        "NCCL_RMA_PLUGIN=other",
        "NCCL_RMA_PLUGIN=none",
        "NCCL_GIN_ENABLE=0",
        "NCCL_GIN_TYPE=3",
        "NCCL_GIN_PLUGIN=libx.so",
        "NCCL_NET_PLUGIN=ofi",
        "NCCL_RMA_DISABLE=1",
    ],
)
def test_what_the_user_chose_stands(setting: str, monkeypatch: pytest.MonkeyPatch) -> None:
    name, value = setting.split("=")
    monkeypatch.setenv(name, value)
    assert plugin.choose(Ranks(""), 2, 2) == f"{setting} is set on rank 0"
    assert os.environ.get(plugin.VARIABLE) == (value if name == plugin.VARIABLE else None)


@pytest.mark.parametrize(
    "setting", ["NCCL_GIN_ENABLE=1", "NCCL_GIN_TYPE=2", "NCCL_GIN_TYPE=-1", "NCCL_NET_PLUGIN=none"]
)
def test_what_leaves_the_choice_open(setting: str) -> None:
    name, value = setting.split("=")
    assert plugin.obstacle({name: value}, nics=[]) == ""


def test_a_file_of_the_user_stands(tmp_path: Path) -> None:
    file = tmp_path / ".nccl.conf"
    file.write_text("# mine\nNCCL_DEBUG=WARN\nNCCL_RMA_PLUGIN = libmine.so  # the lab's\n")
    assert plugin.obstacle({}, nics=[]) == f"NCCL_RMA_PLUGIN=libmine.so (in {file}) is set"
    other = tmp_path / "other.conf"
    other.write_text("NCCL_GIN_TYPE=3\n")
    assert plugin.obstacle({"NCCL_CONF_FILE": str(other)}, nics=[]) == f"NCCL_GIN_TYPE=3 (in {other}) is set"
    assert plugin.obstacle({"NCCL_RMA_PLUGIN": "x"}, nics=[]) == "NCCL_RMA_PLUGIN=x is set"  # the variable wins


def test_with_a_nic_nccl_chooses() -> None:
    assert "mlx5_0, mlx5_1" in plugin.obstacle({}, nics=["mlx5_1", "mlx5_0"])


def test_all_ranks_or_none() -> None:
    assert plugin.choose(Ranks("", "", "NCCL_GIN_TYPE=3 is set"), 4, 4) == "NCCL_GIN_TYPE=3 is set on rank 3"
    assert plugin.choose(Ranks(""), 1, 2) == "the ranks are on several hosts"
    assert plugin.VARIABLE not in os.environ


def test_taken_back_when_another_job_cannot_use_it(installed: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(plugin.VARIABLE, str(installed))
    assert plugin.choose(Ranks("no"), 2, 2) == "no on rank 1"
    assert plugin.VARIABLE not in os.environ


def test_a_build_without_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plugin, "path", lambda: None)
    assert "was not built" in plugin.obstacle({}, nics=[])


def test_a_path_that_nccl_would_not_take(monkeypatch: pytest.MonkeyPatch) -> None:
    loaded: list[str] = []
    monkeypatch.setattr(plugin.ctypes, "CDLL", loaded.append)
    for folder in ("/" + "x" * 250, "/a,b"):
        monkeypatch.setattr(plugin, "path", lambda folder=folder: Path(folder, plugin.NAME))
        assert plugin.choose(Ranks(), 1, 1) == ""
        assert os.environ.pop(plugin.VARIABLE) == plugin.NAME  # found by name: it is loaded already
        assert loaded.pop() == str(Path(folder, plugin.NAME))
