"""All-to-all with signals: one block per peer sends that peer its part and waits for the part that comes back.

gin run -n 4 examples/alltoall.py
"""

import numpy as np

import gin

SOURCE = r"""
#include <gin/gin.cuh>

// Block b talks to one peer; signal r counts what rank r has sent here.
extern "C" __global__ void alltoall(gin::Comm comm, gin::Window recv, gin::Window send, unsigned long long bytes) {
  gin::Context net(comm);
  const unsigned peer = (net.rank() + blockIdx.x) % net.size();
  const unsigned long long expected = net.epoch(peer) + 1;
  net.put(gin::block, peer, recv, net.rank() * bytes, send, peer * bytes, bytes, gin::signal_inc{net.rank()});
  net.wait(gin::block, peer, expected);
  net.flush(gin::block);
}
"""

BYTES = 1 << 14
ROUNDS = 3

with gin.init() as comm:
    send, recv = comm.window(BYTES * comm.size), comm.window(BYTES * comm.size)
    kernel = comm.compile(SOURCE, "alltoall")
    for turn in range(ROUNDS):
        outgoing = 10000 * turn + 100 * comm.rank + np.arange(comm.size, dtype=np.uint32)
        send.write(np.repeat(outgoing, BYTES // 4))
        comm.barrier()  # nobody is still reading what the next round overwrites
        kernel.launch(recv, send, BYTES, grid=comm.size, block=64)
        comm.synchronize()
        expected = 10000 * turn + 100 * np.arange(comm.size) + comm.rank
        assert (recv.read(np.uint32) == np.repeat(expected, BYTES // 4)).all()
    print(f"rank {comm.rank} of {comm.size} ({comm.backend}): {ROUNDS} rounds of {BYTES} bytes to and from everybody")
