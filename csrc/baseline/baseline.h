// What the machine does without gin: the figures that gin's own are divided by. Each runs the least code that does the
// job, with the measurement that the benchmark's kernels use (one timestamp pair per sample).
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace gin::baseline {

// Two processes bounce a flag (one 8-byte word each way, on cache lines of their own) through shared memory, spinning
// with pause. Returns half the round trip of each iteration in nanoseconds.
std::vector<double> flag_pingpong(size_t iterations, size_t warmup, double deadline_s = 30);

// memcpy of `bytes` from this process's shared memory into the memory of a second process that maps it too; the copies
// go through `slots` places in turn. Returns nanoseconds per copy, one for each of `iterations`.
std::vector<double> memcpy_between(size_t bytes, size_t slots, size_t iterations, size_t warmup,
                                   double deadline_s = 30);

// One producer thread and one consumer thread move `count` descriptors of 32 bytes through a ring of `depth` (a power
// of two). Returns descriptors per second.
double ring_rate(size_t count, size_t depth, double deadline_s = 30);

}  // namespace gin::baseline
