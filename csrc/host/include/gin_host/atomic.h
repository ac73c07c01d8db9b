// CUDA's atomic functions, relaxed as CUDA's are, for the types that CUDA has them for. The scope is that of the machine:
// _block and _system forms are the same operation.
#pragma once

#include "language.h"

namespace gin::host {

template <class T, class F>
GIN_HOST_INLINE T update(T* address, F change) {
  count_atomic();
  T old;
  __atomic_load(address, &old, __ATOMIC_RELAXED);
  T wanted = change(old);
  while (!__atomic_compare_exchange(address, &old, &wanted, false, __ATOMIC_RELAXED, __ATOMIC_RELAXED)) {
    wanted = change(old);
  }
  return old;
}

template <class T>
GIN_HOST_INLINE T add(T* address, T value) {
  if constexpr (T(0.5) != T(0)) {  // floating point
    return update(address, [=](T old) { return old + value; });
  } else {
    count_atomic();
    return __atomic_fetch_add(address, value, __ATOMIC_RELAXED);
  }
}
template <class T>
GIN_HOST_INLINE T subtract(T* address, T value) {
  count_atomic();
  return __atomic_fetch_sub(address, value, __ATOMIC_RELAXED);
}
template <class T>
GIN_HOST_INLINE T exchange(T* address, T value) {
  count_atomic();
  T old;
  __atomic_exchange(address, &value, &old, __ATOMIC_RELAXED);
  return old;
}
template <class T>
GIN_HOST_INLINE T compare_exchange(T* address, T expected, T value) {
  count_atomic();
  __atomic_compare_exchange_n(address, &expected, value, false, __ATOMIC_RELAXED, __ATOMIC_RELAXED);
  return expected;
}
template <class T>
GIN_HOST_INLINE T minimum(T* address, T value) {
  return update(address, [=](T old) { return value < old ? value : old; });
}
template <class T>
GIN_HOST_INLINE T maximum(T* address, T value) {
  return update(address, [=](T old) { return value > old ? value : old; });
}
template <class T>
GIN_HOST_INLINE T bit_and(T* address, T value) {
  count_atomic();
  return __atomic_fetch_and(address, value, __ATOMIC_RELAXED);
}
template <class T>
GIN_HOST_INLINE T bit_or(T* address, T value) {
  count_atomic();
  return __atomic_fetch_or(address, value, __ATOMIC_RELAXED);
}
template <class T>
GIN_HOST_INLINE T bit_xor(T* address, T value) {
  count_atomic();
  return __atomic_fetch_xor(address, value, __ATOMIC_RELAXED);
}
template <class T>
GIN_HOST_INLINE T increment(T* address, T limit) {
  return update(address, [=](T old) { return old >= limit ? 0 : old + 1; });
}
template <class T>
GIN_HOST_INLINE T decrement(T* address, T limit) {
  return update(address, [=](T old) { return old == 0 || old > limit ? limit : old - 1; });
}

}  // namespace gin::host

#define GIN_HOST_ATOMIC(name, function, T)                                                            \
  GIN_HOST_INLINE T name(T* address, T value) { return gin::host::function(address, value); }         \
  GIN_HOST_INLINE T name##_block(T* address, T value) { return gin::host::function(address, value); } \
  GIN_HOST_INLINE T name##_system(T* address, T value) { return gin::host::function(address, value); }
#define GIN_HOST_ATOMIC_CAS(T)                                                                                     \
  GIN_HOST_INLINE T atomicCAS(T* a, T expected, T v) { return gin::host::compare_exchange(a, expected, v); }       \
  GIN_HOST_INLINE T atomicCAS_block(T* a, T expected, T v) { return gin::host::compare_exchange(a, expected, v); } \
  GIN_HOST_INLINE T atomicCAS_system(T* a, T expected, T v) { return gin::host::compare_exchange(a, expected, v); }

GIN_HOST_ATOMIC(atomicAdd, add, int)
GIN_HOST_ATOMIC(atomicAdd, add, unsigned int)
GIN_HOST_ATOMIC(atomicAdd, add, unsigned long long int)
GIN_HOST_ATOMIC(atomicAdd, add, float)
GIN_HOST_ATOMIC(atomicAdd, add, double)
GIN_HOST_ATOMIC(atomicSub, subtract, int)
GIN_HOST_ATOMIC(atomicSub, subtract, unsigned int)
GIN_HOST_ATOMIC(atomicExch, exchange, int)
GIN_HOST_ATOMIC(atomicExch, exchange, unsigned int)
GIN_HOST_ATOMIC(atomicExch, exchange, unsigned long long int)
GIN_HOST_ATOMIC(atomicExch, exchange, float)
GIN_HOST_ATOMIC(atomicMin, minimum, int)
GIN_HOST_ATOMIC(atomicMin, minimum, unsigned int)
GIN_HOST_ATOMIC(atomicMin, minimum, long long int)
GIN_HOST_ATOMIC(atomicMin, minimum, unsigned long long int)
GIN_HOST_ATOMIC(atomicMax, maximum, int)
GIN_HOST_ATOMIC(atomicMax, maximum, unsigned int)
GIN_HOST_ATOMIC(atomicMax, maximum, long long int)
GIN_HOST_ATOMIC(atomicMax, maximum, unsigned long long int)
GIN_HOST_ATOMIC(atomicAnd, bit_and, int)
GIN_HOST_ATOMIC(atomicAnd, bit_and, unsigned int)
GIN_HOST_ATOMIC(atomicAnd, bit_and, unsigned long long int)
GIN_HOST_ATOMIC(atomicOr, bit_or, int)
GIN_HOST_ATOMIC(atomicOr, bit_or, unsigned int)
GIN_HOST_ATOMIC(atomicOr, bit_or, unsigned long long int)
GIN_HOST_ATOMIC(atomicXor, bit_xor, int)
GIN_HOST_ATOMIC(atomicXor, bit_xor, unsigned int)
GIN_HOST_ATOMIC(atomicXor, bit_xor, unsigned long long int)
GIN_HOST_ATOMIC(atomicInc, increment, unsigned int)
GIN_HOST_ATOMIC(atomicDec, decrement, unsigned int)
GIN_HOST_ATOMIC_CAS(int)
GIN_HOST_ATOMIC_CAS(unsigned int)
GIN_HOST_ATOMIC_CAS(unsigned long long int)
GIN_HOST_ATOMIC_CAS(unsigned short int)
#undef GIN_HOST_ATOMIC
#undef GIN_HOST_ATOMIC_CAS
