// The producer's side of a ring: reserve slots, see whether they are free, publish. Nothing here waits.
#pragma once

#include "ring.h"

namespace gin::ibrc {

// A fence that only releases leaves the L1 cache as it is.
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900 && __CUDACC_VER_MAJOR__ * 100 + __CUDACC_VER_MINOR__ >= 1207
#define GIN_IBRC_RELEASE "release"
#else
#define GIN_IBRC_RELEASE "acq_rel"
#endif

// Words shared between producers, or with the engine.
#if defined(__CUDA_ARCH__)
GIN_IBRC_HD uint64_t load_acquire(const uint64_t* word) {
  uint64_t value;
  asm volatile("ld.acquire.sys.b64 %0, [%1];" : "=l"(value) : "l"(word) : "memory");
  return value;
}
GIN_IBRC_HD uint64_t load_shared(const uint64_t* word) {
  uint64_t value;
  asm volatile("ld.relaxed.gpu.b64 %0, [%1];" : "=l"(value) : "l"(word) : "memory");
  return value;
}
GIN_IBRC_HD void store_shared(uint64_t* word, uint64_t value) {
  asm volatile("st.relaxed.gpu.b64 [%0], %1;" ::"l"(word), "l"(value) : "memory");
}
GIN_IBRC_HD uint64_t add_shared(uint64_t* word, uint64_t value) {
  // Said to be global memory: for an address that might be shared memory, code that waits for the answer is added.
  uint64_t before;
  asm volatile("atom.relaxed.gpu.global.add.u64 %0, [%1], %2;"
               : "=l"(before)
               : "l"(__cvta_generic_to_global(word)), "l"(value)
               : "memory");
  return before;
}
#else
GIN_IBRC_HD uint64_t load_acquire(const uint64_t* word) { return __atomic_load_n(word, __ATOMIC_ACQUIRE); }
GIN_IBRC_HD uint64_t load_shared(const uint64_t* word) { return __atomic_load_n(word, __ATOMIC_ACQUIRE); }
GIN_IBRC_HD void store_shared(uint64_t* word, uint64_t value) { __atomic_store_n(word, value, __ATOMIC_RELEASE); }
GIN_IBRC_HD uint64_t add_shared(uint64_t* word, uint64_t value) {
  return __atomic_fetch_add(word, value, __ATOMIC_RELAXED);
}
#endif

// Slots that a thread has reserved.
struct Reservation {
  uint64_t first;
  uint64_t consumed;  // the engine's word, as known before
  uint32_t lanes;     // of the warp that reserved at the same time, in this ring or another
};

// Reserves `count` (1 or 2) consecutive slots. `meanwhile()` is done while the words of the ring are on their way.
// Every lane has an atomic of its own, of which the compiler makes one for the warp where they are alike. A lane chosen here to
// do it for all would be a branch, and the answer waited for at its end, before `meanwhile`.
template <class Meanwhile>
GIN_IBRC_HD Reservation reserve(const Ring& ring, uint32_t count, Meanwhile meanwhile) {
#if defined(__CUDA_ARCH__)
  const uint32_t lanes = __activemask();
#else
  const uint32_t lanes = 1;
#endif
  const uint64_t consumed = load_shared(ring.consumed_cache);
  const uint64_t first = add_shared(ring.head, count);
  meanwhile();
  return {first, consumed, lanes};
}

GIN_IBRC_HD Reservation reserve(const Ring& ring, uint32_t count) {
  return reserve(ring, count, [] {});
}

// Brings the producers' copy of the engine's word up to date. On a GPU one thread at a time: the word is across PCIe, and a
// full ring has thousands of threads that want to know.
GIN_IBRC_HD void refresh(const Ring& ring) {
#if defined(__CUDA_ARCH__)
  auto* reading = reinterpret_cast<unsigned long long*>(ring.consumed_cache + 1);
  if (load_shared(ring.consumed_cache + 1) || atomicExch(reading, 1ull)) {
    __nanosleep(200);
    return;
  }
  store_shared(ring.consumed_cache, load_acquire(&ring.progress->consumed));
  __threadfence();
  atomicExch(reading, 0ull);
#else
  store_shared(ring.consumed_cache, load_acquire(&ring.progress->consumed));
#endif
}

// Whether one of the lanes says so. They are together again afterwards, and so are their next operations.
GIN_IBRC_HD bool any_of(uint32_t lanes, bool word) {
#if defined(__CUDA_ARCH__)
  return __any_sync(lanes, word);
#else
  (void)lanes;
  return word;
#endif
}

// The lanes that reserved in one ring at the same time, and from where to where their slots lie, with others' between them.
struct Group {
  uint64_t first, end;
  uint32_t lanes;
  bool leader;

  // The leader's word, to all.
  GIN_IBRC_HD bool share(bool word) const {
#if defined(__CUDA_ARCH__)
    return __shfl_sync(lanes, word, __ffs(lanes) - 1);
#else
    return word;
#endif
  }
};

// All lanes of the reservation ask. `end` is of the thread's own slots.
GIN_IBRC_HD Group group_of(const Ring& ring, const Reservation& reserved, uint64_t end) {
  Group group{reserved.first, end, reserved.lanes, true};
#if defined(__CUDA_ARCH__)
  const uint32_t lane = (threadIdx.x + blockDim.x * (threadIdx.y + blockDim.y * threadIdx.z)) & 31;
  group.lanes = __match_any_sync(reserved.lanes, reinterpret_cast<unsigned long long>(ring.head));
  group.leader = lane == uint32_t(__ffs(group.lanes) - 1);
  for (uint32_t rest = group.lanes; rest; rest &= rest - 1) {
    const uint64_t others_first = __shfl_sync(group.lanes, reserved.first, __ffs(rest) - 1);
    const uint64_t others_end = __shfl_sync(group.lanes, end, __ffs(rest) - 1);
    if (others_first < group.first) group.first = others_first;
    if (others_end > group.end) group.end = others_end;
  }
#else
  (void)ring;
#endif
  return group;
}

// Whether the slots before the sequence `end` may be written, when those before `consumed` are free.
GIN_IBRC_HD bool has_room(const Ring& ring, uint64_t end, uint64_t consumed) { return end - consumed <= ring.depth; }

// The same, asking the engine when the ring looks full.
GIN_IBRC_HD bool finds_room(const Ring& ring, uint64_t end) {
  if (has_room(ring, end, load_shared(ring.consumed_cache))) return true;
  refresh(ring);
  return has_room(ring, end, load_shared(ring.consumed_cache));
}

// What the caller wrote before is visible to whoever sees what it publishes after.
GIN_IBRC_HD void release_payload(bool system) {
#if defined(__CUDA_ARCH__)
  if (system) {
    asm volatile("fence." GIN_IBRC_RELEASE ".sys;" ::: "memory");
  } else {
    asm volatile("fence." GIN_IBRC_RELEASE ".gpu;" ::: "memory");
  }
#else
  (void)system;  // the first word's release store does it
#endif
}

// Each word carries the phase, so the order in which the others arrive does not matter.
GIN_IBRC_HD void store_slot(Descriptor* slot, const Descriptor& d) {
#if defined(__CUDA_ARCH__)
  asm volatile("st.relaxed.sys.v2.b64 [%0], {%1, %2};" ::"l"(&slot->word[2]), "l"(d.word[2]), "l"(d.word[3])
               : "memory");
  asm volatile("st.relaxed.sys.v2.b64 [%0], {%1, %2};" ::"l"(&slot->word[0]), "l"(d.word[0]), "l"(d.word[1])
               : "memory");
#else
  __atomic_store_n(&slot->word[1], d.word[1], __ATOMIC_RELAXED);
  __atomic_store_n(&slot->word[2], d.word[2], __ATOMIC_RELAXED);
  __atomic_store_n(&slot->word[3], d.word[3], __ATOMIC_RELAXED);
  __atomic_store_n(&slot->word[0], d.word[0], __ATOMIC_RELEASE);
#endif
}

// Publishes an operation in the slots it has reserved. An extension goes first, so that it is there when its operation
// is.
GIN_IBRC_HD void publish(const Ring& ring, uint64_t sequence, const Fields& fields) {
  if (slots(fields) == 2) {
    const uint64_t next = sequence + 1;
    store_slot(&ring.slots[next & (ring.depth - 1)], encode_extension(fields, phase(next, ring.depth)));
  }
  store_slot(&ring.slots[sequence & (ring.depth - 1)], encode(fields, phase(sequence, ring.depth)));
}

// Claims a free result slot; result_slots when there is none now.
GIN_IBRC_HD uint32_t claim_result(const Ring& ring) {
  uint64_t open = load_shared(ring.free_results);
  while (open) {
    const uint64_t bit = open & (~open + 1);
#if defined(__CUDA_ARCH__)
    const uint64_t before = atomicAnd(reinterpret_cast<unsigned long long*>(ring.free_results), ~bit);
    if (before & bit) return 63 - __clzll(static_cast<long long>(bit));
#else
    const uint64_t before = __atomic_fetch_and(ring.free_results, ~bit, __ATOMIC_ACQ_REL);
    if (before & bit) return uint32_t(__builtin_ctzll(bit));
#endif
    open = before & ~bit;
  }
  return result_slots;
}

GIN_IBRC_HD void release_result(const Ring& ring, uint32_t slot) {
#if defined(__CUDA_ARCH__)
  atomicOr(reinterpret_cast<unsigned long long*>(ring.free_results), 1ull << slot);
#else
  __atomic_fetch_or(ring.free_results, uint64_t(1) << slot, __ATOMIC_ACQ_REL);
#endif
}

}  // namespace gin::ibrc
