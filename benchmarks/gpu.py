"""Speed on GPUs beside what the hardware and the libraries do bare.

    gin run -n 2 benchmarks/gpu.py pingpong [FILE.json]     round trips of 8 bytes, microseconds
    gin run -n 1 benchmarks/gpu.py ring [FILE.json]         descriptors through the proxy's rings, to the null wire
    gin run -n 2 benchmarks/gpu.py bandwidth [FILE.json]    one direction, 32 MiB, by blocks, beside bare stores and the copy
                                                            engine; GIN_BACKEND=nvshmem adds the library's own put

Each line is the median of several launches; a launch's time is divided by its round trips or operations.
"""

from __future__ import annotations

import ctypes
import json
import statistics
import subprocess
import sys
import tempfile
import threading
from pathlib import Path
from typing import Any

import numpy as np

import gin

LAUNCHES = 7

COMMON = r"""
#include <gin/gin.cuh>
using gin::platform::clock_ns;
__device__ void keep(const gin::Window& out, uint64_t start) {
  static_cast<uint64_t*>(out.local())[0] = clock_ns() - start;
}
"""

# Rank 0 sends, rank 1 answers. `flags` holds a word that the peer stores to.
PINGPONG = (
    COMMON
    + r"""
extern "C" __global__ void bare(gin::Comm comm, gin::Window flags, gin::Window out, uint64_t turns,
                                uint64_t base) {
  gin::Context net(comm);
  volatile uint64_t* mine = static_cast<uint64_t*>(flags.local(0));
  volatile uint64_t* theirs = static_cast<uint64_t*>(net.peer_pointer(flags, 0, 1 - net.rank()));
  net.barrier(gin::thread);
  const uint64_t start = clock_ns();
  for (uint64_t turn = base + 1; turn <= base + turns; ++turn) {
    if (net.rank() == 0) *theirs = turn;
    while (*mine < turn) {}
    if (net.rank() == 1) *theirs = turn;
  }
  keep(out, start);
}
""",
    COMMON
    + r"""
extern "C" __global__ void bare_release(gin::Comm comm, gin::Window flags, gin::Window out, uint64_t turns,
                                        uint64_t base) {
  gin::Context net(comm);
  uint64_t* mine = static_cast<uint64_t*>(flags.local(0));
  uint64_t* theirs = static_cast<uint64_t*>(net.peer_pointer(flags, 0, 1 - net.rank()));
  net.barrier(gin::thread);
  const uint64_t start = clock_ns();
  for (uint64_t turn = base + 1; turn <= base + turns; ++turn) {
    if (net.rank() == 1) while (gin::impl::load_acquire(mine) < turn) {}
    theirs[8] = turn;
    cuda::atomic_ref<uint64_t, cuda::thread_scope_system>(*theirs).store(turn, cuda::memory_order_release);
    if (net.rank() == 0) while (gin::impl::load_acquire(mine) < turn) {}
  }
  keep(out, start);
}
""",
    COMMON
    + r"""
extern "C" __global__ void gin_put(gin::Comm comm, gin::Window flags, gin::Window out, uint64_t turns,
                                   uint64_t base) {
  gin::Context net(comm);
  net.barrier(gin::block);
  const uint64_t before = net.epoch(0), start = clock_ns();
  for (uint64_t turn = 1; turn <= turns; ++turn) {
    if (net.rank() == 0) net.put(gin::block, 1, flags, 64, flags, 128, 8, gin::signal_inc{0});
    if (!net.wait(gin::block, 0, before + turn).ok()) return;
    if (net.rank() == 1) net.put(gin::block, 0, flags, 64, flags, 128, 8, gin::signal_inc{0});
  }
  if (threadIdx.x == 0) keep(out, start);
}
""",
    COMMON
    + r"""
extern "C" __global__ void gin_value(gin::Comm comm, gin::Window flags, gin::Window out, uint64_t turns,
                                     uint64_t base) {
  gin::Context net(comm);
  net.barrier(gin::thread);
  const uint64_t before = net.epoch(0), start = clock_ns();
  for (uint64_t turn = 1; turn <= turns; ++turn) {
    if (net.rank() == 0) net.put_value(1, flags, 64, turn, gin::signal_inc{0});
    if (!net.wait(gin::thread, 0, before + turn).ok()) return;
    if (net.rank() == 1) net.put_value(0, flags, 64, turn, gin::signal_inc{0});
  }
  keep(out, start);
}
""",
)

NVSHMEM = (
    COMMON
    + r"""
extern "C" __global__ void raw(gin::Comm comm, gin::Window flags, gin::Window out, uint64_t turns, uint64_t base) {
  uint64_t* signal = static_cast<uint64_t*>(flags.local(0));
  gin::Context(comm).barrier(gin::block);
  const uint64_t start = clock_ns();
  for (uint64_t turn = base + 1; turn <= base + turns; ++turn) {
    if (comm.rank == 0) {
      nvshmemx_putmem_signal_nbi_block(flags.local(64), flags.local(128), 8, signal, turn, NVSHMEM_SIGNAL_SET, 1);
    }
    if (threadIdx.x == 0) nvshmem_signal_wait_until(signal, NVSHMEM_CMP_GE, turn);
    __syncthreads();
    if (comm.rank == 1) {
      nvshmemx_putmem_signal_nbi_block(flags.local(64), flags.local(128), 8, signal, turn, NVSHMEM_SIGNAL_SET, 0);
    }
  }
  if (threadIdx.x == 0) keep(out, start);
}
"""
)

# Every thread sends `turns` messages; thread 0 of block 0 keeps the time to the last one's end.
RING = (
    COMMON
    + r"""
extern "C" __global__ void ring(gin::Comm comm, gin::Window flags, gin::Window out, uint64_t turns) {
  gin::Context net(comm, blockIdx.x % comm.contexts);
  const uint64_t start = clock_ns();
  for (uint64_t turn = 0; turn < turns; ++turn) net.put(gin::thread, 0, flags, 64, flags, 128, 8);
  net.flush(gin::block);
  if (threadIdx.x == 0) static_cast<uint64_t*>(out.local())[blockIdx.x] = clock_ns() - start;
}
""",
    COMMON
    + r"""
extern "C" __global__ void descriptor_round_trip(gin::Comm comm, gin::Window flags, gin::Window out, uint64_t turns) {
  gin::Context net(comm);
  const uint64_t start = clock_ns();
  for (uint64_t turn = 0; turn < turns; ++turn) {
    net.put(gin::thread, 0, flags, 64, flags, 128, 8);
    net.flush(gin::thread);
  }
  keep(out, start);
}
""",
    COMMON
    + r"""
extern "C" __global__ void pinned_round_trip(gin::Window out, volatile uint64_t* to_host, volatile uint64_t* from_host,
                                             uint64_t turns, uint64_t base) {
  const uint64_t start = clock_ns();
  for (uint64_t turn = base + 1; turn <= base + turns; ++turn) {
    *to_host = turn;
    while (*from_host < turn) {}
  }
  keep(out, start);
}
""",
)

# Every block moves its share of `bytes`.
BANDWIDTH = r"""
#include <gin/gin.cuh>
__device__ uint64_t share(uint64_t bytes) { return bytes / gridDim.x; }
extern "C" __global__ void __launch_bounds__(512)
    bare_stores(gin::Comm comm, gin::Window dst, gin::Window src, uint64_t bytes) {
  constexpr uint32_t unroll = 8;
  auto* to = static_cast<uint4*>(gin::Context(comm).peer_pointer(dst, blockIdx.x * share(bytes), 1));
  auto* from = static_cast<const uint4*>(src.local(blockIdx.x * share(bytes)));
  for (uint64_t at = threadIdx.x; at < share(bytes) / 16; at += unroll * blockDim.x) {
    uint4 held[unroll];
#pragma unroll
    for (uint32_t i = 0; i < unroll; ++i) held[i] = from[at + i * blockDim.x];
#pragma unroll
    for (uint32_t i = 0; i < unroll; ++i) to[at + i * blockDim.x] = held[i];
  }
}
extern "C" __global__ void __launch_bounds__(512)
    gin_put(gin::Comm comm, gin::Window dst, gin::Window src, uint64_t bytes) {
  gin::Context net(comm, blockIdx.x % comm.contexts);
  net.put(gin::block, 1, dst, blockIdx.x * share(bytes), src, blockIdx.x * share(bytes), share(bytes));
  net.flush(gin::block);
}
"""

NVSHMEM_BANDWIDTH = r"""
#include <gin/gin.cuh>
extern "C" __global__ void __launch_bounds__(512)
    raw(gin::Comm comm, gin::Window dst, gin::Window src, uint64_t bytes) {
  const uint64_t share = bytes / gridDim.x;
  nvshmemx_putmem_nbi_block(dst.local(blockIdx.x * share), src.local(blockIdx.x * share), share, 1);
  if (threadIdx.x == 0) nvshmem_quiet();
}
"""

ECHO = r"""
#include <cstdint>
extern "C" void echo(const uint64_t* from, uint64_t* to, uint64_t last) {
  for (uint64_t seen = 0; seen < last;) {
    seen = __atomic_load_n(from, __ATOMIC_ACQUIRE);
    __atomic_store_n(to, seen, __ATOMIC_RELEASE);
  }
}
"""


def emit(results: dict[str, Any], path: str | None) -> None:
    print(json.dumps(results, indent=1), flush=True)
    if path:
        Path(path).write_text(json.dumps(results, indent=1) + "\n")


def pingpong(path: str | None) -> None:
    import os

    turns = int(os.environ.get("TURNS", "2000"))
    results: dict[str, Any] = {}
    with gin.init(platform="cuda") as comm:
        flags, out = comm.window(4096), comm.window(64)
        names = ["bare", "bare_release", "gin_put", "gin_value"]
        cases = [(source, name, 1) for source, name in zip(PINGPONG, names, strict=True)]
        cases.append((PINGPONG[2], "gin_put", 32))
        if comm.backend == "nvshmem":
            cases.append((NVSHMEM, "raw", 32))
        for source, name, threads in cases:
            if name.startswith("bare") and comm.config.route == "native":
                continue
            kernel, times, base = comm.compile(source, name), [], 0
            flags.write(np.zeros(4096, np.uint8))
            for _ in range(LAUNCHES):
                comm.barrier()
                kernel.launch(flags, out, turns, base, block=threads)
                comm.synchronize()
                times.append(int(out.read(np.uint64)[0]) / turns / 1e3)
                base += turns
            results[f"{name} {threads} threads"] = {
                "median_us": round(statistics.median(times), 3),
                "min_us": round(min(times), 3),
                "max_us": round(max(times), 3),
            }
        where = {"backend": comm.backend, "routes": comm.routes(), "turns": turns}
        if comm.rank == 0:
            emit({**where, "round_trips": results}, path)


def pinned_flag(comm: Any, out: Any, turns: int) -> list[float]:
    """A word to the CPU and a word back, both in pinned host memory."""
    from gin.platforms.cuda_memory import PinnedMemory

    words = PinnedMemory(comm._platform.gpu, 4096)
    kernel = comm.compile(RING[2], "pinned_round_trip")
    with tempfile.TemporaryDirectory() as scratch:
        source, made = Path(scratch, "echo.cpp"), Path(scratch, "echo.so")
        source.write_text(ECHO)
        subprocess.run(["g++", "-O2", "-shared", "-fPIC", str(source), "-o", str(made)], check=True)
        echo = ctypes.CDLL(str(made)).echo
    echo.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_uint64]
    thread = threading.Thread(target=echo, args=(words.address, words.address + 2048, LAUNCHES * turns))
    thread.start()
    times = []
    for launch in range(LAUNCHES):
        kernel.launch(out, words.address, words.address + 2048, turns, launch * turns)
        comm.synchronize()
        times.append(int(out.read(np.uint64)[0]) / turns / 1e3)
    thread.join()
    return times


def ring(path: str | None) -> None:
    results: dict[str, Any] = {}
    with gin.init(platform="cuda", backend="ibrc_proxy", wire="null", route="native") as comm:
        flags, out = comm.window(4096), comm.window(4096)
        rate = comm.compile(RING[0], "ring")
        for blocks, threads in [(1, 1), (1, 32), (1, 256), (4, 32), (4, 256), (32, 128)]:
            turns = 20000 if blocks * threads == 1 else max(50, 200000 // (blocks * threads))
            rates = []
            for _ in range(LAUNCHES):
                kernel_args = (flags, out, turns)
                rate.launch(*kernel_args, grid=blocks, block=threads)
                comm.synchronize()
                longest = int(out.read(np.uint64)[:blocks].max())
                rates.append(turns * blocks * threads / longest * 1e3)
            results[f"{blocks} blocks x {threads} threads, Mop/s"] = round(statistics.median(rates), 3)
        trip, times = comm.compile(RING[1], "descriptor_round_trip"), []
        for _ in range(LAUNCHES):
            trip.launch(flags, out, 2000)
            comm.synchronize()
            times.append(int(out.read(np.uint64)[0]) / 2000 / 1e3)
        bare = pinned_flag(comm, out, 2000)
        results["descriptor round trip, us"] = round(statistics.median(times), 3)
        results["pinned flag round trip, us"] = round(statistics.median(bare), 3)
        results["ratio"] = round(statistics.median(times) / statistics.median(bare), 3)
        emit(results, path)


def copy_engine(stream: Any, target: int, source: int, nbytes: int) -> None:
    from gin.platforms.cuda_memory import check, driver

    check(driver().cuMemcpyDtoDAsync(target, source, nbytes, stream.ptr), "copying")


def bandwidth(path: str | None) -> None:
    import cupy

    nbytes, repeats = 32 << 20, 20
    results: dict[str, Any] = {}
    with gin.init(platform="cuda") as comm:
        dst, src = comm.window(nbytes), comm.window(nbytes)
        kernels = {name: comm.compile(BANDWIDTH, name) for name in ("bare_stores", "gin_put")}
        if comm.backend == "nvshmem":
            kernels["raw"] = comm.compile(NVSHMEM_BANDWIDTH, "raw")
        if comm.config.route == "native":
            del kernels["bare_stores"]
        stream = cupy.cuda.Stream(non_blocking=True)

        def rate(go: Any) -> float:
            times = []
            for launch in range(LAUNCHES + 1):
                start, end = cupy.cuda.Event(), cupy.cuda.Event()
                start.record(stream)
                for _ in range(repeats):
                    go()
                end.record(stream)
                end.synchronize()
                if launch:
                    times.append(cupy.cuda.get_elapsed_time(start, end) / repeats)
            comm.synchronize()
            return round(nbytes / statistics.median(times) / 1e6, 1)

        comm.barrier()
        if comm.rank == 0:
            there = int(dst.region.peers[1][0])
            if there:
                results["copy engine"] = rate(lambda: copy_engine(stream, there, src.address, nbytes))
            for blocks in (1, 2, 8, 16, 32):
                for name, kernel in kernels.items():
                    results[f"{name} {blocks} x 512"] = rate(
                        lambda kernel=kernel, blocks=blocks: kernel.launch(
                            dst, src, nbytes, grid=blocks, block=512, stream=stream
                        )
                    )
            emit({"backend": comm.backend, "routes": comm.routes(), "bytes": nbytes, "GB_per_s": results}, path)
        comm.barrier()


if __name__ == "__main__":
    {"pingpong": pingpong, "ring": ring, "bandwidth": bandwidth}[sys.argv[1]](
        sys.argv[2] if len(sys.argv) > 2 else None
    )
