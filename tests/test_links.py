"""What `gin info` says of the way between two GPUs."""

from __future__ import annotations

from click.testing import CliRunner

from gin.cli import info, links

NEAR = {"gpus": [0, 1], "access": True, "atomics": True, "nvlink": True}
FAR = {"gpus": [0, 1], "access": False, "atomics": False, "nvlink": False}


def test_near_gpus_are_direct_and_native_goes_by_what_there_is():
    assert links.routes(NEAR, nics=False, plugin=False) == {
        "nvshmem": "direct, native",
        "nccl_gin": "direct",
        "ibrc_proxy": "direct, native over wire cuda",
    }
    assert links.routes(NEAR, nics=False, plugin=True)["nccl_gin"] == "direct, native over gin's RMA plugin"
    over = links.routes(NEAR, nics=True, plugin=True)
    assert over["nccl_gin"] == "direct, native over the NIC"
    assert over["ibrc_proxy"] == "direct, native over wire cuda or verbs"


def test_gpus_without_atomics_between_them_are_not_direct():
    assert links.routes({**NEAR, "atomics": False}, nics=False, plugin=True) == {
        "nvshmem": "native",
        "nccl_gin": "native over gin's RMA plugin",
        "ibrc_proxy": "native over wire cuda",
    }


def test_far_gpus_are_reached_by_nics():
    assert set(links.routes(FAR, nics=True, plugin=False).values()) == {"native over the NIC", "native over wire verbs"}


def test_far_gpus_without_a_nic_are_refused_with_the_remedy():
    for route in links.routes(FAR, nics=False, plugin=False).values():
        assert route.startswith("none") and "NVLink" in route


def test_a_machine_without_a_driver_has_no_links(monkeypatch):
    def absent(name: str) -> None:
        raise OSError(name)

    monkeypatch.setattr(links.ctypes, "CDLL", absent)
    assert links.links() == []


def test_info_prints_each_pair(monkeypatch):
    monkeypatch.setattr(links, "links", lambda: [NEAR, {**FAR, "gpus": [0, 2], "nvlink": None}])
    text = CliRunner().invoke(info.command).output
    assert "GPU 0 - GPU 1  NVLink, load and store with atomics" in text
    assert "GPU 0 - GPU 2  no load and store" in text and "nvshmem: direct, native" in text
