"""Every rank puts to its right neighbour and gets from its left one, messages of many sizes; all bytes are compared."""

import sys
import time

import numpy as np

import gin

SOURCE = r"""
#include <gin/gin.cuh>
extern "C" __global__ void exchange(gin::Comm comm, gin::Window dst, gin::Window src, gin::Window got, uint64_t bytes,
                                    uint64_t round) {
  gin::Context net(comm);
  const uint32_t right = (net.rank() + 1) % net.size(), left = (net.rank() + net.size() - 1) % net.size();
  net.put(gin::thread, right, dst, 0, src, 0, bytes, gin::signal_inc{0});
  net.wait(gin::thread, 0, round);
  net.get(gin::thread, left, src, 0, got, 0, bytes);
  net.flush(gin::thread);
}
"""
SIZES = (0, 1, 8, 65, 1000, 4096, 40000, 1 << 18)


def pattern(rank: int, nbytes: int, turn: int) -> np.ndarray:
    return (np.arange(nbytes, dtype=np.uint32) * 2654435761 + rank * 97 + turn >> 7).astype(np.uint8)


def main() -> None:
    turns = int(sys.argv[1]) if len(sys.argv) > 1 else 1
    with gin.init(route="native") as comm:
        dst, src, got = (comm.window(max(SIZES)) for _ in range(3))
        kernel = comm.compile(SOURCE, "exchange")
        left, number, wrong, start = (comm.rank - 1) % comm.size, 0, 0, time.monotonic()
        for turn in range(turns):
            for nbytes in SIZES:
                number += 1
                src.array()[:nbytes] = pattern(comm.rank, nbytes, turn)
                comm.barrier()
                kernel.launch(dst, src, got, nbytes, number, grid=1, block=1)
                comm.synchronize()
                want = pattern(left, nbytes, turn)
                wrong += int(np.count_nonzero(dst.array()[:nbytes] != want))
                wrong += int(np.count_nonzero(got.array()[:nbytes] != want))
                comm.barrier()
        seconds = time.monotonic() - start
        print(f"rank {comm.rank} of {comm.size}: {number} rounds, {wrong} wrong bytes, {seconds:.2f} s", flush=True)
    sys.exit(wrong != 0)


main()
