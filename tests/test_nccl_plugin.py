"""When NCCL is given gin's RMA plugin, and when what the user chose stands."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from gin.backends.nccl_gin import cuda, plugin
from gin.config import resolve


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


# -- the job's deadlines ----------------------------------------------------------------------------------------------


class Started(Exception):
    """NCCL would be loaded now."""


def open_backend(config: Any, monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """The plugin's variables at the moment when NCCL makes a communicator and loads the plugin."""
    found: dict[str, str] = {}

    def start(_self: Any, _uid: bytes) -> None:
        found.update({name: value for name, value in os.environ.items() if name.startswith("NCCL_RMA_GIN_")})
        raise Started

    exchange = SimpleNamespace(gather=lambda _tag, make: [make()], agree=lambda _tag, make: make())
    backend = object.__new__(cuda.Backend)
    backend.job = SimpleNamespace(config=config, exchange=exchange, local_size=1, size=1, rank=0)
    monkeypatch.setattr(cuda, "preload", lambda *_names: None)
    monkeypatch.setattr(cuda, "library", lambda _name: None)
    monkeypatch.setattr(cuda.Backend, "_check_version", lambda _self: None)
    monkeypatch.setattr(cuda.Backend, "_make_id", lambda _self: "00")
    monkeypatch.setattr(cuda.Backend, "_start", start)
    with pytest.raises(Started):
        backend.open()
    return found


@pytest.fixture
def clean(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """What the backend sets is taken back."""
    with monkeypatch.context() as patch:
        for name in ("NCCL_RMA_GIN_TIMEOUT", "NCCL_RMA_GIN_CONNECT_TIMEOUT", plugin.VARIABLE):
            patch.setenv(name, "")
            del os.environ[name]
        yield


@pytest.mark.usefixtures("clean")
def test_the_plugin_has_the_deadlines_of_its_job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "gin.toml").write_text('timeout = "3min"\n')
    config = resolve({"connect_timeout": 2.5}, {}, tmp_path)
    names = ("NCCL_RMA_GIN_TIMEOUT", "NCCL_RMA_GIN_CONNECT_TIMEOUT")
    found = open_backend(config, monkeypatch)
    assert [found.get(name) for name in names] == ["180s", "2.5s"]
    for route in ("direct", "native"):  # a second job in the process has its own
        config = resolve({"timeout": 0, "connect_timeout": "90s", "route": route}, {}, tmp_path)
        found = open_backend(config, monkeypatch)
        assert [found.get(name) for name in names] == ["never", "90s"]
