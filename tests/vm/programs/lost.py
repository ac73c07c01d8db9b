"""Rounds between all ranks, of which rank 1 ends by SIGKILL in the middle of its puts: the others go on without it.

lost.py ROUNDS: how many rounds the others go on for.
"""

from __future__ import annotations

import os
import signal
import sys
import time

import gin

SOURCE = r"""
#include <gin/gin.cuh>
// In each round every rank puts to every other that is left, and waits for what each of them has put.
extern "C" __global__ void rounds(gin::Comm comm, gin::Window dst, gin::Window src, uint64_t first, uint64_t last) {
  gin::Context net(comm);
  for (uint64_t number = first; number < last; ++number) {
    for (uint32_t peer = 0; peer < net.size(); ++peer)
      if (net.alive(peer)) net.put(gin::thread, peer, dst, 4096 * net.rank(), src, 0, 4096, gin::signal_inc{net.rank()});
    for (uint32_t peer = 0; peer < net.size(); ++peer) net.wait(gin::thread, peer, number, gin::from{peer});
    net.quiet(gin::thread);
  }
}
extern "C" __global__ void flood(gin::Comm comm, gin::Window dst, gin::Window src) {
  gin::Context net(comm);
  for (uint64_t number = 0; net.alive(net.rank()); ++number)
    net.put(gin::thread, number % net.size(), dst, 4096 * net.rank(), src, 0, 4096);
}
"""
BEFORE = 20
DEAD = 1


def main() -> None:
    with gin.init(on_peer_failure="peer", route="native") as comm:
        dst, src = comm.window(4096 * comm.size), comm.window(4096)
        rounds, flood = comm.compile(SOURCE, "rounds"), comm.compile(SOURCE, "flood")
        comm.barrier()
        rounds.launch(dst, src, 1, BEFORE)
        comm.synchronize()
        if comm.rank == DEAD:
            flood.launch(dst, src)
            time.sleep(0.3)
            os.kill(os.getpid(), signal.SIGKILL)
        start = time.monotonic()
        rounds.launch(dst, src, BEFORE, BEFORE + int(sys.argv[1]))
        comm.synchronize()
        seconds = time.monotonic() - start
        print(
            f"rank {comm.rank} lost {sorted(comm.lost)} and went on, in {seconds:.1f} s: {comm.lost[DEAD]}", flush=True
        )


if __name__ == "__main__":
    main()
