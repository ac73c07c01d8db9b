"""What a backend can do as configured: its own capabilities less what the platform, the wire or the route lacks."""

from __future__ import annotations

import pytest

import gin
from gin import backends
from gin.cli import found, info
from gin.config import Config


def config(backend: str, platform: str, wire: str, route: str) -> Config:
    return Config.from_sources(backend=backend, platform=platform, wire=wire, route=route)


def test_copy_engines_have_no_atomics_where_all_goes_by_them():
    native = config("ibrc_proxy", "cuda", "cuda", "native")
    assert backends.capabilities("ibrc_proxy")["atomics"] and not backends.effective(native)["atomics"]
    with pytest.raises(gin.UnsupportedError, match=r"ibrc_proxy cannot do 'atomics' on platform cuda .*route=auto"):
        backends.require(native, ["quiet", "atomics"])
    for able in (config("ibrc_proxy", "cuda", "cuda", "auto"), config("ibrc_proxy", "host", "shm", "native")):
        backends.require(able, ["quiet", "atomics"])


@pytest.mark.parametrize("backend", ["ibrc_proxy", "nvshmem"])
def test_atomics_of_two_nics_are_not_atomic_with_each_other(backend):
    several = Config.from_sources(backend=backend, platform="host", wire="verbs", ib_nics=2)
    assert not backends.effective(several)["atomics"]
    assert backends.lacking_macros(several) == ("GIN_LACKS_ATOMICS=1",)
    with pytest.raises(gin.UnsupportedError, match=r"'atomics' on platform host with ib_nics=2: .*use ib_nics=1"):
        backends.require(several, ["atomics"])
    for able in ({"wire": "verbs"}, {"wire": "shm", "ib_nics": 2}):
        backends.require(Config.from_sources(backend=backend, platform="host", **able), ["atomics"])


def test_nccl_registers_no_arrays_on_gpus():
    with pytest.raises(gin.UnsupportedError, match="nccl_gin cannot do 'register_memory' on platform cuda"):
        backends.require(config("nccl_gin", "cuda", "cuda", "auto"), ["register_memory"])
    backends.require(config("nccl_gin", "host", "shm", "auto"), ["register_memory"])


def test_what_else_has_a_capability_has_it_there():
    on_gpus, here = config("nvshmem", "cuda", "cuda", "auto"), config("nvshmem", "host", "shm", "auto")
    assert backends.others_with("register_memory", on_gpus) == ["ibrc_proxy"]
    assert backends.others_with("register_memory", here) == ["nccl_gin", "ibrc_proxy"]
    assert backends.others_with("atomics", config("nvshmem", "cuda", "cuda", "native")) == []
    with pytest.raises(gin.UnsupportedError, match=r"cannot do 'register_memory'; ibrc_proxy can$"):
        backends.require(on_gpus, ["register_memory"])


def test_gin_info_says_what_a_backend_lacks_and_on_which_platform():
    platforms = [found.State("host", True), found.State("cuda", True)]
    both = found._backend(Config.from_sources(), "nccl_gin", platforms)
    told = info._verdict(vars(both) | both.more)
    assert told.endswith("uneven_windows, register_memory (not on cuda)") and "atomics" not in told
    alone = found._backend(Config.from_sources(platform="cuda", route="native"), "ibrc_proxy", platforms[1:])
    assert "atomics" in alone.more["lacking"]["cuda"] and "atomics" not in info._verdict(vars(alone) | alone.more)
    assert found._backend(Config.from_sources(wire="shm"), "nvshmem", platforms).more["lacking"] == {
        "host": {},
        "cuda": {},
    }


@pytest.mark.parametrize("backend", backends.NAMES)
@pytest.mark.parametrize(("platform", "wire"), [("host", "shm"), ("sim", "sim"), ("cuda", "cuda")])
def test_nothing_is_added_by_configuration(backend, platform, wire):
    own, here = backends.capabilities(backend), backends.effective(config(backend, platform, wire, "native"))
    assert set(own) == set(here) and all(own[name] for name in here if here[name])
