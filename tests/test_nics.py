"""What `gin info` says of RDMA ports: which a rank would use, and why."""

from __future__ import annotations

from typing import Any

import pytest

import gin
from gin import _core
from gin.cli import found, info
from gin.config import Config

WHY = "shares 3 levels of PCIe with GPU"


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """The options that the wire was asked with, two cards pretended: GPUs are near the second."""
    asked: list[dict[str, Any]] = []

    def verbs_used(options: dict[str, Any]) -> list[tuple[str, str]]:
        asked.append(options)
        if options["local_rank"] == 3:
            raise gin.ConfigError("no devices for local rank 3")
        number = 1 if "gpu" in options else options["local_rank"] % 2
        return [(f"mlx5_{number} port 1", WHY)] * options.get("ib_nics", 1)

    monkeypatch.setattr(_core, "verbs_used", verbs_used)
    monkeypatch.setattr(found, "gpu_bus_ids", lambda: ["0000:17:00.0"])
    return asked


def config(**settings: Any) -> Config:
    return Config.from_sources(wire="verbs", **settings)


def test_as_many_ranks_as_can_differ_then_the_gpus(asked):
    rows = found.verbs_uses(config(), 2)
    assert [row["owner"] for row in rows] == ["local rank 0", "local rank 1", "GPU 0"]
    assert [row["ports"][0][0] for row in rows] == ["mlx5_0 port 1", "mlx5_1 port 1", "mlx5_1 port 1"]
    assert asked[2]["gpu"] == "0000:17:00.0"


def test_ranks_with_devices_of_their_own_are_all_told(asked):
    rows = found.verbs_uses(config(ib_hca="a/b/c/d"), 1)
    assert [row["owner"] for row in rows] == [*(f"local rank {rank}" for rank in range(4)), "GPU 0"]
    assert rows[3] == {"owner": "local rank 3", "ports": [], "error": "no devices for local rank 3"}
    assert info._use(rows[3]) == "local rank 3 uses none: no devices for local rank 3"


def test_many_ports_are_not_all_told(asked):
    assert len(found.verbs_uses(config(), 1000)) == found.MOST_LOCAL_RANKS + 1


def test_each_port_has_its_reason(asked):
    row = found.verbs_uses(config(ib_nics=2), 2)[0]
    assert info._use(row) == f"local rank 0 uses mlx5_0 port 1 ({WHY}); mlx5_0 port 1 ({WHY})"


@pytest.mark.parametrize("count", [0, 9, "two"])
def test_wrong_numbers_of_nics(count):
    with pytest.raises(gin.ConfigError, match="ib_nics"):
        config(ib_nics=count)


def test_a_communicator_says_what_it_uses():
    with gin.init(backend="ibrc_proxy", platform="host", wire="shm") as comm:
        assert comm.about() == "ibrc_proxy on platform host over wire shm"


def test_ports_that_are_not_asked_for_are_not_said_to_be_missing(monkeypatch):
    monkeypatch.setattr(_core, "verbs_ports", lambda options: [])
    monkeypatch.setattr(found, "nics", lambda: ["mlx5_0"])
    assert "GIN_IB_HCA" in found._verbs(config(ib_hca="mlx5_7")).reason
    monkeypatch.setattr(found, "nics", list)
    assert found._verbs(config()).reason == "the kernel shows no RDMA device"
