// Thread blocks and tiles of a warp. Grids, clusters and coalesced groups are missing: the host platform has no grid-wide
// barrier, and which threads run together means nothing where they run one at a time.
#pragma once

#include "gin_host.h"

namespace cooperative_groups {

class thread_block {
 public:
  static dim3 group_index() { return blockIdx; }
  static dim3 thread_index() { return threadIdx; }
  static dim3 dim_threads() { return blockDim; }
  static dim3 group_dim() { return blockDim; }
  static unsigned thread_rank() { return gin::host::self()->rank; }
  static unsigned num_threads() {
    const gin::host::Index3& size = gin::host::self()->block->size;
    return size.x * size.y * size.z;
  }
  static unsigned size() { return num_threads(); }
  static void sync(GIN_HOST_SITE) { __syncthreads(file, line); }
};

inline thread_block this_thread_block() { return {}; }

// `width` neighbouring lanes of a warp, made from a group that has them.
template <unsigned width, class Parent = void>
class thread_block_tile {
  static_assert(width >= 1 && width <= 32 && (width & (width - 1)) == 0, "a tile has 1, 2, 4, 8, 16 or 32 threads");

 public:
  explicit thread_block_tile(unsigned tiles, unsigned index) : lane_(gin::host::lane()), tiles_(tiles), index_(index) {}

  unsigned thread_rank() const { return lane_ % width; }
  static constexpr unsigned num_threads() { return width; }
  static constexpr unsigned size() { return width; }
  unsigned meta_group_size() const { return tiles_; }
  unsigned meta_group_rank() const { return index_; }

  void sync(GIN_HOST_SITE) const { __syncwarp(mask(), file, line); }

  template <class T>
  T shfl(T v, int source, GIN_HOST_SITE) const {
    return __shfl_sync(mask(), v, source, width, file, line);
  }
  template <class T>
  T shfl_up(T v, unsigned delta, GIN_HOST_SITE) const {
    return __shfl_up_sync(mask(), v, delta, width, file, line);
  }
  template <class T>
  T shfl_down(T v, unsigned delta, GIN_HOST_SITE) const {
    return __shfl_down_sync(mask(), v, delta, width, file, line);
  }
  template <class T>
  T shfl_xor(T v, int bits, GIN_HOST_SITE) const {
    return __shfl_xor_sync(mask(), v, bits, width, file, line);
  }
  int any(int predicate, GIN_HOST_SITE) const { return __any_sync(mask(), predicate, file, line); }
  int all(int predicate, GIN_HOST_SITE) const { return __all_sync(mask(), predicate, file, line); }
  // Masks count from the tile's first lane.
  unsigned ballot(int predicate, GIN_HOST_SITE) const {
    return __ballot_sync(mask(), predicate, file, line) >> first();
  }
  template <class T>
  unsigned match_any(T v, GIN_HOST_SITE) const {
    return __match_any_sync(mask(), v, file, line) >> first();
  }
  template <class T>
  unsigned match_all(T v, int& predicate, GIN_HOST_SITE) const {
    return __match_all_sync(mask(), v, &predicate, file, line) >> first();
  }

 private:
  unsigned first() const { return lane_ & ~(width - 1); }
  unsigned mask() const { return (~0u >> (32 - width)) << first(); }

  unsigned lane_, tiles_, index_;
};

template <unsigned width>
thread_block_tile<width, thread_block> tiled_partition(const thread_block& block) {
  return thread_block_tile<width, thread_block>((block.size() + width - 1) / width, block.thread_rank() / width);
}

template <unsigned width, unsigned parent, class Grandparent>
thread_block_tile<width, thread_block_tile<parent>> tiled_partition(
    const thread_block_tile<parent, Grandparent>& tile) {
  static_assert(width <= parent, "a tile is not wider than the group it is cut from");
  return thread_block_tile<width, thread_block_tile<parent>>(parent / width, tile.thread_rank() / width);
}

template <class Group>
void sync(const Group& group, GIN_HOST_SITE) {
  group.sync(file, line);
}
template <class Group>
unsigned thread_rank(const Group& group) {
  return group.thread_rank();
}
template <class Group>
unsigned group_size(const Group& group) {
  return group.size();
}

}  // namespace cooperative_groups
