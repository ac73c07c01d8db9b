// Picks the platform a kernel is being compiled for. A platform gives Waiting, clock_ns(), overdue(), copy() and how often a wait looks
// up from its word; everything else a kernel uses is CUDA C++ itself.
#pragma once

#if defined(GIN_HOST_PLATFORM)
#include "host.cuh"
#elif defined(__CUDACC__)
#include "cuda.cuh"
#else
#error "gin kernels are compiled by Comm.compile, or by nvcc"
#endif
