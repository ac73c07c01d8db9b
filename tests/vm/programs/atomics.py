"""Atomics between puts and signals: each thread counts in words of its own on the next rank and knows every old value.

atomics.py TURNS: of each thread, for each kind of atomic.
"""

from __future__ import annotations

import sys

import numpy as np

import gin

SOURCE = r"""
#include <gin/gin.cuh>
enum { ADD4, ADD8, SWAP };
extern "C" __global__ void count(gin::Comm comm, gin::Window dst, gin::Window src, gin::Window words, gin::Window odd,
                                 uint64_t turns, int kind) {
  gin::Context net(comm, blockIdx.x);
  const uint32_t right = (net.rank() + 1) % net.size();
  const uint64_t thread = blockIdx.x * blockDim.x + threadIdx.x, word = 64 * thread + 8 * kind;
  for (uint64_t i = 0; i < turns; ++i) {
    if (i % 3 == 0) net.put(gin::thread, right, dst, 4096 * threadIdx.x, src, 0, 1 + 13 * i % 4000);
    if (i % 7 == 1) net.signal(right, gin::signal_inc{0});
    uint64_t old = 0;
    if (kind == ADD4) old = net.atomic_fetch_add(right, words, word, 1u);
    if (kind == ADD8) old = net.atomic_fetch_add(right, words, word, uint64_t(1));
    if (kind == SWAP) old = net.atomic_compare_swap(right, words, word, i, i + 1);
    if (old != i) ++static_cast<uint64_t*>(odd.local())[thread];
  }
  net.quiet(gin::block);
}
"""
KINDS, THREADS = 3, 4


def main() -> None:
    turns = int(sys.argv[1])
    with gin.init(route="native") as comm:
        dst, src, words, odd = (comm.window(1 << 16) for _ in range(4))
        kernel = comm.compile(SOURCE, "count")
        threads = THREADS * comm.config.contexts
        comm.barrier()
        for kind in range(KINDS):
            kernel.launch(dst, src, words, odd, turns, kind, grid=comm.config.contexts, block=THREADS)
            comm.synchronize()
        comm.barrier()
        ends = words.read(np.uint64)[: 8 * threads].reshape(threads, 8)[:, :KINDS]
        old, sums = int(odd.read(np.uint64).sum()), int(np.count_nonzero(ends != turns))
    print(f"rank {comm.rank}: {KINDS * turns * threads} atomics, {old} old values and {sums} sums wrong", flush=True)
    sys.exit(old + sums > 0)


if __name__ == "__main__":
    main()
