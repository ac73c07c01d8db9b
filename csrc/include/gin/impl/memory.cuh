// Words that several agents write: always through these, at system scope.
#pragma once

#include <cuda/atomic>

#if !defined(__CUDACC_RTC__)  // where memcpy is built in
#include <string.h>
#endif

#include "../backend.cuh"

namespace gin::impl {

template <bool first, class A, class B>
struct Select {
  using type = A;
};
template <class A, class B>
struct Select<false, A, B> {
  using type = B;
};

template <class T>
using Word = cuda::atomic_ref<T, cuda::thread_scope_system>;

template <class T>
GIN_DEVICE T load_acquire(T* word) {
  return Word<T>(*word).load(cuda::memory_order_acquire);
}

template <class T>
GIN_DEVICE T load_relaxed(T* word) {
  return Word<T>(*word).load(cuda::memory_order_relaxed);
}

template <class T>
GIN_DEVICE void store_relaxed(T* word, T value) {
  Word<T>(*word).store(value, cuda::memory_order_relaxed);
}

GIN_DEVICE uint64_t add_relaxed(uint64_t* word, uint64_t value) {
  return Word<uint64_t>(*word).fetch_add(value, cuda::memory_order_relaxed);
}

GIN_DEVICE uint64_t add_acq_rel(uint64_t* word, uint64_t value) {
  return Word<uint64_t>(*word).fetch_add(value, cuda::memory_order_acq_rel);
}

// Whether there are fences that only release, which leave the L1 cache as it is, or only acquire, which wait for nothing.
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900 && __CUDACC_VER_MAJOR__ * 100 + __CUDACC_VER_MINOR__ >= 1207
#define GIN_ONE_WAY_FENCES 1
#else
#define GIN_ONE_WAY_FENCES 0
#endif

// What this thread wrote or saw before is visible to whoever sees what it writes after.
GIN_DEVICE void fence_release() {
#if GIN_ONE_WAY_FENCES
  asm volatile("fence.release.sys;" ::: "memory");
#else
  cuda::atomic_thread_fence(cuda::memory_order_release, cuda::thread_scope_system);
#endif
}

// What this thread does after sees what was visible to a thread whose write it saw before.
GIN_DEVICE void fence_acquire() {
#if GIN_ONE_WAY_FENCES
  asm volatile("fence.acquire.sys;" ::: "memory");
#else
  cuda::atomic_thread_fence(cuda::memory_order_acquire, cuda::thread_scope_system);
#endif
}

// The next three as asm, because cuda::atomic_ref makes an atomic of them that brings an answer back and that asks first
// whether the word is in shared memory, where none is.

// Adds where a fence has released already. On the host the addition does, which costs as much and is seen by sanitizers.
GIN_DEVICE void add_released(uint64_t* word, uint64_t value) {
#if defined(__CUDA_ARCH__)
  asm volatile("red.relaxed.sys.global.add.u64 [%0], %1;" ::"l"(__cvta_generic_to_global(word)), "l"(value) : "memory");
#else
  Word<uint64_t>(*word).fetch_add(value, cuda::memory_order_release);
#endif
}

GIN_DEVICE void add_release(uint64_t* word, uint64_t value) {
#if GIN_ONE_WAY_FENCES  // which takes less time than an addition that releases
  fence_release();
  add_released(word, value);
#elif defined(__CUDA_ARCH__)
  asm volatile("red.release.sys.global.add.u64 [%0], %1;" ::"l"(__cvta_generic_to_global(word)), "l"(value) : "memory");
#else
  Word<uint64_t>(*word).fetch_add(value, cuda::memory_order_release);
#endif
}

// Raises a word of this rank to at least `value`; nothing waits for it.
GIN_DEVICE void raise_to(uint64_t* word, uint64_t value) {
#if defined(__CUDA_ARCH__)
  asm volatile("red.relaxed.gpu.global.max.u64 [%0], %1;" ::"l"(__cvta_generic_to_global(word)), "l"(value) : "memory");
#else
  cuda::atomic_ref<uint64_t, cuda::thread_scope_device>(*word).fetch_max(value, cuda::memory_order_relaxed);
#endif
}

// Stores a value where others may be polling it: in one piece when its size and place allow.
template <class T>
GIN_DEVICE void store_value(void* to, const T& value) {
  if constexpr (sizeof(T) == 8 || sizeof(T) == 4) {
    using Bits = typename Select<sizeof(T) == 8, uint64_t, uint32_t>::type;
    if (reinterpret_cast<uintptr_t>(to) % sizeof(T) == 0) {
      Bits bits;
      memcpy(&bits, &value, sizeof(T));
      store_relaxed(static_cast<Bits*>(to), bits);
      return;
    }
  }
  memcpy(to, &value, sizeof(T));
}

GIN_DEVICE void fence_system() { cuda::atomic_thread_fence(cuda::memory_order_acq_rel, cuda::thread_scope_system); }

// An atomic on memory this thread can load and store. Returns the old value.
template <class T>
GIN_DEVICE T atomic_here(T* word, AtomicOp op, T operand, T compare) {
  Word<T> target(*word);
  constexpr auto order = cuda::memory_order_acq_rel;
  switch (op) {
    case AtomicOp::fetch_add:
      return target.fetch_add(operand, order);
    case AtomicOp::swap:
      return target.exchange(operand, order);
    case AtomicOp::fetch_and:
      return target.fetch_and(operand, order);
    case AtomicOp::fetch_or:
      return target.fetch_or(operand, order);
    case AtomicOp::fetch_xor:
      return target.fetch_xor(operand, order);
    case AtomicOp::compare_swap:
      target.compare_exchange_strong(compare, operand, order, cuda::memory_order_acquire);
      return compare;
  }
  return T{};
}

}  // namespace gin::impl
