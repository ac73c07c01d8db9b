"""NCCL on GPUs, through nccl4py: a registered window per allocation, of its own size on each rank.

Where there is no RDMA NIC, NCCL's GIN runs on gin's RMA plugin (plugin.py). Where NCCL finds no transport for GIN at all,
only loads and stores between GPUs remain: routes are direct then, and native is refused.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Mapping
from typing import Any

from gin.backends.base import Job, Region
from gin.backends.device_memory import CudaBackend, loaded_library, preload, within
from gin.backends.nccl_gin import plugin
from gin.config import Config
from gin.errors import ConfigError, OutOfMemoryError, UnsupportedError
from gin.platforms.cuda_compile import DeviceCode
from gin.platforms.cuda_memory import EXTRA, DeviceMemory, library
from gin.values import format_ranks

NO_REGISTER = "on GPUs, where NCCL's windows are over memory of its own allocator"
GRANULE = 4096  # bytes; what NCCL aligns windows to
STRICT = 2  # NCCL_WIN_STRICT_ORDERING


class Backend(CudaBackend):
    """One NCCL communicator, and a device communicator of it."""

    name = "nccl_gin"

    def __init__(self, job: Job) -> None:
        super().__init__(job)
        self._comm: Any = None
        self._state: DeviceMemory | None = None

    @classmethod
    def lacks(cls, config: Config) -> Mapping[str, str]:
        return {"register_memory": NO_REGISTER}

    def open(self) -> None:
        job, config = self.job, self.job.config
        preload("nccl", "libnccl.so.2")
        self._nccl = library("nccl.core")
        self._bindings = library("nccl.bindings.nccl")
        if config.share_gpu:
            os.environ.setdefault("NCCL_MULTI_RANK_GPU_ENABLE", "1")
        self._no_plugin = "route=direct needs no transport"
        if config.route != "direct":
            self._no_plugin = plugin.choose(job.exchange, job.local_size, job.size)
        plugin.hand_over(config)  # the user may have named it too
        job.exchange.agree("nccl version", self._check_version)
        uid = job.exchange.gather("nccl id", self._make_id)[0]
        job.exchange.agree("nccl start", lambda: self._start(bytes.fromhex(uid)))
        self._gin = bool(int(self._comm.gin_type))
        job.exchange.agree("nccl route", self._check_route)
        self.platform.device_code = self._device_code()
        self.control = self._share("control window", self.regions.take(), job.control_bytes, STRICT if self._gin else 0)
        job.exchange.agree("nccl device communicator", self._make_state)

    @property
    def device_state(self) -> int:
        assert self._state is not None
        return self._state.address

    def window(self, tag: str, nbytes: int) -> Region:
        _, closed = self.release_closed(tag, nbytes)
        for region in closed:
            region.keep.pop().close()
        return self._share(tag, self.regions.take(), nbytes)

    def register_array(self, tag: str, array: Any) -> Region:
        raise UnsupportedError(f"{tag}: nccl_gin cannot register memory allocated elsewhere {NO_REGISTER}")

    def close(self, timeout: float) -> None:
        comm, self._comm = self._comm, None
        if comm is None or self.platform.lost:
            return
        try:
            end = comm.destroy if self.orderly and self.platform.idle else comm.abort
            within(timeout, "nccl end", end, self.platform.gpu.enter)
        except TimeoutError:
            return

    def _check_version(self) -> None:
        loaded, needed = int(self._bindings.get_version()), int(self._bindings.DevCommRequirements().version)
        if loaded < needed:
            raise ConfigError(
                f"NCCL {loaded} is loaded from {loaded_library('libnccl.so')}, and nccl4py needs {needed} at least; "
                f"{EXTRA}, and let LD_LIBRARY_PATH not lead to an older one"
            )

    def _make_id(self) -> str:
        return bytes(self._nccl.get_unique_id().as_bytes).hex() if self.job.rank == 0 else ""

    def _start(self, uid_bytes: bytes) -> None:
        from cuda.core import Device

        gpu = self.platform.gpu

        def start() -> Any:
            Device(gpu.ordinal).set_current()
            uid = self._nccl.UniqueId.from_bytes(uid_bytes)
            return self._nccl.Communicator.init(self.job.size, self.job.rank, uid)

        self._comm = within(self.job.config.connect_timeout, "nccl start", start, gpu.enter)
        if not self._comm.properties.device_api_support:
            raise UnsupportedError("NCCL says that this machine does not support its device API (GPU memory by cuMem)")

    def _check_route(self) -> None:
        if self.job.config.route == "native" and not self._gin:
            raise UnsupportedError(
                "nccl_gin cannot take route=native here: NCCL finds no transport for GIN (no RDMA NIC with GPUDirect, "
                f"and {self._plugin_state()}); use route=direct, or another backend; NCCL_DEBUG=INFO shows what NCCL tried"
            )
        if not self._gin and self.platform.unshared:
            raise UnsupportedError(
                "nccl_gin reaches not every rank here: NCCL finds no transport for GIN, and atomics do not reach the GPUs "
                f"of {format_ranks(sorted(self.platform.unshared))}, which are joined by PCIe"
            )
        if not self._gin and self._comm.properties.n_lsa_teams != 1:
            raise UnsupportedError(
                "nccl_gin reaches no rank that is not load/store accessible here: NCCL finds no transport for GIN, and the "
                f"ranks form {self._comm.properties.n_lsa_teams} groups of GPUs that reach one another"
            )

    def _plugin_state(self) -> str:
        if self._no_plugin:
            return f"gin's RMA plugin is not used: {self._no_plugin}"
        return f"gin's RMA plugin {os.environ[plugin.VARIABLE]} was not taken"

    def _share(self, tag: str, number: int, nbytes: int, flags: int = 0) -> Region:
        """Allocates this rank's part of a window and registers it. Collective."""
        step = self.job.exchange
        size = max(GRANULE, -(-nbytes // GRANULE) * GRANULE)
        made: list[Any] = []

        def allocate() -> int:
            self.platform.gpu.enter()
            try:
                made.append(self._nccl.mem_alloc(size))
            except Exception as error:
                raise OutOfMemoryError(f"{tag}: NCCL cannot allocate {size} bytes of GPU memory: {error}") from None
            self.platform.gpu.fill(int(made[0].handle), size)
            return nbytes

        sizes = step.gather(f"{tag}: allocate", allocate)

        def register() -> None:
            self.platform.gpu.enter()
            window = self._comm.register_window(made[0], self._nccl.WindowFlag(flags))
            if not window.handle:
                raise UnsupportedError(f"{tag}: NCCL registers no windows on this machine")
            peers = [(window.get_peer_device_pointer(rank) or 0, bytes_) for rank, bytes_ in enumerate(sizes)]
            address = int(made[0].handle)
            peers[self.job.rank] = (address, nbytes)
            keep = [made[0], window]
            made.append(self.make_region(number, address, nbytes, peers, handle=window.handle, keep=keep))

        step.agree(f"{tag}: register", register)
        region: Region = made[1]
        return region

    def _make_state(self) -> None:
        """gin::nccl::State."""
        job, config = self.job, self.job.config
        require = self._nccl.NCCLDevCommRequirements(gin_context_count=0)
        if self._gin:
            require = self._nccl.NCCLDevCommRequirements(
                gin_context_count=config.contexts,
                gin_exclusive_contexts=True,
                gin_signal_count=job.ids,
                gin_counter_count=config.counters,
                gin_connection_type=self._nccl.NcclGinConnectionType.FULL,
            )
        self.platform.gpu.enter()
        self._device = self._comm.create_dev_comm(require)
        if self._gin and self._device.dev_comm.gin_context_count < config.contexts:
            raise ConfigError(
                f"NCCL gives {self._device.dev_comm.gin_context_count} of {config.contexts} contexts; "
                "set GIN_CONTEXTS to less"
            )
        nbytes = int(self._bindings.dev_comm_dtype.itemsize)
        settles = config.contexts * 8
        at = -(-nbytes // 8) * 8
        self._state = DeviceMemory(self.platform.gpu, at + 16 + settles)
        words = self.control.handle.to_bytes(8, "little") + (self._state.address + at + 16).to_bytes(8, "little")
        head = ctypes.string_at(self._device.ptr, nbytes).ljust(at, b"\0") + words
        self.platform.gpu.copy_in(self._state.address, head)

    def _transports(self) -> list[str]:
        """Switches off the transports of GIN that NCCL has not chosen here: each makes kernels larger."""
        chosen = int(self._comm.gin_type)
        proxy = int(self._nccl.NcclGinType.PROXY)
        if chosen not in (0, proxy):
            return []
        return [f"NCCL_GIN_{name}_ENABLE=0" for name in ("GDAKI", "GPI", "EFA_GDA")]

    def _device_code(self) -> DeviceCode:
        """Raises ConfigError where the headers are not of the version that is loaded."""
        root = loaded_library("libnccl.so").parent.parent
        include = root / "include"
        loaded = int(self._bindings.get_version())
        found = _header_version(include / "nccl.h")
        if found != loaded or not (include / "nccl_device.h").is_file():
            raise ConfigError(
                f"NCCL {loaded} is loaded from {root}, whose headers are of version {found or 'unknown'}; kernels need the "
                "headers of the very version: install one whole nvidia-nccl-cu13"
            )
        size = int(self._bindings.dev_comm_dtype.itemsize)
        return DeviceCode(
            self.name,
            (include,),
            (f"GIN_NCCL_DEV_COMM_BYTES={size}", *self._transports()),
            version=f"nccl {loaded}",
            nvcc="NVRTC lays NCCL's packed structures out differently",
        )


def _header_version(path: Any) -> int:
    """NCCL_VERSION_CODE of a nccl.h, 0 when there is none."""
    try:
        lines = path.read_text(errors="replace").splitlines()
    except OSError:
        return 0
    return next((int(line.split()[2]) for line in lines if line.startswith("#define NCCL_VERSION_CODE")), 0)
