"""The CPU proxy on GPUs, as far as one sees it without: which memory it maps, and what it tells the wire in what order."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

import gin
from gin import _core
from gin.backends import device_memory
from gin.backends.base import Job
from gin.backends.ibrc_proxy import cuda
from gin.config import Config
from gin.platforms.cuda_memory import require_rdma

HERE, THERE = "this host", "another host"


class World:
    """Rank 0 of a job whose other ranks only answer, on a GPU, a wire and a proxy that note what they are asked."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, hosts: list[str], wire: str, **settings: Any) -> None:
        self.calls: list[tuple[Any, ...]] = []
        self.hosts, self.without_access = hosts, set[int]()
        self.refusal = gin.Error("peer access is not supported")
        self.lost = self.record = None
        self.failing = ""  # a step that another rank does not take
        gpu = SimpleNamespace(bus_id="0000:17:00.0", ordinal=0, name="GPU", enter=lambda: None)
        gpu.copy_in = lambda address, data: None
        gpu.require_own, gpu.stuck = lambda address: self.calls.append(("own", address)), False
        gpu.order_copies = lambda address: self.calls.append(("order copies", address))
        platform: Any = SimpleNamespace(gpu=gpu, device_code=None, losses=None, lost=None, idle=True, unshared=set())
        platform.words = lambda: {"record": 8, "failed": 16}
        platform.read_record = lambda: self.record
        self.platform = platform
        self._address = 1 << 21
        for name, made in {
            "DeviceMemory": self._memory,
            "PeerMemory": self._mapping(),
            "PinnedMemory": lambda gpu, nbytes, address=0, owner=None: SimpleNamespace(address=address, owner=owner),
            "export": lambda gpu, address: self.calls.append(("export", address)) or {"rank": 0},
            "require_rdma": lambda gpu: self.calls.append(("require rdma",)),
            "connect": lambda job, fabric: self.calls.append(("connect",)),
        }.items():
            monkeypatch.setattr(cuda, name, made)
        monkeypatch.setattr(device_memory, "DeviceMemory", self._memory)
        monkeypatch.setattr(_core, "Fabric", self._fabric)
        monkeypatch.setattr(_core, "Proxy", self._proxy)
        monkeypatch.setattr(_core, "host_id", lambda: hosts[0])
        config = Config.from_sources(backend="ibrc_proxy", platform="cuda", wire=wire, **settings)
        local = sum(host == hosts[0] for host in hosts)
        self.backend = cuda.Backend(Job(0, len(hosts), local, config, self, platform, 1))  # type: ignore[arg-type]

    # what ranks exchange
    def gather(self, tag: str, make: Any) -> list[Any]:
        mine = make()
        if tag == "hosts":
            return self.hosts
        if isinstance(mine, dict):
            others = [{**mine, "memory": {"rank": rank}, "bytes": 100 + rank} for rank in range(1, len(self.hosts))]
            return [mine, *others]
        return [mine] * len(self.hosts)

    def agree(self, tag: str, step: Any) -> None:
        step()
        if self.failing == tag:
            raise gin.RemoteError("another rank has failed")

    # what they ask
    def _memory(self, gpu: Any, nbytes: int, granule: int = 1) -> Any:
        self._address += 1 << 21
        self.calls.append(("allocate", nbytes, granule))
        return SimpleNamespace(address=self._address, nbytes=nbytes, export=lambda: {"rank": 0})

    def _mapping(world) -> type:  # noqa: N805
        class Mapped:
            def __init__(self, gpu: Any, exported: dict[str, Any]) -> None:
                self.rank = exported["rank"]
                self.address = self.rank << 40
                world.calls.append(("map", self.rank))
                if self.rank in world.without_access:
                    raise world.refusal

            def close(self) -> None:
                world.calls.append(("unmap", self.rank))

        return Mapped

    def _fabric(self, wire: str, rank: int, size: int, options: dict[str, Any]) -> Any:
        self.options = options
        fabric: Any = SimpleNamespace(max_message=1 << 30, about="mlx5_0")
        fabric.add_region = lambda *words: self.calls.append(("add", *words)) or b"key"
        fabric.import_region = lambda *words: self.calls.append(("import", *words))
        fabric.remove_region = lambda number: self.calls.append(("remove", number))
        fabric.leave = lambda seconds: self.calls.append(("leave",))
        return fabric

    def _proxy(self, *words: Any, **more: Any) -> Any:
        self.proxied = more
        proxy: Any = SimpleNamespace(memory=(4096, 4096), rings=b"rings")
        proxy.start = lambda: self.calls.append(("start",))
        proxy.stop = lambda timeout: self.calls.append(("stop",))
        return proxy

    def named(self, *names: str) -> list[tuple[Any, ...]]:
        return [call for call in self.calls if call[0] in names]


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> Any:
    return lambda *hosts, wire="verbs", **settings: World(monkeypatch, list(hosts), wire, **settings)


def test_over_rdma_this_hosts_memory_is_mapped_and_all_ranks_memory_is_on_the_wire(world):
    job = world(HERE, HERE, THERE, THERE)
    job.backend.open()
    addresses, sizes = job.backend.control.peers.T.tolist()
    assert addresses[1:] == [1 << 40, 0, 0] and sizes[1:] == [101, 102, 103]
    assert job.named("map") == [("map", 1)]
    assert job.named("add") == [("add", 0, addresses[0], job.backend.job.control_bytes)]
    assert [call[2:3] + call[4:] for call in job.named("import")] == [(0, addresses[0]), (1, 1 << 40), (2, 0), (3, 0)]
    window = job.backend.window("w", 0)
    assert [bool(address) for address in window.peers[:, 0]] == [True, True, False, False]


def test_over_rdma_signals_lie_in_the_gpus_memory(world):
    job = world(HERE, THERE)
    job.backend.open()
    assert job.proxied["signals"] == 0
    assert "GIN_IBRC_SYSTEM_SOURCES=1" in job.platform.device_code.macros
    assert job.options["gpu"] == "0000:17:00.0" and job.backend.about == "mlx5_0"
    near = world(HERE, HERE, wire="cuda")
    near.backend.open()
    assert near.proxied["signals"] != 0 and near.named("connect") == [("connect",)]
    assert "GIN_IBRC_SYSTEM_SOURCES=1" not in near.platform.device_code.macros and "gpu" not in near.options


def test_what_a_nic_reaches_is_whole_pages_and_copies_of_it_are_ordered(world):
    job = world(HERE, THERE)
    job.backend.open()
    job.backend.window("w", 100)
    wired = [call[2] for call in job.named("add")]
    assert job.named("order copies") == [("order copies", address) for address in wired]
    assert {granule for _, nbytes, granule in job.named("allocate") if nbytes == 100} == {2 << 20}


def test_connected_before_the_proxy_serves(world):
    job = world(HERE, THERE)
    job.backend.open()
    assert job.named("require rdma", "add", "connect", "start") == [
        ("require rdma",),
        *job.named("add"),
        ("connect",),
        ("start",),
    ]


def test_gpus_without_peer_access_are_reached_by_their_nics(world):
    job = world(HERE, HERE, HERE)
    job.without_access = {2}
    job.backend.open()
    assert job.backend.control.peers[:, 0].tolist()[1:] == [1 << 40, 0]
    job.backend.window("w", 8)
    assert job.named("map") == [("map", 1), ("map", 2), ("map", 1)]  # not tried again
    job.without_access = {1}
    with pytest.raises(gin.Error, match="peer access"):
        job.backend.window("w", 8)  # kernels take the way that the first region had


@pytest.mark.parametrize("error", [gin.OutOfMemoryError, gin.KernelError])
def test_what_fails_for_another_reason_is_not_taken_for_missing_access(world, error):
    job = world(HERE, HERE)
    job.without_access, job.refusal = {1}, error("something else")
    with pytest.raises(error, match="something else"):
        job.backend.open()


def test_over_copy_engines_all_ranks_are_on_one_host_and_have_peer_access(world):
    with pytest.raises(
        gin.UnsupportedError, match=r"rank 0 and ranks 1, 3 are on different hosts.*wire cuda.*wire=verbs"
    ):
        world(HERE, THERE, HERE, THERE, wire="cuda").backend.open()
    job = world(HERE, HERE, wire="cuda")
    job.without_access = {1}
    with pytest.raises(gin.Error, match="peer access"):
        job.backend.open()


def test_memory_that_atomics_do_not_reach_is_left_to_the_copy_engines(world):
    job = world(HERE, HERE, HERE, wire="cuda")
    job.platform.unshared = {1}
    job.backend.open()
    window = job.backend.window("w", 8)
    for region in (job.backend.control, window):
        assert region.peers[:, 0].tolist()[1:] == [0, 2 << 40]
    assert [call[4] for call in job.named("import")[-3:]] == [window.address, 1 << 40, 2 << 40]


def test_an_array_is_exported_where_somebody_maps_it(world):
    array = SimpleNamespace(__cuda_array_interface__={"data": (4096, False), "shape": (4,), "typestr": "<f4"})
    for hosts, wire, exported in (((HERE, HERE), "verbs", 1), ((HERE, THERE), "verbs", 0), ((HERE, HERE), "cuda", 1)):
        job = world(*hosts, wire=wire)
        job.backend.open()
        job.backend.register_array("a", array)
        assert job.named("own") == [("own", 4096)]
        assert len(job.named("export")) == exported
        assert job.named("add")[-1][2:] == (4096, 16)


def test_what_fails_elsewhere_leaves_nothing_on_the_wire(world):
    job = world(HERE, HERE, THERE)
    job.backend.open()
    job.failing = "w: map"
    job.calls.clear()
    with pytest.raises(gin.RemoteError):
        job.backend.window("w", 8)
    assert [call[1] for call in job.named("add", "remove")] == [1, 1]
    assert job.named("unmap") == [("unmap", 1)]


def test_what_a_kernel_that_does_not_end_may_reach_is_kept(world):
    job = world(HERE, HERE)
    job.backend.open()
    job.platform.gpu.stuck, job.platform.idle = True, False
    before = len(cuda.kept)
    job.backend.close(1.0)
    assert cuda.kept[before:] == [(job.backend._fabric, job.backend._proxy)]
    del cuda.kept[before:]


def test_at_its_end_it_takes_leave_and_then_deregisters_what_it_frees(world):
    job = world(HERE, HERE, THERE)
    job.backend.open()
    window = job.backend.window("w", 8)
    job.backend.regions.open(window)
    job.calls.clear()
    job.backend.close(1.0)
    assert job.calls == [("stop",), ("leave",), ("remove", 0), ("unmap", 1), ("remove", 1), ("unmap", 1)]
    job.calls.clear()
    job.record = {"code": 1}
    job.backend.close(1.0)
    assert ("leave",) not in job.calls  # nobody waits for ranks of a job that has failed


def test_what_did_not_open_closes(world):
    world(HERE, THERE).backend.close(1.0)


@pytest.mark.parametrize(
    ("dma_buf", "peermem", "ordering", "refusal"),
    [
        (1, 0, 100, ""),
        (0, 1, 200, ""),
        (0, 0, 200, "neither by dma-buf nor by nvidia-peermem"),
        (1, 1, 0, "ordering 0"),
    ],
)
def test_what_rdma_needs_of_a_gpu(dma_buf, peermem, ordering, refusal):
    pytest.importorskip("cuda.bindings", reason="cuda-bindings is not installed: it names what a GPU is asked")
    answers = {"DMA_BUF_SUPPORTED": dma_buf, "GPU_DIRECT_RDMA_SUPPORTED": peermem, "WRITES_ORDERING": ordering}
    gpu: Any = SimpleNamespace(ordinal=3, name="H9")
    gpu.attribute = lambda which: next(value for name, value in answers.items() if which.name.endswith(name))
    if not refusal:
        require_rdma(gpu)
        return
    with pytest.raises(gin.UnsupportedError, match=f"GPU 3 .H9.*{refusal}.*wire=cuda"):
        require_rdma(gpu)


def test_the_wire_is_ibrc_proxys_alone_on_gpus():
    with pytest.raises(gin.UnsupportedError, match="backend nvshmem has its own way between GPUs"):
        gin.init(backend="nvshmem", platform="cuda", wire="verbs")
