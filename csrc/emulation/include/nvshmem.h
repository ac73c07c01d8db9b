// NVSHMEM's device API on the host platform: the part of it that gin calls, with the promises that NVSHMEM documents and no
// others. Symmetric addresses are this rank's own; the library state is the launch's, as a module's is on a GPU.
#pragma once

#include <csignal>

#include "gin_emulation.h"

#define NVSHMEM_SIGNAL_ADD 10

namespace gin::emulation {

inline const Nvshmem& shmem() { return *static_cast<const Nvshmem*>(host::library()); }
inline uint64_t heap_offset(const void* address) { return uint64_t(static_cast<const char*>(address) - shmem().heap); }

inline wire::Request shmem_request(wire::Verb verb, int pe) {
  wire::Request request{};
  request.verb = verb;
  request.peer = uint32_t(pe);
  return request;
}

inline void shmem_post(const wire::Request& request) { submit(shmem().card, request); }

inline void shmem_add(wire::Request& request, const uint64_t* word, uint64_t value) {
  request.has_signal = true;
  request.signal_region = 0;
  request.signal_offset = heap_offset(word);
  request.signal_add = value;
}

inline wire::Request shmem_put(void* to, const void* from, size_t bytes, int pe) {
  wire::Request request = shmem_request(wire::Verb::put, pe);
  request.remote_offset = heap_offset(to);
  request.local_offset = heap_offset(from);
  request.bytes = bytes;
  return request;
}

// A typed access may be a plain one, which faults on a GPU at a place that is no multiple of its size.
template <class T>
T* aligned(T* place) {
  if (reinterpret_cast<uintptr_t>(place) % sizeof(T)) std::raise(SIGBUS);
  return place;
}

template <class T>
void shmem_value(T* to, T value, int pe) {
  wire::Request request = shmem_request(wire::Verb::value, pe);
  request.remote_offset = heap_offset(aligned(to));
  request.bytes = sizeof(T);
  __builtin_memcpy(&request.value, &value, sizeof(T));
  shmem_post(request);
}

template <class T>
T shmem_atomic(T* target, wire::Atomic atomic, T value, T compare, int pe) {
  T old{};
  wire::Request request = shmem_request(wire::Verb::atomic, pe);
  request.atomic = atomic;
  request.remote_offset = heap_offset(aligned(target));
  request.local_region = wire::local_address;
  request.local_offset = reinterpret_cast<uint64_t>(&old);
  request.bytes = sizeof(T);
  request.value = value;
  request.compare = compare;
  const uint64_t number = submit(shmem().card, request);
  finish(shmem().card, 0, number);
  return old;
}

}  // namespace gin::emulation

inline int nvshmem_my_pe() { return int(gin::emulation::shmem().card.rank); }
inline int nvshmem_n_pes() { return int(gin::emulation::shmem().card.size); }

inline void* nvshmem_ptr(const void* address, int pe) {
  const gin::emulation::Nvshmem& shmem = gin::emulation::shmem();
  const uint64_t offset = gin::emulation::heap_offset(address);
  return shmem.peer_heap[pe] && offset < shmem.heap_bytes ? shmem.peer_heap[pe] + offset : nullptr;
}

inline void nvshmem_quiet() { gin::emulation::settle(gin::emulation::shmem().card, 0); }
inline void nvshmem_fence() { gin::emulation::shmem_post(gin::emulation::shmem_request(gin::wire::Verb::fence, 0)); }

inline void nvshmem_putmem_nbi(void* to, const void* from, size_t bytes, int pe) {
  gin::emulation::shmem_post(gin::emulation::shmem_put(to, from, bytes, pe));
}

inline void nvshmem_putmem_signal_nbi(void* to, const void* from, size_t bytes, uint64_t* word, uint64_t value, int,
                                      int pe) {
  gin::wire::Request request = gin::emulation::shmem_put(to, from, bytes, pe);
  gin::emulation::shmem_add(request, word, value);
  gin::emulation::shmem_post(request);
}

inline void nvshmem_putmem(void* to, const void* from, size_t bytes, int pe) {
  nvshmem_putmem_nbi(to, from, bytes, pe);
  gin::emulation::finish(gin::emulation::shmem().card, 0);
}

inline void nvshmem_putmem_signal(void* to, const void* from, size_t bytes, uint64_t* word, uint64_t value, int op,
                                  int pe) {
  nvshmem_putmem_signal_nbi(to, from, bytes, word, value, op, pe);
  gin::emulation::finish(gin::emulation::shmem().card, 0);
}

inline void nvshmem_getmem_nbi(void* to, const void* from, size_t bytes, int pe) {
  gin::wire::Request request = gin::emulation::shmem_request(gin::wire::Verb::get, pe);
  request.remote_offset = gin::emulation::heap_offset(from);
  request.local_offset = gin::emulation::heap_offset(to);
  request.bytes = bytes;
  gin::emulation::shmem_post(request);
}

#define GIN_SHMEM_TYPE(name, T) \
  inline void nvshmem_##name##_p(T* to, T value, int pe) { gin::emulation::shmem_value(to, value, pe); }
GIN_SHMEM_TYPE(uint8, uint8_t)
GIN_SHMEM_TYPE(uint16, uint16_t)
GIN_SHMEM_TYPE(uint32, uint32_t)
GIN_SHMEM_TYPE(uint64, uint64_t)
#undef GIN_SHMEM_TYPE

#define GIN_SHMEM_ATOMIC(name, T, op, verb)                                                \
  inline T nvshmem_##name##_atomic_##op(T* target, T value, int pe) {                      \
    return gin::emulation::shmem_atomic<T>(target, gin::wire::Atomic::verb, value, 0, pe); \
  }
#define GIN_SHMEM_ATOMICS(name, T)                                                                       \
  GIN_SHMEM_ATOMIC(name, T, fetch_add, fetch_add)                                                        \
  GIN_SHMEM_ATOMIC(name, T, swap, swap)                                                                  \
  GIN_SHMEM_ATOMIC(name, T, fetch_and, fetch_and)                                                        \
  GIN_SHMEM_ATOMIC(name, T, fetch_or, fetch_or)                                                          \
  GIN_SHMEM_ATOMIC(name, T, fetch_xor, fetch_xor)                                                        \
  inline T nvshmem_##name##_atomic_compare_swap(T* target, T compare, T value, int pe) {                 \
    return gin::emulation::shmem_atomic<T>(target, gin::wire::Atomic::compare_swap, value, compare, pe); \
  }
GIN_SHMEM_ATOMICS(uint32, uint32_t)
GIN_SHMEM_ATOMICS(uint64, uint64_t)
#undef GIN_SHMEM_ATOMICS
#undef GIN_SHMEM_ATOMIC
