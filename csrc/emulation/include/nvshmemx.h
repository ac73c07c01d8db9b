// NVSHMEM's extensions on the host platform: the forms that a group calls, and the signal on its own. As in NVSHMEM, a group
// form synchronises its group when it is done.
#pragma once

#include "nvshmem.h"

inline void nvshmemx_signal_op(uint64_t* word, uint64_t value, int, int pe) {
  gin::wire::Request request = gin::emulation::shmem_request(gin::wire::Verb::signal, pe);
  gin::emulation::shmem_add(request, word, value);
  gin::emulation::shmem_post(request);
}

#define GIN_SHMEM_GROUP(suffix, leads, sync)                                                                \
  inline void nvshmemx_putmem_nbi_##suffix(void* to, const void* from, size_t bytes, int pe) {              \
    if (leads) nvshmem_putmem_nbi(to, from, bytes, pe);                                                     \
    sync;                                                                                                   \
  }                                                                                                         \
  inline void nvshmemx_putmem_##suffix(void* to, const void* from, size_t bytes, int pe) {                  \
    if (leads) nvshmem_putmem(to, from, bytes, pe);                                                         \
    sync;                                                                                                   \
  }                                                                                                         \
  inline void nvshmemx_getmem_nbi_##suffix(void* to, const void* from, size_t bytes, int pe) {              \
    if (leads) nvshmem_getmem_nbi(to, from, bytes, pe);                                                     \
    sync;                                                                                                   \
  }                                                                                                         \
  inline void nvshmemx_putmem_signal_nbi_##suffix(void* to, const void* from, size_t bytes, uint64_t* word, \
                                                  uint64_t value, int op, int pe) {                         \
    if (leads) nvshmem_putmem_signal_nbi(to, from, bytes, word, value, op, pe);                             \
    sync;                                                                                                   \
  }                                                                                                         \
  inline void nvshmemx_putmem_signal_##suffix(void* to, const void* from, size_t bytes, uint64_t* word,     \
                                              uint64_t value, int op, int pe) {                             \
    if (leads) nvshmem_putmem_signal(to, from, bytes, word, value, op, pe);                                 \
    sync;                                                                                                   \
  }
GIN_SHMEM_GROUP(warp, gin::Warp{}.leader(), gin::Warp{}.sync())
GIN_SHMEM_GROUP(block, gin::Block{}.leader(), gin::Block{}.sync())
#undef GIN_SHMEM_GROUP
