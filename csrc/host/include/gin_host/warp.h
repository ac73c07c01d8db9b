// Warp operations. Each is a rendezvous of the lanes that `mask` names: all of them that have not ended call the same
// operation with the same mask, as CUDA asks. Lanes that have ended, or that a partial warp does not have, are not waited
// for; what they would contribute is undefined on a GPU and poison or zero here.
#pragma once

#include "language.h"

namespace gin::host {

GIN_HOST_INLINE uint32_t lane() { return self()->rank % warp_size; }

GIN_HOST_INLINE uint64_t warp(WarpOp op, uint32_t mask, uint64_t value, uint32_t source, const char* what,
                              const char* file, uint32_t line) {
  Thread* t = self();
  return t->services->warp(t, op, mask, value, source, what, file, line);
}

template <class T>
GIN_HOST_INLINE uint64_t to_word(T value) {
  static_assert(sizeof(T) <= 8);
  uint64_t word = 0;
  __builtin_memcpy(&word, &value, sizeof(T));
  return word;
}

template <class T>
GIN_HOST_INLINE T from_word(uint64_t word) {
  T value;
  __builtin_memcpy(&value, &word, sizeof(T));
  return value;
}

template <class T>
GIN_HOST_INLINE T gather(uint32_t mask, T value, uint32_t source, const char* what, const char* file, uint32_t line) {
  return from_word<T>(warp(WarpOp::gather, mask, to_word(value), source, what, file, line));
}

// Source lanes within segments of `width` lanes; a source outside the segment is the lane itself.
GIN_HOST_INLINE uint32_t lane_index(uint32_t source, uint32_t width) {
  return (lane() & ~(width - 1)) | (source & (width - 1));
}
GIN_HOST_INLINE uint32_t lane_up(uint32_t delta, uint32_t width) {
  uint32_t own = lane();
  return delta > (own & (width - 1)) ? own : own - delta;
}
GIN_HOST_INLINE uint32_t lane_down(uint32_t delta, uint32_t width) {
  uint32_t own = lane();
  return delta > width - 1 - (own & (width - 1)) ? own : own + delta;
}
GIN_HOST_INLINE uint32_t lane_xor(uint32_t bits, uint32_t width) {
  uint32_t own = lane(), source = own ^ bits;
  return source > (own | (width - 1)) ? own : source;
}

}  // namespace gin::host

GIN_HOST_INLINE void __syncwarp(uint32_t mask = 0xffffffffu, GIN_HOST_SITE) {
  gin::host::warp(gin::host::WarpOp::sync, mask, 0, 0, "__syncwarp", file, line);
}

#define GIN_HOST_SHUFFLES(T)                                                                                         \
  GIN_HOST_INLINE T __shfl_sync(unsigned mask, T v, int source, int width = 32, GIN_HOST_SITE) {                     \
    return gin::host::gather(mask, v, gin::host::lane_index(uint32_t(source), uint32_t(width)), "__shfl_sync", file, \
                             line);                                                                                  \
  }                                                                                                                  \
  GIN_HOST_INLINE T __shfl_up_sync(unsigned mask, T v, unsigned delta, int width = 32, GIN_HOST_SITE) {              \
    return gin::host::gather(mask, v, gin::host::lane_up(delta, uint32_t(width)), "__shfl_up_sync", file, line);     \
  }                                                                                                                  \
  GIN_HOST_INLINE T __shfl_down_sync(unsigned mask, T v, unsigned delta, int width = 32, GIN_HOST_SITE) {            \
    return gin::host::gather(mask, v, gin::host::lane_down(delta, uint32_t(width)), "__shfl_down_sync", file, line); \
  }                                                                                                                  \
  GIN_HOST_INLINE T __shfl_xor_sync(unsigned mask, T v, int bits, int width = 32, GIN_HOST_SITE) {                   \
    return gin::host::gather(mask, v, gin::host::lane_xor(uint32_t(bits), uint32_t(width)), "__shfl_xor_sync", file, \
                             line);                                                                                  \
  }
GIN_HOST_SHUFFLES(int)
GIN_HOST_SHUFFLES(unsigned int)
GIN_HOST_SHUFFLES(long)
GIN_HOST_SHUFFLES(unsigned long)
GIN_HOST_SHUFFLES(long long)
GIN_HOST_SHUFFLES(unsigned long long)
GIN_HOST_SHUFFLES(float)
GIN_HOST_SHUFFLES(double)
#undef GIN_HOST_SHUFFLES

GIN_HOST_INLINE unsigned __ballot_sync(unsigned mask, int predicate, GIN_HOST_SITE) {
  return unsigned(gin::host::warp(gin::host::WarpOp::ballot, mask, predicate != 0, 0, "__ballot_sync", file, line));
}
GIN_HOST_INLINE int __any_sync(unsigned mask, int predicate, GIN_HOST_SITE) {
  return gin::host::warp(gin::host::WarpOp::ballot, mask, predicate != 0, 0, "__any_sync", file, line) != 0;
}
// No lane's predicate is zero: a ballot of the negation has nobody.
GIN_HOST_INLINE int __all_sync(unsigned mask, int predicate, GIN_HOST_SITE) {
  return gin::host::warp(gin::host::WarpOp::ballot, mask, predicate == 0, 0, "__all_sync", file, line) == 0;
}

template <class T>
GIN_HOST_INLINE unsigned __match_any_sync(unsigned mask, T value, GIN_HOST_SITE) {
  static_assert(sizeof(T) == 4 || sizeof(T) == 8, "__match_any_sync takes 4- and 8-byte values");
  return unsigned(
      gin::host::warp(gin::host::WarpOp::match, mask, gin::host::to_word(value), 0, "__match_any_sync", file, line));
}
template <class T>
GIN_HOST_INLINE unsigned __match_all_sync(unsigned mask, T value, int* predicate, GIN_HOST_SITE) {
  static_assert(sizeof(T) == 4 || sizeof(T) == 8, "__match_all_sync takes 4- and 8-byte values");
  unsigned same = unsigned(
      gin::host::warp(gin::host::WarpOp::match, mask, gin::host::to_word(value), 0, "__match_all_sync", file, line));
  *predicate = same == mask;
  return same == mask ? mask : 0;
}

#define GIN_HOST_REDUCE(T, name, op)                                                                              \
  GIN_HOST_INLINE T __reduce_##name##_sync(unsigned mask, T value, GIN_HOST_SITE) {                               \
    return T(gin::host::warp(gin::host::WarpOp::op, mask, uint64_t(int64_t(value)), 0, "__reduce_" #name "_sync", \
                             file, line));                                                                        \
  }
GIN_HOST_REDUCE(unsigned, add, add)
GIN_HOST_REDUCE(unsigned, min, min_unsigned)
GIN_HOST_REDUCE(unsigned, max, max_unsigned)
GIN_HOST_REDUCE(unsigned, and, bit_and)
GIN_HOST_REDUCE(unsigned, or, bit_or)
GIN_HOST_REDUCE(unsigned, xor, bit_xor)
GIN_HOST_REDUCE(int, add, add)
GIN_HOST_REDUCE(int, min, min_signed)
GIN_HOST_REDUCE(int, max, max_signed)
#undef GIN_HOST_REDUCE

// Threads run one at a time, so the lanes that are active together are the calling one alone. Code that takes the mask as
// a licence for a warp operation stays right: it then works on one lane.
GIN_HOST_INLINE unsigned __activemask() { return 1u << gin::host::lane(); }

GIN_HOST_INLINE unsigned __lane_id() { return gin::host::lane(); }
