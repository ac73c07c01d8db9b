"""Halo exchange: a heat equation on a rod cut into one piece per rank, checked against the uncut rod.

The kernel runs all time steps by itself. Each step sends the piece's two ends into the neighbours' halo cells and computes
when theirs have come; halos alternate between two places, so a fast neighbour never overwrites what is still being read. The
signals alternate with them: a neighbour may send step s + 1 before its step s has arrived, and one signal counted up over
all steps would not say which of the two had.

    gin run -n 4 examples/halo.py
"""

import numpy as np

import gin

SOURCE = r"""
#include <gin/gin.cuh>

// `rod` holds two copies of [left halo | cells | right halo], of even and of odd steps; signals 0 and 1 count what came
// from the left in even and in odd steps, 2 and 3 what came from the right.
extern "C" __global__ void heat(gin::Comm comm, gin::Window rod, int cells, int steps) {
  gin::Context net(comm);
  const int row = cells + 2, rank = net.rank(), last = net.size() - 1;
  unsigned long long expected[4];
  for (int id = 0; id < 4; ++id) expected[id] = net.epoch(id);
  double* data = static_cast<double*>(rod.local());
  for (int step = 0; step < steps; ++step) {
    const unsigned odd = step % 2, left = odd, right = 2 + odd;
    double* now = data + odd * row;
    double* next = data + (1 - odd) * row;
    if (threadIdx.x == 0) {
      const unsigned long long at = odd * row * sizeof(double);
      if (rank > 0) net.put_value(rank - 1, rod, at + (cells + 1) * sizeof(double), now[1], gin::signal_inc{right});
      if (rank < last) net.put_value(rank + 1, rod, at, now[cells], gin::signal_inc{left});
    }
    if (rank > 0 && !net.wait(gin::block, left, ++expected[left]).ok()) return;
    if (rank < last && !net.wait(gin::block, right, ++expected[right]).ok()) return;
    for (int i = 1 + threadIdx.x; i <= cells; i += blockDim.x) {
      const bool end = (rank == 0 && i == 1) || (rank == last && i == cells);  // the rod's ends keep their temperature
      next[i] = end ? now[i] : now[i] + 0.25 * (now[i - 1] - 2 * now[i] + now[i + 1]);
    }
    __syncthreads();
  }
}
"""

CELLS, STEPS = 1000, 200

with gin.init() as comm:
    whole = np.sin(np.linspace(0, 7, CELLS * comm.size))
    rod = comm.window(2 * (CELLS + 2) * 8)
    rod.write(whole[comm.rank * CELLS : (comm.rank + 1) * CELLS], offset=8)
    comm.barrier()
    comm.compile(SOURCE, "heat").launch(rod, CELLS, STEPS, grid=1, block=128)
    comm.synchronize()

    for _ in range(STEPS):
        whole[1:-1] = whole[1:-1] + 0.25 * (whole[:-2] - 2 * whole[1:-1] + whole[2:])
    rows = rod.read(np.float64).reshape(2, CELLS + 2)
    error = np.abs(rows[STEPS % 2, 1:-1] - whole[comm.rank * CELLS : (comm.rank + 1) * CELLS]).max()
    assert error < 1e-12, error
    print(f"rank {comm.rank} of {comm.size} ({comm.backend}): {STEPS} steps, largest error {error:.1e}")
