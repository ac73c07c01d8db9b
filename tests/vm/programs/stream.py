"""Rank 0 puts to rank 1 until something breaks, and says what it was.

stream.py SECONDS RANK COMMAND: gives up after so many; once puts are under way, the rank runs the command in a shell,
with its process number as $RANK_PID.
"""

import os
import subprocess
import sys
import time

import gin

SOURCE = r"""
#include <gin/gin.cuh>
extern "C" __global__ void stream(gin::Comm comm, gin::Window dst, gin::Window src, uint64_t bytes, uint64_t times) {
  gin::Context net(comm);
  for (uint64_t i = 0; i < times; ++i) net.put(gin::thread, 1, dst, 0, src, 0, bytes, gin::signal_inc{0});
  net.quiet(gin::thread);
}
extern "C" __global__ void receive(gin::Comm comm, uint64_t least) {
  gin::Context net(comm);
  net.wait(gin::thread, 0, least);
}
"""
PUTS = 16  # of one launch


def interfere(rank: int) -> None:
    if int(sys.argv[2]) == rank:
        subprocess.Popen(["bash", "-c", sys.argv[3]], env={**os.environ, "RANK_PID": str(os.getpid())})


def main() -> None:
    end = time.monotonic() + float(sys.argv[1])
    start = time.monotonic()
    try:
        with gin.init(route="native") as comm:
            dst, src = comm.window(1 << 16), comm.window(1 << 16)
            sends = comm.compile(SOURCE, "stream")
            receives = comm.compile(SOURCE, "receive")
            comm.barrier()
            if comm.rank == 1:
                receives.launch(10 * PUTS, grid=1, block=1)
                comm.synchronize()
                print("rank 1: puts are under way", flush=True)
                interfere(1)
                receives.launch(1 << 60, grid=1, block=1)
                comm.synchronize()
            launches = 0
            while comm.rank == 0 and time.monotonic() < end:
                if (launches := launches + 1) == 20:
                    interfere(0)
                start = time.monotonic()
                sends.launch(dst, src, 4096, PUTS, grid=1, block=1)
                comm.synchronize()
    except gin.Error as error:
        after = time.monotonic() - start
        print(f"{type(error).__name__} after {after:.1f} s: {error}".replace("\n", " | "), flush=True)
        sys.exit(0)
    sys.exit("nothing broke")


main()
