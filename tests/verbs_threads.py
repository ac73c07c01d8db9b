"""Ranks of one process, each in a thread, over wire verbs: PLATFORM RANKS. For a device that is pretended to one process."""

from __future__ import annotations

import secrets
import socket
import sys
import threading
import traceback

import numpy as np

import gin

KERNEL = r"""
#include <gin/gin.cuh>
// Each rank sends its numbers to its right neighbour in every way there is, and checks what came from the left.
extern "C" __global__ void around(gin::Comm comm, gin::Window w, uint32_t words, gin::Window out) {
  int* wrong = static_cast<int*>(out.local());
  gin::Context net(comm, 0);
  const uint32_t rank = net.rank(), size = net.size(), right = (rank + 1) % size, left = (rank + size - 1) % size;
  uint64_t* mine = static_cast<uint64_t*>(w.local());
  for (uint32_t turn = 1; turn <= 20; ++turn) {
    for (uint32_t i = threadIdx.x; i < words; i += blockDim.x) mine[i] = turn * 1000000 + rank * 10000 + i;
    __syncthreads();
    net.put(gin::block, right, w, 8 * words, w, 0, 8 * words, gin::signal_inc{0});
    if (threadIdx.x == 0) net.put_value(right, w, 8 * 3 * words, uint64_t(turn * 7 + rank), gin::signal_inc{1});
    const bool came = net.wait(gin::block, 0, net.epoch(0) + 1).ok() && net.wait(gin::block, 1, net.epoch(1) + 1).ok();
    if (!came) {
      atomicAdd(wrong, 1000000);
      return;
    }
    for (uint32_t i = threadIdx.x; i < words; i += blockDim.x)
      if (mine[words + i] != turn * 1000000 + left * 10000 + i) atomicAdd(wrong, 1);
    if (threadIdx.x == 0 && mine[3 * words] != turn * 7 + left) atomicAdd(wrong, 1);
    net.get(gin::block, right, w, 8 * words, w, 8 * 2 * words, 8 * words);  // what this rank put there
    net.flush(gin::block);
    for (uint32_t i = threadIdx.x; i < words; i += blockDim.x)
      if (mine[2 * words + i] != turn * 1000000 + rank * 10000 + i) atomicAdd(wrong, 1);
    net.quiet(gin::block);
    if (!net.barrier(gin::block).ok()) {
      atomicAdd(wrong, 1000000);
      return;
    }
  }
}
"""


def rank_main(rank: int, size: int, platform: str, results: list[object], **settings: object) -> None:
    try:
        if platform == "cuda":
            settings["device"] = rank
        with gin.init(
            backend="ibrc_proxy", platform=platform, wire="verbs", route="native", rank=rank, size=size, **settings
        ) as comm:
            kernel = comm.compile(KERNEL, "around")
            wrong = comm.window(4)
            for words in (1, 3, 8, 9, 500):  # 8 words are what is sent inline
                window = comm.window(8 * (3 * words + 1))
                comm.barrier()
                kernel.launch(window, words, wrong, block=64)
                comm.synchronize()
                comm.barrier()
            results[rank] = f"{wrong.read(np.int32)[0]} wrong, by {comm.routes()}, {comm.about()}"
    except BaseException:
        results[rank] = traceback.format_exc()


def main() -> None:
    platform, size = sys.argv[1], int(sys.argv[2])
    results: list[object] = [None] * size
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{free.getsockname()[1]}"
    settings = {"rendezvous": address, "job_secret": secrets.token_hex(16), "timeout": "60s"}
    threads = [
        threading.Thread(target=rank_main, args=(rank, size, platform, results), kwargs=settings)
        for rank in range(size)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for rank, result in enumerate(results):
        print(f"rank {rank}: {result}")


if __name__ == "__main__":
    main()
