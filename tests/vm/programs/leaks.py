"""Opens and closes communicators over and over, and counts what this process holds of the device and the system.

leaks.py TIMES [kill]: with `kill` the other ranks end by SIGKILL in the middle of puts each time, and this program, which is
rank 0 then, starts them again.
"""

from __future__ import annotations

import gc
import os
import re
import secrets
import signal
import subprocess
import sys

import gin

SOURCE = r"""
#include <gin/gin.cuh>
extern "C" __global__ void around(gin::Comm comm, gin::Window dst, gin::Window src, gin::Window word, uint64_t turns) {
  gin::Context net(comm, blockIdx.x);
  const uint32_t right = (net.rank() + 1) % net.size();
  for (uint64_t i = 0; i < turns; ++i) {
    net.put(gin::thread, right, dst, 0, src, 0, 4096, gin::signal_inc{0});
    net.get(gin::thread, right, src, 0, dst, 4096, 512);
    if (!net.wait(gin::thread, 0, i + 1)) return;
  }
  net.atomic_fetch_add(right, word, 0, 1u);
  net.quiet(gin::thread);
}
"""
FOR_EVER = 1 << 40
OBJECTS = ("qp", "mr", "cq", "pd")


def held() -> dict[str, int]:
    """What this process has open: verbs objects as the kernel counts them, files, threads."""
    gc.collect()
    found = {}
    for kind in OBJECTS:
        shown = subprocess.run(["rdma", "res", "show", kind], capture_output=True, text=True, check=False).stdout
        found[kind] = len(re.findall(rf"\bpid {os.getpid()}\b", shown))
    found["files"] = len(os.listdir("/proc/self/fd"))
    found["threads"] = len(os.listdir("/proc/self/task"))
    return found


def once(turns: int, during: dict[str, int]) -> None:
    """One communicator's life, and in `during` what was held in the middle of it."""
    with gin.init(route="native") as comm:
        dst, src, word = comm.window(8192), comm.window(8192), comm.window(8)
        kernel = comm.compile(SOURCE, "around")
        comm.barrier()
        kernel.launch(dst, src, word, turns, grid=comm.config.contexts, block=1)
        if turns == FOR_EVER and comm.rank != 0:
            os.kill(os.getpid(), signal.SIGKILL)
        during.update(held())
        comm.synchronize()


def survive(turn: int, during: dict[str, int]) -> None:
    """A communicator whose other rank, started for it, is killed in the middle of puts."""
    where = {"GIN_RENDEZVOUS": f"unix:@gin-leaks-{os.getpid()}-{turn}", "GIN_JOB_SECRET": secrets.token_hex(16)}
    code = f"import leaks; leaks.once({FOR_EVER}, {{}})"
    environment = {**os.environ, **where, "GIN_RANK": "1", "GIN_SIZE": "2"}
    with subprocess.Popen([sys.executable, "-c", code], env=environment, cwd=os.path.dirname(__file__)) as other:
        try:
            os.environ.update(where, GIN_RANK="0", GIN_SIZE="2")
            once(FOR_EVER, during)
        except gin.Error as error:
            print(f"{type(error).__name__}: {error}".replace("\n", " | "), flush=True)
        finally:
            other.kill()


def life(turn: int, kills: bool, during: dict[str, int]) -> None:
    if kills:
        survive(turn, during)
    else:
        once(10, during)


def main() -> None:
    times, kills, during = int(sys.argv[1]), sys.argv[2:] == ["kill"], dict[str, int]()
    start = held()
    life(0, kills, during)  # loads libraries, starts what stays
    before = held()
    for turn in range(1, times):
        life(turn, kills, during)
    after = held()
    words = (
        f"{times} communicators: {start} at the start, {during} during, {before} after the first, {after} at the end"
    )
    print(f"rank {os.environ.get('GIN_RANK', '0')}: {words}", flush=True)
    left = {kind: after[kind] for kind in OBJECTS if after[kind]}
    grown = {kind: after[kind] - before[kind] for kind in after if after[kind] > before[kind]}
    sys.exit(f"left: {left}, more than after the first: {grown}" if left or grown else 0)


if __name__ == "__main__":
    main()
