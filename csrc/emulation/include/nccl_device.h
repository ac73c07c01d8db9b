// NCCL's device API for GPU-initiated networking, on the host platform: the part of it that gin calls, with the promises
// that NCCL documents and no others. Windows are (window, offset); signals and counters are numbers within a context.
#pragma once

#include <cuda/atomic>

#include "gin_emulation.h"

typedef enum { ncclSuccess = 0, ncclTimeout = 8 } ncclResult_t;
typedef uint32_t ncclGinSignal_t;
typedef uint32_t ncclGinCounter_t;
typedef struct {
  uint64_t opaque[2];
} ncclGinRequest_t;

struct ncclTeam {
  int nRanks, rank, stride;
};

inline ncclTeam ncclTeamWorld(const ncclDevComm& comm) { return {comm.nRanks, comm.rank, 1}; }
inline ncclTeam ncclTeamLsa(const ncclDevComm& comm) { return {comm.lsaSize, comm.lsaRank, 1}; }

// Whether rank `peer` of team `b` is in team `a`; both seen from the same rank.
inline bool ncclTeamRankIsMember(ncclTeam a, ncclTeam b, int peer) {
  const int apart = (peer - b.rank) * b.stride;
  return apart % a.stride == 0 && a.rank + apart / a.stride >= 0 && a.rank + apart / a.stride < a.nRanks;
}
inline int ncclTeamRankToTeam(ncclTeam a, ncclTeam b, int peer) {
  return a.rank + (peer - b.rank) * b.stride / a.stride;
}

inline void* ncclGetLsaPointer(ncclWindow_t window, size_t offset, int peer) {
  void* base = window->window.peers[peer].pointer;
  return base ? static_cast<char*>(base) + offset : nullptr;
}

struct ncclCoopThread {};
struct ncclGin_None {};
struct ncclGin_StrongSignalAdd {
  ncclGinSignal_t signal;
  uint64_t value;
};
struct ncclGin_WeakSignalAdd {
  ncclGinSignal_t signal;
  uint64_t value;
};
struct ncclGin_StrongVASignalAdd {
  ncclWindow_t signalWindow;
  size_t signalOffset;
  uint64_t value;
};
struct ncclGin_WeakCounterInc {
  ncclGinCounter_t counter;
};

class ncclGin {
 public:
  ncclGin(const ncclDevComm& comm, int context) : comm_(comm), context_(uint32_t(context)) {}

  template <class Remote = ncclGin_None, class Local = ncclGin_None>
  void put(ncclTeam, int peer, ncclWindow_t dst, size_t dst_offset, ncclWindow_t src, size_t src_offset, size_t bytes,
           Remote remote = {}, Local local = {}) const {
    gin::wire::Request request = make(gin::wire::Verb::put, peer);
    request.remote_region = dst->region, request.remote_offset = dst_offset;
    request.local_region = src->region, request.local_offset = src_offset;
    request.bytes = bytes;
    add(request, remote);
    post(request, local);
  }

  template <class T, class Remote = ncclGin_None>
  void putValue(ncclTeam, int peer, ncclWindow_t dst, size_t offset, T value, Remote remote = {}) const {
    gin::wire::Request request = make(gin::wire::Verb::value, peer);
    request.remote_region = dst->region, request.remote_offset = offset;
    request.bytes = sizeof(T);
    __builtin_memcpy(&request.value, &value, sizeof(T));
    add(request, remote);
    post(request, ncclGin_None{});
  }

  void get(ncclTeam, int peer, ncclWindow_t src, size_t src_offset, ncclWindow_t dst, size_t dst_offset,
           size_t bytes) const {
    gin::wire::Request request = make(gin::wire::Verb::get, peer);
    request.remote_region = src->region, request.remote_offset = src_offset;
    request.local_region = dst->region, request.local_offset = dst_offset;
    request.bytes = bytes;
    post(request, ncclGin_None{});
  }

  template <class Remote>
  void signal(ncclTeam, int peer, Remote remote) const {
    gin::wire::Request request = make(gin::wire::Verb::signal, peer);
    add(request, remote);
    post(request, ncclGin_None{});
  }

  uint64_t readSignal(ncclGinSignal_t signal, int = 64, cuda::memory_order order = cuda::memory_order_acquire) const {
    const gin::emulation::Card& card = *comm_.card;
    auto* word = static_cast<uint64_t*>(card.control.local(card.layout.native(context_, signal)));
    return cuda::atomic_ref<uint64_t, cuda::thread_scope_system>(*word).load(order);
  }

  uint64_t readCounter(ncclGinCounter_t counter, int = 56,
                       cuda::memory_order order = cuda::memory_order_acquire) const {
    comm_.card->progress(comm_.card->nic, context_);
    return cuda::atomic_ref<uint64_t, cuda::thread_scope_system>(*counter_word(counter)).load(order);
  }

  void flushAsync(ncclTeam, uint32_t, ncclGinRequest_t* request) const {
    request->opaque[0] = comm_.card->posted(comm_.card->nic, context_);
    request->opaque[1] = 0;
  }

  // Looks once: a deadline of any number of cycles is over by the next look. NCCL's proxy is asked anew by each wait to make
  // gets visible, so that a wait which is shorter than its answer takes is always late.
  ncclResult_t wait(ncclGinRequest_t& request, ncclCoopThread, ncclGin_None, cuda::memory_order,
                    uint64_t timeoutCycles) const {
    constexpr uint64_t proxy_cycles = 20000;  // 10 us of a GPU
    const bool completed = comm_.card->completed(comm_.card->nic, context_, request.opaque[0]);
    return completed && timeoutCycles >= proxy_cycles ? ncclSuccess : ncclTimeout;
  }

 private:
  gin::wire::Request make(gin::wire::Verb verb, int peer) const {
    gin::wire::Request request{};
    request.verb = verb;
    request.context = context_;
    request.peer = uint32_t(peer);
    return request;
  }

  static void add(gin::wire::Request&, ncclGin_None) {}
  void add(gin::wire::Request& request, ncclGin_WeakSignalAdd signal) const {
    number(request, signal.signal, signal.value);
  }
  void add(gin::wire::Request& request, ncclGin_StrongSignalAdd signal) const {
    number(request, signal.signal, signal.value);
    request.ordered = true;
  }
  void add(gin::wire::Request& request, ncclGin_StrongVASignalAdd signal) const {
    request.has_signal = request.ordered = true;
    request.signal_region = signal.signalWindow->region;
    request.signal_offset = signal.signalOffset;
    request.signal_add = signal.value;
  }
  void number(gin::wire::Request& request, ncclGinSignal_t signal, uint64_t value) const {
    request.has_signal = true;
    request.signal_region = 0;
    request.signal_offset = comm_.card->layout.native(context_, signal);
    request.signal_add = value;
  }

  uint64_t* counter_word(ncclGinCounter_t counter) const {
    return &comm_.counters[context_ * comm_.countersPerContext + counter];
  }
  uint64_t* counter_of(ncclGin_None) const { return nullptr; }
  uint64_t* counter_of(ncclGin_WeakCounterInc local) const { return counter_word(local.counter); }

  template <class Local>
  void post(const gin::wire::Request& request, Local local) const {
    gin::emulation::submit(*comm_.card, request, counter_of(local));
  }

  const ncclDevComm& comm_;
  uint32_t context_;
};
