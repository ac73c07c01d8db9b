// Bit operations, conversions, arithmetic and memory intrinsics that CUDA device code has without an include.
#pragma once

#include <math.h>

#include "language.h"

GIN_HOST_INLINE int __popc(unsigned v) { return __builtin_popcount(v); }
GIN_HOST_INLINE int __popcll(unsigned long long v) { return __builtin_popcountll(v); }
GIN_HOST_INLINE int __ffs(int v) { return __builtin_ffs(v); }
GIN_HOST_INLINE int __ffsll(long long v) { return __builtin_ffsll(v); }
GIN_HOST_INLINE int __clz(int v) { return v ? __builtin_clz(unsigned(v)) : 32; }
GIN_HOST_INLINE int __clzll(long long v) { return v ? __builtin_clzll(static_cast<unsigned long long>(v)) : 64; }
inline unsigned long long __brevll(unsigned long long v) {
  v = (v >> 1 & 0x5555555555555555u) | (v & 0x5555555555555555u) << 1;
  v = (v >> 2 & 0x3333333333333333u) | (v & 0x3333333333333333u) << 2;
  v = (v >> 4 & 0x0f0f0f0f0f0f0f0fu) | (v & 0x0f0f0f0f0f0f0f0fu) << 4;
  return __builtin_bswap64(v);
}
inline unsigned __brev(unsigned v) { return unsigned(__brevll(v) >> 32); }
inline unsigned __byte_perm(unsigned low, unsigned high, unsigned selector) {
  unsigned long long bytes = static_cast<unsigned long long>(high) << 32 | low;
  unsigned result = 0;
  for (int i = 0; i < 4; ++i) {
    unsigned choice = selector >> (4 * i) & 0xf;
    unsigned byte = unsigned(bytes >> (8 * (choice & 7))) & 0xff;
    if (choice & 8) byte = byte & 0x80 ? 0xff : 0;
    result |= byte << (8 * i);
  }
  return result;
}
GIN_HOST_INLINE unsigned __funnelshift_l(unsigned low, unsigned high, unsigned shift) {
  return unsigned(((static_cast<unsigned long long>(high) << 32 | low) << (shift & 31)) >> 32);
}
GIN_HOST_INLINE unsigned __funnelshift_r(unsigned low, unsigned high, unsigned shift) {
  return unsigned((static_cast<unsigned long long>(high) << 32 | low) >> (shift & 31));
}
GIN_HOST_INLINE int __mulhi(int a, int b) { return int((static_cast<long long>(a) * b) >> 32); }
GIN_HOST_INLINE unsigned __umulhi(unsigned a, unsigned b) {
  return unsigned((static_cast<unsigned long long>(a) * b) >> 32);
}
GIN_HOST_INLINE unsigned long long __umul64hi(unsigned long long a, unsigned long long b) {
  return static_cast<unsigned long long>((static_cast<unsigned __int128>(a) * b) >> 64);
}

#define GIN_HOST_BITS(name, To, From)              \
  GIN_HOST_INLINE To name(From value) {            \
    static_assert(sizeof(To) == sizeof(From));     \
    To result;                                     \
    __builtin_memcpy(&result, &value, sizeof(To)); \
    return result;                                 \
  }
GIN_HOST_BITS(__int_as_float, float, int)
GIN_HOST_BITS(__float_as_int, int, float)
GIN_HOST_BITS(__uint_as_float, float, unsigned)
GIN_HOST_BITS(__float_as_uint, unsigned, float)
GIN_HOST_BITS(__longlong_as_double, double, long long)
GIN_HOST_BITS(__double_as_longlong, long long, double)
#undef GIN_HOST_BITS

GIN_HOST_INLINE int __float2int_rz(float v) { return int(v); }
GIN_HOST_INLINE int __float2int_rn(float v) { return int(nearbyintf(v)); }
GIN_HOST_INLINE int __float2int_rd(float v) { return int(floorf(v)); }
GIN_HOST_INLINE int __float2int_ru(float v) { return int(ceilf(v)); }
GIN_HOST_INLINE float __int2float_rn(int v) { return float(v); }
GIN_HOST_INLINE float __uint2float_rn(unsigned v) { return float(v); }

GIN_HOST_INLINE float rsqrtf(float v) { return 1.0f / sqrtf(v); }
GIN_HOST_INLINE double rsqrt(double v) { return 1.0 / sqrt(v); }
GIN_HOST_INLINE float rsqrt(float v) { return rsqrtf(v); }
GIN_HOST_INLINE float __fmaf_rn(float a, float b, float c) { return fmaf(a, b, c); }
GIN_HOST_INLINE double __fma_rn(double a, double b, double c) { return fma(a, b, c); }
GIN_HOST_INLINE float __fadd_rn(float a, float b) { return a + b; }
GIN_HOST_INLINE float __fsub_rn(float a, float b) { return a - b; }
GIN_HOST_INLINE float __fmul_rn(float a, float b) { return a * b; }
GIN_HOST_INLINE float __fdiv_rn(float a, float b) { return a / b; }
GIN_HOST_INLINE float __fsqrt_rn(float v) { return sqrtf(v); }
GIN_HOST_INLINE float __frcp_rn(float v) { return 1.0f / v; }
GIN_HOST_INLINE float __fdividef(float a, float b) { return a / b; }
GIN_HOST_INLINE float __saturatef(float v) { return v > 1.0f ? 1.0f : v > 0.0f ? v : 0.0f; }
// libm declares functions of these names for itself, so the fast forms are other names for the usual ones.
#define __expf expf
#define __exp10f exp10f
#define __logf logf
#define __log2f log2f
#define __log10f log10f
#define __powf powf
#define __sinf sinf
#define __cosf cosf
#define __tanf tanf
#define __sincosf sincosf

#define GIN_HOST_MIN_MAX(R, A, B)                                                         \
  GIN_HOST_INLINE constexpr R min(A a, B b) {                                             \
    return static_cast<R>(a) < static_cast<R>(b) ? static_cast<R>(a) : static_cast<R>(b); \
  }                                                                                       \
  GIN_HOST_INLINE constexpr R max(A a, B b) {                                             \
    return static_cast<R>(a) > static_cast<R>(b) ? static_cast<R>(a) : static_cast<R>(b); \
  }
GIN_HOST_MIN_MAX(int, int, int)
GIN_HOST_MIN_MAX(unsigned, unsigned, unsigned)
GIN_HOST_MIN_MAX(unsigned, int, unsigned)
GIN_HOST_MIN_MAX(unsigned, unsigned, int)
GIN_HOST_MIN_MAX(long, long, long)
GIN_HOST_MIN_MAX(unsigned long, unsigned long, unsigned long)
GIN_HOST_MIN_MAX(unsigned long, long, unsigned long)
GIN_HOST_MIN_MAX(unsigned long, unsigned long, long)
GIN_HOST_MIN_MAX(long long, long long, long long)
GIN_HOST_MIN_MAX(unsigned long long, unsigned long long, unsigned long long)
GIN_HOST_MIN_MAX(unsigned long long, long long, unsigned long long)
GIN_HOST_MIN_MAX(unsigned long long, unsigned long long, long long)
#undef GIN_HOST_MIN_MAX
GIN_HOST_INLINE float min(float a, float b) { return fminf(a, b); }
GIN_HOST_INLINE float max(float a, float b) { return fmaxf(a, b); }
GIN_HOST_INLINE double min(double a, double b) { return fmin(a, b); }
GIN_HOST_INLINE double max(double a, double b) { return fmax(a, b); }
GIN_HOST_INLINE double min(float a, double b) { return fmin(a, b); }
GIN_HOST_INLINE double max(float a, double b) { return fmax(a, b); }
GIN_HOST_INLINE double min(double a, float b) { return fmin(a, b); }
GIN_HOST_INLINE double max(double a, float b) { return fmax(a, b); }

namespace gin::host {

// Words go as one access; larger vectors piece by piece, as nothing here promises more.
template <class T>
GIN_HOST_INLINE T load(const T* address) {
  T value;
  if constexpr (sizeof(T) <= 8 && (sizeof(T) & (sizeof(T) - 1)) == 0) {
    __atomic_load(address, &value, __ATOMIC_RELAXED);
  } else {
    __asm__ volatile("" ::: "memory");
    value = *address;
    __asm__ volatile("" ::: "memory");
  }
  return value;
}

template <class T>
GIN_HOST_INLINE void store(T* address, T value) {
  if constexpr (sizeof(T) <= 8 && (sizeof(T) & (sizeof(T) - 1)) == 0) {
    __atomic_store(address, &value, __ATOMIC_RELAXED);
  } else {
    __asm__ volatile("" ::: "memory");
    *address = value;
    __asm__ volatile("" ::: "memory");
  }
}

template <class T>
struct same_type {
  using type = T;
};

}  // namespace gin::host

template <class T>
GIN_HOST_INLINE T __ldg(const T* address) {
  return *address;
}

// Cache hints: ca, cg, cs, lu and cv loads; wb, cg, cs and wt stores.
#define GIN_HOST_LOAD(name)                  \
  template <class T>                         \
  GIN_HOST_INLINE T name(const T* address) { \
    return gin::host::load(address);         \
  }
#define GIN_HOST_STORE(name)                                                            \
  template <class T>                                                                    \
  GIN_HOST_INLINE void name(T* address, typename gin::host::same_type<T>::type value) { \
    gin::host::store(address, value);                                                   \
  }
GIN_HOST_LOAD(__ldca)
GIN_HOST_LOAD(__ldcg)
GIN_HOST_LOAD(__ldcs)
GIN_HOST_LOAD(__ldlu)
GIN_HOST_LOAD(__ldcv)
GIN_HOST_STORE(__stwb)
GIN_HOST_STORE(__stcg)
GIN_HOST_STORE(__stcs)
GIN_HOST_STORE(__stwt)
#undef GIN_HOST_LOAD
#undef GIN_HOST_STORE
