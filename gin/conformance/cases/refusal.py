"""Rules 7 and 8: what cannot be done is refused, by name, before it is done wrongly."""

from __future__ import annotations

import re
from functools import partial

import numpy as np

import gin
from gin.conformance.registry import case
from gin.conformance.world import World

SMALL = "2M"


@case(
    "refusal.of_capabilities",
    promise="rule 7",
    ranks=(1,),
    least=1,
    opens=True,
    situations=("NVIDIA/nccl#1963", "meta-pytorch/torchcomms#472"),
)
def of_capabilities(world: World) -> None:
    """Every capability is either met when it is required, or refused with backend and capability; others are unknown."""
    able = world.capabilities
    met = [name for name in able if able[name]]
    comm = world.open(require=met, heap=SMALL)
    world.check(all(comm.capabilities[name] for name in met), "the communicator denies a capability that was required")
    world.check(
        all(not comm.capabilities[name] for name in able if name not in met), "... or claims one that is lacking"
    )
    comm.close()
    for name in able:
        if name not in met:
            words = f"{world.backend} cannot do '{name}'"
            world.refuses(gin.UnsupportedError, words, partial(world.open, require=[*met, name]), name)
    world.refuses(gin.ConfigError, "telepathy.*quiet", lambda: world.open(require="telepathy"), "an unknown capability")
    world.refuses(gin.ConfigError, "telepathy", lambda: able["telepathy"], "an unknown capability of the list")


@case("refusal.of_registration", promise="rule 7, register", ranks=(2,), routes=("direct",), platforms=("host", "sim"))
def of_registration(world: World) -> None:
    """Memory that other ranks cannot load and store is refused where the route is direct."""
    array = np.zeros(64, np.uint8)
    world.refuses(gin.UnsupportedError, r"register_memory|route=direct", lambda: world.comm.register(array), "register")
    world.barrier()


FOURTH = r"(kernel\.cu.?4|line 4 of kernel\.cu)"  # of the kernel's source, as g++ and NVRTC say it

HEAD = "#include <gin/gin.cuh>\nstruct Big { char c[9]; };\n__global__ void kernel(gin::Comm comm, gin::Window w) {\n"


@case(
    "refusal.of_kernels",
    promise="rule 7",
    ranks=(1,),
    least=1,
    situations=("pytorch/pytorch#158167", "pytorch/pytorch#163194"),
)
def of_kernels(world: World) -> None:
    """A signal is no number, a remote pointer no window, a value no structure of 9 bytes: such kernels do not compile."""
    wrong = {
        "gin::Context(comm).put_value(0, w, 0, Big{});": "put_value takes up to 8 bytes",
        "gin::Context(comm).signal(0, 5);": FOURTH,
        "gin::Context net(comm); net.put_value(0, net.peer_pointer(w, 0, 0), 0, 5);": FOURTH,
        "gin::Context(comm).wait(0, 1);": FOURTH,
    }
    if world.comm.capabilities["atomics"]:
        wrong["gin::Context(comm).atomic_fetch_add(0, w, 0, short(1));"] = "atomics take 4 or 8 bytes"
        wrong["gin::Context(comm).atomic_fetch_add(0, w, 0, 1.0);"] = "atomics take integers"
    else:
        wrong["gin::Context(comm).atomic_fetch_add(0, w, 0, 1);"] = rf"(?=.*no atomics)(?=.*{FOURTH})"
    mine = list(wrong.items())[world.rank :: world.size]  # compiling takes long, and knows no other ranks
    for line, words in mine:
        source = HEAD + line + "\n}\n"
        world.refuses(gin.CompileError, words, partial(world.comm.compile, source, "kernel"), line)


RANGE = r"""
#include <gin/gin.cuh>
extern "C" __global__ void wrong(gin::Comm comm, gin::Window dst, gin::Window src, int kind) {
  gin::Context net(comm), strange(comm, comm.contexts);
  const uint32_t size = net.size(), peer = 1;
  const uint64_t huge = ~uint64_t(0) - 7;
  gin::Ticket ticket{};
  switch (kind) {
    case 0: return net.put(gin::block, size, dst, 0, src, 0, 8);
    case 1: return net.put(gin::block, peer, dst, 57, src, 0, 8);  // 64 bytes there
    case 2: return net.put(gin::block, peer, dst, 0, src, 121, 8);  // 128 bytes here
    case 3: return net.put(gin::block, peer, dst, huge, src, 0, 16);
    case 4: return net.put(gin::block, peer, dst, 8, src, 0, huge);
    case 5: return net.put(gin::block, peer, dst, 0, src, 0, 8, gin::signal_inc{comm.signals});
    case 6: return net.put(gin::block, peer, dst, 0, src, 0, 8, gin::none, gin::counter_inc{comm.counters});
    case 7: return strange.put(gin::block, peer, dst, 0, src, 0, 8);
    case 8: return net.put_value(peer, dst, 60, uint64_t(-1));
    case 9: return net.put_value(size, dst, 0, 1);
    case 10: return net.put_value(peer, dst, 0, 1, gin::ordered(gin::signal_add{comm.signals, 2}));
    case 11: return net.get(gin::block, peer, dst, 60, src, 0, 8);
    case 12: return net.get(gin::block, peer, dst, 0, src, 124, 8);
    case 13: return net.signal(size, gin::signal_inc{0});
    case 14: return net.signal(peer, gin::signal_inc{comm.signals});
    case 15: return strange.signal(peer, gin::signal_inc{0});
    case 16: net.wait(gin::block, comm.signals, 0); return;
    case 17: net.read(comm.signals); return;
    case 18: net.reset(comm.signals); return;
    case 19: net.epoch(comm.signals); return;
    case 20: net.wait_counter(gin::block, comm.counters, 0); return;
    case 21: net.read_counter(comm.counters); return;
    case 22: net.barrier(gin::block, {}, comm.barriers); return;
    case 23: net.barrier(gin::block, gin::Team{1, 1, 1}); return;  // not a member
    case 24: net.barrier(gin::block, gin::Team{0, 1, size + 1}); return;  // more than there are
    case 25: strange.barrier(gin::block); return;
    case 26: return net.iput(gin::block, peer, dst, 0, 16, src, 0, 16, 8, 5);  // the fifth is outside
    case 27: strange.wait(gin::block, 0, 0); return;
    case 28: strange.flush(gin::block); return;
    case 29: strange.fence(gin::block); return;
    case 30: strange.quiet(gin::block); return;
    case 31: ticket = net.flush_async(size); return;
    case 32: net.peer_pointer(dst, 0, size); return;
    case 33: net.reset_counter(comm.counters); return;
    case 34: return net.iput(gin::block, 999999, dst, 0, 8, src, 0, 8, 4, 0, gin::signal_inc{0});  // of nothing, to nobody
    case 35: return net.iput(gin::block, 999999, dst, 0, 8, src, 0, 8, 4, 2, gin::signal_inc{0});
    case 36: net.barrier(gin::block, gin::Team{0, 0, 0}); return;
    case 37: net.barrier(gin::block, gin::Team{0, 1u << 31, 3}); return;
    case 38: net.barrier(gin::block, gin::Team{1, 1, 2}); return;
  }
}
"""
ATOMIC = r"""
#include <gin/gin.cuh>
extern "C" __global__ void wrong(gin::Comm comm, gin::Window dst, gin::Window src, int kind) {
  gin::Context net(comm);
  if (kind == 0) net.atomic_fetch_add(1, dst, 64, 1);
  if (kind == 1) net.atomic_fetch_add(net.size(), dst, 0, 1);
  if (kind == 2) net.atomic_swap(1, dst, 4, uint64_t(1));  // not aligned
}
"""
KINDS = {
    "put": (0, 1, 2, 3, 4, 5, 6, 7, 26, 34, 35),
    "put_value": (8, 9, 10),
    "get": (11, 12),
    "signal": (13, 14, 15),
    "wait": (16, 17, 18, 19, 27),
    "wait_counter": (20, 21, 33),
    "barrier": (22, 23, 24, 25, 36, 37, 38),
    "flush": (28, 31),
    "fence": (29,),
    "quiet": (30,),
    "peer_pointer": (32,),
}
WRITTEN_BEFORE = 26  # earlier elements were in range


def _range_kernel(operation: str) -> str:
    """The kernel with the wrong calls of one operation: all of them take a compiler for GPUs half a minute."""
    others = "|".join(str(kind) for name, kinds in KINDS.items() if name != operation for kind in kinds)
    return re.sub(rf"^    case ({others}): .*$", "", RANGE, flags=re.MULTILINE)


def _out_of_range(world: World, source: str, kind: int, operation: str) -> None:
    """One wrong operation of rank 0 on a communicator of its own."""
    what = f"kind {kind}"
    comm = world.open(check=True, timeout="10s", heap=SMALL)
    dst, src = comm.window(128 - 64 * min(comm.rank, 1)), comm.window(128)
    src.write(np.full(128, 9, np.uint8))
    comm.barrier()
    if world.rank == 0:
        kernel = comm.compile(source, "wrong")
        kernel.launch(dst, src, kind, block=32)
        error, seconds = world.raised(comm.synchronize, what)
        world.check(isinstance(error, gin.RangeError), f"{what}: {type(error).__name__}, not RangeError")
        record = (error.record if isinstance(error, gin.Error) else None) or {}
        world.check("out of range" in str(error) and record.get("rank") == 0, f"{what}: {error}")
        world.check(record.get("operation") == operation, f"{what}: the record says {record.get('operation')}")
        world.check(seconds < 5 * world.patience, f"{what}: it took {seconds:.1f} s")
        world.equal(src.read(), 9, f"{what}: the source")
    else:
        world.refuses(gin.RemoteError, "rank 0.*out of range", lambda: _meet_for_ever(comm), what)
    if kind != WRITTEN_BEFORE or source is ATOMIC:
        world.equal(dst.read(), 0, f"{what}: the target")
    world.gather()
    comm.close()


def _meet_for_ever(comm: gin.Comm) -> None:
    while True:
        comm.barrier()


@case(
    "refusal.out_of_range",
    promise="rule 8",
    ranks=(2,),
    opens=True,
    variants={operation: {"operation": operation} for operation in KINDS},
)
def out_of_range(world: World, operation: str) -> None:
    """With checks compiled in, peers, places and ids out of range are not done, and recorded as {operation}."""
    source = _range_kernel(operation)
    for kind in KINDS[operation]:
        _out_of_range(world, source, kind, operation)


@case("refusal.atomics_out_of_range", promise="rule 8", ranks=(2,), needs=("atomics",), opens=True)
def atomics_out_of_range(world: World) -> None:
    """With checks compiled in, atomics out of range or not aligned are not done, and recorded."""
    if not world.capabilities["atomics"]:
        world.open(require="atomics")
    for kind in range(3):
        _out_of_range(world, ATOMIC, kind, "atomic")


FITS = r"""
#include <gin/gin.cuh>
extern "C" __global__ void right(gin::Comm comm, gin::Window dst, gin::Window src) {
  gin::Context net(comm, comm.contexts - 1);
  const uint32_t last = comm.signals - 1;
  net.put(gin::block, 1, dst, 56, src, 120, 8, gin::signal_inc{last}, gin::counter_inc{comm.counters - 1});
  net.put(gin::block, 1, dst, 64, src, 128, 0, gin::signal_inc{last});
  net.wait_counter(gin::block, comm.counters - 1, 1);
  net.barrier(gin::block, gin::Team{0, 1, 2}, comm.barriers - 1);
  if (net.rank() == 1) net.wait(gin::block, last, 4);
}
"""


@case(
    "refusal.of_nothing_that_fits",
    promise="rule 8",
    kernel=(FITS, "right"),
    ranks=(2,),
    most=2,
    settings={"check": True},
)
def of_nothing_that_fits(world: World) -> None:
    """The last context, signal, counter, barrier and byte are in range."""
    dst, src = world.window(128 - 64 * world.rank), world.window(128, np.full(128, 9, np.uint8))
    world.run(dst, src, block=32)
    found = dst.read()
    world.equal(np.flatnonzero(found), np.arange(56, 64) if world.rank else [], "the places that were written")
    world.equal(found[found != 0], 9, "what was written")
