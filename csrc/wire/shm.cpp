#include "wire/shm.h"

#include <cstring>

#include "wire/cma.h"
#include "wire/completions.h"
#include "wire/regions.h"

namespace gin::wire {
namespace {

struct Outcome {
  Code code;
  uint64_t detail;
};

constexpr Outcome ok{Code::ok, 0}, out_of_range{Code::range, 0}, not_mapped{Code::unsupported, 0};

bool inside(uint64_t offset, uint64_t bytes, uint64_t region_bytes) {
  return offset <= region_bytes && bytes <= region_bytes - offset;
}

void full_fence() {
#if !defined(__SANITIZE_THREAD__)  // which does not model fences
  __atomic_thread_fence(__ATOMIC_SEQ_CST);
#endif
}

// A value lands in one store where it is aligned, so a reader sees all of it or nothing.
void store_value(char* to, uint64_t value, uint64_t bytes) {
  bool aligned = uintptr_t(to) % bytes == 0;
  if (bytes == 8 && aligned) {
    __atomic_store_n(reinterpret_cast<uint64_t*>(to), value, __ATOMIC_RELAXED);
  } else if (bytes == 4 && aligned) {
    __atomic_store_n(reinterpret_cast<uint32_t*>(to), uint32_t(value), __ATOMIC_RELAXED);
  } else if (bytes == 2 && aligned) {
    __atomic_store_n(reinterpret_cast<uint16_t*>(to), uint16_t(value), __ATOMIC_RELAXED);
  } else {
    std::memcpy(to, &value, bytes);
  }
}

template <class T>
T apply(T* word, Atomic op, T operand, T compare) {
  switch (op) {
    case Atomic::fetch_add:
      return __atomic_fetch_add(word, operand, __ATOMIC_SEQ_CST);
    case Atomic::compare_swap:
      __atomic_compare_exchange_n(word, &compare, operand, false, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST);
      return compare;
    case Atomic::swap:
      return __atomic_exchange_n(word, operand, __ATOMIC_SEQ_CST);
    case Atomic::fetch_and:
      return __atomic_fetch_and(word, operand, __ATOMIC_SEQ_CST);
    case Atomic::fetch_or:
      return __atomic_fetch_or(word, operand, __ATOMIC_SEQ_CST);
    case Atomic::fetch_xor:
      return __atomic_fetch_xor(word, operand, __ATOMIC_SEQ_CST);
  }
  return T(0);
}

template <class T>
void apply_to(char* word, const Request& r, char* old) {
  T before = apply(reinterpret_cast<T*>(word), r.atomic, T(r.value), T(r.compare));
  std::memcpy(old, &before, sizeof(T));
}

class ShmEndpoint final : public Endpoint {
 public:
  ShmEndpoint(const Regions& regions, uint64_t queue) : regions_(regions), done_(queue) {}

  size_t post(const Request* requests, size_t count) override {
    count = std::min(count, done_.space());
    for (size_t i = 0; i < count; ++i) {
      Outcome outcome = execute(requests[i]);
      done_.push({requests[i].token, outcome.code, requests[i].peer, outcome.detail});
    }
    return count;
  }

  size_t poll(Completion* completions, size_t count) override { return done_.pop(completions, count); }

  bool settled() override { return true; }

 private:
  Outcome execute(const Request& r) {
    uint64_t* signal = nullptr;
    if (r.has_signal) {  // found before anything moves: a request that is refused leaves no trace
      Outcome found = find_word(r.signal_region, r.peer, r.signal_offset, signal);
      if (found.code != Code::ok) return found;
    }
    Outcome moved = move(r);
    if (moved.code == Code::ok && signal) __atomic_fetch_add(signal, r.signal_add, __ATOMIC_RELEASE);
    return moved;
  }

  Outcome move(const Request& r) {
    switch (r.verb) {
      case Verb::put:
        return copy(r, true);
      case Verb::get:
        return copy(r, false);
      case Verb::value:
        return value(r);
      case Verb::atomic:
        return atomic(r);
      case Verb::signal:
        return ok;
      case Verb::fence:
        full_fence();
        return ok;
    }
    return out_of_range;
  }

  Outcome copy(const Request& r, bool outward) {
    const Region* local = regions_.find(r.local_region);
    const PeerRegion* remote = regions_.find(r.remote_region, r.peer);
    if (!local || !remote || !inside(r.local_offset, r.bytes, local->bytes) ||
        !inside(r.remote_offset, r.bytes, remote->bytes))
      return out_of_range;
    if (r.bytes == 0) return ok;
    char* here = local->base + r.local_offset;
    if (remote->mapped) {
      char* there = remote->mapped + r.remote_offset;
      std::memmove(outward ? there : here, outward ? here : there, r.bytes);
      return ok;
    }
    uint64_t there = remote->address + r.remote_offset;
    int error = outward ? cma::write(remote->pid, here, there, r.bytes) : cma::read(remote->pid, here, there, r.bytes);
    return error ? Outcome{Code::remote, uint64_t(error)} : ok;
  }

  Outcome value(const Request& r) {
    const PeerRegion* remote = regions_.find(r.remote_region, r.peer);
    if (!remote || r.bytes < 1 || r.bytes > 8 || !inside(r.remote_offset, r.bytes, remote->bytes)) return out_of_range;
    if (remote->mapped) {
      store_value(remote->mapped + r.remote_offset, r.value, r.bytes);
      return ok;
    }
    int error = cma::write(remote->pid, &r.value, remote->address + r.remote_offset, r.bytes);
    return error ? Outcome{Code::remote, uint64_t(error)} : ok;
  }

  Outcome atomic(const Request& r) {
    char* old = answer(r);
    const PeerRegion* remote = regions_.find(r.remote_region, r.peer);
    if (!old || !remote || (r.bytes != 4 && r.bytes != 8) || r.remote_offset % r.bytes != 0 ||
        !inside(r.remote_offset, r.bytes, remote->bytes))
      return out_of_range;
    if (!remote->mapped) return not_mapped;
    char* word = remote->mapped + r.remote_offset;
    if (uintptr_t(word) % r.bytes != 0) return out_of_range;
    if (r.bytes == 8)
      apply_to<uint64_t>(word, r, old);
    else
      apply_to<uint32_t>(word, r, old);
    return ok;
  }

  // Where an atomic's old value goes, or nullptr.
  char* answer(const Request& r) const {
    if (r.local_region == local_address) return reinterpret_cast<char*>(r.local_offset);
    const Region* local = regions_.find(r.local_region);
    return local && inside(r.local_offset, r.bytes, local->bytes) ? local->base + r.local_offset : nullptr;
  }

  Outcome find_word(uint32_t region, uint32_t peer, uint64_t offset, uint64_t*& word) const {
    const PeerRegion* remote = regions_.find(region, peer);
    if (!remote || offset % 8 != 0 || !inside(offset, 8, remote->bytes)) return out_of_range;
    if (!remote->mapped || uintptr_t(remote->mapped) % 8 != 0) return not_mapped;
    word = reinterpret_cast<uint64_t*>(remote->mapped + offset);
    return ok;
  }

  const Regions& regions_;
  CompletionQueue done_;
};

class ShmFabric final : public Fabric {
 public:
  ShmFabric(uint32_t rank, uint32_t size, uint64_t max_message, uint64_t queue)
      : regions_(rank, size), max_message_(max_message), queue_(queue) {}

  std::string add_region(uint32_t region, void* base, uint64_t bytes) override {
    return regions_.add(region, base, bytes);
  }
  void import_region(uint32_t region, uint32_t peer, const std::string& exported, void* mapped) override {
    regions_.import(region, peer, exported, mapped);
  }
  void remove_region(uint32_t region) override { regions_.remove(region); }
  std::unique_ptr<Endpoint> endpoint() override { return std::make_unique<ShmEndpoint>(regions_, queue_); }
  uint64_t max_message() const override { return max_message_; }

 private:
  Regions regions_;
  uint64_t max_message_, queue_;
};

}  // namespace

std::unique_ptr<Fabric> make_shm(uint32_t rank, uint32_t size, const Options& options) {
  return std::make_unique<ShmFabric>(rank, size, option(options, "max_message", default_max_message, 1, most_message),
                                     option(options, "queue", default_queue, 1, most_queue));
}

}  // namespace gin::wire
