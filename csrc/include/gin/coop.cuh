// The groups of threads that call an operation together. Every thread of the group calls with equal arguments.
#pragma once

#include <cstdint>

#include "comm.h"

namespace gin {

// A group offers: rank() and size() of the calling thread in it, sync(), any(flag) which is a sync that tells every thread
// whether some thread passed true, and broadcast(value) which is a sync that gives every thread the leader's value.

struct Thread {
  GIN_DEVICE uint32_t rank() const { return 0; }
  GIN_DEVICE uint32_t size() const { return 1; }
  GIN_DEVICE bool leader() const { return true; }
  GIN_DEVICE void sync() const {}
  GIN_DEVICE bool any(bool flag) const { return flag; }
  GIN_DEVICE uint32_t broadcast(uint32_t value) const { return value; }
};

namespace impl {
GIN_DEVICE uint32_t thread_index() { return threadIdx.x + blockDim.x * (threadIdx.y + blockDim.y * threadIdx.z); }
GIN_DEVICE uint32_t block_threads() { return blockDim.x * blockDim.y * blockDim.z; }
}  // namespace impl

// The threads of the caller's warp; the last warp of a block may be a partial one.
struct Warp {
  GIN_DEVICE uint32_t rank() const { return impl::thread_index() & 31; }
  GIN_DEVICE uint32_t size() const {
    uint32_t left = impl::block_threads() - (impl::thread_index() & ~31u);
    return left < 32 ? left : 32;
  }
  GIN_DEVICE uint32_t mask() const { return size() == 32 ? 0xffffffffu : (1u << size()) - 1; }
  GIN_DEVICE bool leader() const { return rank() == 0; }
  GIN_DEVICE void sync() const { __syncwarp(mask()); }
  GIN_DEVICE bool any(bool flag) const { return __any_sync(mask(), flag); }
  GIN_DEVICE uint32_t broadcast(uint32_t value) const { return __shfl_sync(mask(), value, 0); }
};

// All threads of the block.
struct Block {
  GIN_DEVICE uint32_t rank() const { return impl::thread_index(); }
  GIN_DEVICE uint32_t size() const { return impl::block_threads(); }
  GIN_DEVICE bool leader() const { return rank() == 0; }
  GIN_DEVICE void sync() const { __syncthreads(); }
  GIN_DEVICE bool any(bool flag) const { return __syncthreads_or(flag); }
  GIN_DEVICE uint32_t broadcast(uint32_t value) const {
    __shared__ uint32_t slot;
    if (leader()) slot = value;
    __syncthreads();
    value = slot;
    __syncthreads();
    return value;
  }
};

// Whether a type is a group. A group of the user's own, which offers the same, says so by a specialisation.
template <class T>
struct is_coop {
  static constexpr bool value = false;
};
template <>
struct is_coop<Thread> {
  static constexpr bool value = true;
};
template <>
struct is_coop<Warp> {
  static constexpr bool value = true;
};
template <>
struct is_coop<Block> {
  static constexpr bool value = true;
};

namespace impl {
// Refuses what is no group, in the first statement of each operation that takes one.
template <class Coop>
struct ExpectCoop {
  static_assert(is_coop<Coop>::value,
                "gin: the first argument is not gin::thread, gin::warp or gin::block, the threads that call together");
  static constexpr bool value = true;
};
}  // namespace impl

#if defined(__CUDACC__)
#define GIN_CONSTANT static __device__ constexpr
#else
#define GIN_CONSTANT inline constexpr
#endif

GIN_CONSTANT Thread thread{};
GIN_CONSTANT Warp warp{};
GIN_CONSTANT Block block{};

// Ranks start, start + stride, ... of a communicator; a size of 0 means all of them.
struct Team {
  uint32_t start = 0, stride = 1, size = 0;

  GIN_DEVICE uint32_t members(const Comm& comm) const { return size ? size : comm.size; }
  GIN_DEVICE uint32_t world(uint32_t member) const { return start + stride * member; }
  GIN_DEVICE uint32_t member(uint32_t rank) const { return (rank - start) / stride; }
};

GIN_CONSTANT Team world{};

}  // namespace gin
