"""All-gather around a ring: in step s every rank passes on the chunk that it received in step s - 1.

A chunk's put carries a signal of its own, so a rank forwards a chunk exactly when that chunk has settled; one signal counted
up over all steps would not say which chunk had come.

    gin run -n 4 examples/ring_allgather.py
"""

import numpy as np

import gin

SOURCE = r"""
#include <gin/gin.cuh>

extern "C" __global__ void ring_allgather(gin::Comm comm, gin::Window all, unsigned long long chunk) {
  gin::Context net(comm);
  const unsigned size = net.size(), right = (net.rank() + 1) % size;
  for (unsigned step = 0; step + 1 < size; ++step) {
    const unsigned which = (net.rank() + size - step) % size;  // my own chunk first, then what came from the left
    net.put(gin::block, right, all, which * chunk, all, which * chunk, chunk, gin::signal_inc{step});
    if (!net.wait(gin::block, step, net.epoch(step) + 1).ok()) return;
  }
  net.flush(gin::block);
}
"""

CHUNK = 1 << 16

with gin.init() as comm:
    everything = comm.window(CHUNK * comm.size)
    everything.write(np.arange(CHUNK // 4, dtype=np.uint32) + np.uint32(1000 * comm.rank), offset=comm.rank * CHUNK)
    comm.barrier()
    comm.compile(SOURCE, "ring_allgather").launch(everything, CHUNK, grid=1, block=128)
    comm.synchronize()
    expected = np.arange(CHUNK // 4)[None, :] + 1000 * np.arange(comm.size)[:, None]
    assert (everything.read(np.uint32).reshape(comm.size, -1) == expected).all()
    print(f"rank {comm.rank} of {comm.size} ({comm.backend}): has all {comm.size} chunks of {CHUNK} bytes")
