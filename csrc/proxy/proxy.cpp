#include "proxy/proxy.h"

#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>

#include "error.h"
#include "gin/backends/ibrc_proxy/producer.h"

namespace gin::proxy {
namespace {

constexpr uint64_t line = 64;
constexpr uint32_t most_depth = 1u << 20;

void require(bool fits, const std::string& what, uint64_t value, const std::string& limit) {
  if (!fits) throw Error(Error::Kind::config, what + " is " + std::to_string(value) + "; ibrc_proxy takes " + limit);
}

// Hands out pieces of one block, each beginning on a cache line. Counts only while there is no block yet.
class Carver {
 public:
  explicit Carver(char* base) : base_(base) {}

  template <class T>
  T* take(uint64_t count) {
    char* piece = base_ ? base_ + used_ : nullptr;
    used_ += (count * sizeof(T) + line - 1) / line * line;
    return reinterpret_cast<T*>(piece);
  }

  uint64_t used() const { return used_; }

 private:
  char* base_;
  uint64_t used_ = 0;
};

ibrc::Ring carve_ring(Carver& carver, uint32_t depth, uint32_t counters) {
  ibrc::Ring ring{};
  ring.slots = carver.take<ibrc::Descriptor>(depth);
  ring.depth = depth;
  ring.progress = carver.take<ibrc::Progress>(1);
  ring.counters = carver.take<uint64_t>(counters);
  ring.head = carver.take<uint64_t>(1);
  carver.take<char>(line);  // neighbouring lines are fetched in pairs
  ring.consumed_cache = carver.take<uint64_t>(1);
  ring.free_results = carver.take<uint64_t>(1);
  return ring;
}

std::function<void()> raiser(uint32_t* failed, const ProxyOptions& options) {
  if (options.device.raise) return options.device.raise;
  if (!failed) return {};
  return [failed] { __atomic_store_n(failed, 1u, __ATOMIC_RELEASE); };
}

}  // namespace

void Proxy::Free::operator()(void* memory) const { std::free(memory); }

Proxy::Proxy(std::shared_ptr<wire::Fabric> fabric, ControlLayout layout, uint32_t counters, Record& record,
             uint32_t* failed, const ProxyOptions& options)
    : fabric_(std::move(fabric)),
      layout_(layout),
      options_(options),
      failures_(record, raiser(failed, options), layout.size, options.losses) {
  check(counters);
  lay_out_rings(counters);
  const uint32_t threads = std::min(options_.threads, layout_.contexts);
  for (uint32_t i = 0; i < threads; ++i) engines_.push_back(std::make_unique<Engine>());
  for (uint32_t c = 0; c < layout_.contexts; ++c)
    engines_[c % threads]->add(
        std::make_unique<Channel>(c, rings_[c], counters, layout_, fabric_->endpoint(), failures_));
  fabric_->add_region(ibrc::result_region, results_,
                      uint64_t(layout_.contexts) * ibrc::result_slots * sizeof(ibrc::Result));
}

Proxy::~Proxy() {
  stop(0);
  fabric_->remove_region(ibrc::result_region);
}

void Proxy::check(uint32_t counters) const {
  const uint32_t depth = options_.depth;
  require(depth >= 4 && depth <= most_depth && (depth & (depth - 1)) == 0, "the ring depth", depth,
          "a power of two from 4 to " + std::to_string(most_depth));
  require(options_.threads >= 1, "the number of progress threads", options_.threads, "1 or more");
  require(layout_.contexts >= 1, "the number of contexts", layout_.contexts, "1 or more");
  require(layout_.size >= 1 && layout_.size <= ibrc::max_peers, "the number of ranks", layout_.size,
          "1 to " + std::to_string(ibrc::max_peers));
  require(layout_.ids <= ibrc::max_ids, "the number of signals and barrier words of a context", layout_.ids,
          "up to " + std::to_string(ibrc::max_ids));
  require(counters <= ibrc::max_counters, "the number of counters of a context", counters,
          "up to " + std::to_string(ibrc::max_counters));
}

void Proxy::lay_out_rings(uint32_t counters) {
  const auto carve = [&](char* base) {
    Carver carver(base);
    rings_.clear();
    for (uint32_t c = 0; c < layout_.contexts; ++c) rings_.push_back(carve_ring(carver, options_.depth, counters));
    results_ = carver.take<ibrc::Result>(uint64_t(layout_.contexts) * ibrc::result_slots);
    return carver.used();
  };
  const uint64_t bytes = carve(nullptr), page = uint64_t(sysconf(_SC_PAGESIZE));  // a GPU is given whole ones
  memory_bytes_ = (bytes + page - 1) / page * page;
  memory_.reset(static_cast<char*>(std::aligned_alloc(page, memory_bytes_)));
  if (!memory_)
    throw Error(Error::Kind::memory, "cannot allocate " + std::to_string(bytes) +
                                         " bytes for descriptor rings; use fewer contexts or a smaller ring depth");
  std::memset(memory_.get(), 0, memory_bytes_);
  carve(memory_.get());
  for (uint32_t c = 0; c < layout_.contexts; ++c) {
    rings_[c].results = results_ + uint64_t(c) * ibrc::result_slots;
    *rings_[c].free_results = ~uint64_t(0);
    if (options_.signals)
      rings_[c].signals = reinterpret_cast<const uint64_t*>(options_.signals + layout_.native(c, 0));
    if (char* words = options_.device.words) {
      words += c * ProducerDevice::words_bytes;
      rings_[c].head = reinterpret_cast<uint64_t*>(words);
      rings_[c].consumed_cache = reinterpret_cast<uint64_t*>(words + ProducerDevice::line);
      rings_[c].free_results = reinterpret_cast<uint64_t*>(words + 2 * ProducerDevice::line);
    }
  }
}

void Proxy::start() {
  if (running()) return;
  try {
    for (size_t i = 0; i < engines_.size(); ++i) {
      ThreadOptions thread = options_.thread;
      thread.name += "-" + std::to_string(i);
      if (thread.cpu >= 0) thread.cpu += int32_t(i);
      threads_.push_back(std::make_unique<ProgressThread>(*engines_[i], failures_, thread));
    }
  } catch (...) {
    threads_.clear();
    throw;
  }
}

bool Proxy::stop(double timeout_s) {
  const auto wait = std::chrono::duration<double>(std::clamp(timeout_s, 0.0, 1e6));
  const auto deadline =
      std::chrono::steady_clock::now() + std::chrono::duration_cast<std::chrono::steady_clock::duration>(wait);
  for (auto& thread : threads_) thread->request_stop(deadline);
  bool drained = true;
  for (auto& thread : threads_) drained &= thread->join();
  threads_.clear();
  return drained;
}

bool Proxy::settled() const {
  for (const ibrc::Ring& ring : rings_) {
    const uint64_t settled = ibrc::load_acquire(&ring.progress->settled);
    if (ibrc::load_acquire(&ring.progress->consumed) != settled) return false;
    const uint64_t next = ibrc::load_acquire(&ring.slots[settled & (ring.depth - 1)].word[0]);
    if ((next & ibrc::phase_bit) == ibrc::phase(settled, ring.depth)) return false;  // written, and not yet taken
  }
  return true;
}

bool Proxy::step() {
  bool moved = false;
  for (auto& engine : engines_) moved |= engine->step();
  return moved;
}

bool Proxy::step_often() {
  bool moved = false;
  for (auto& engine : engines_) moved |= engine->step_often();
  return moved;
}

Stats Proxy::stats() const {
  Stats all;
  for (auto& engine : engines_) {
    for (auto& channel : engine->channels()) {
      const Stats one = channel->stats();
      all.descriptors += one.descriptors;
      all.batches += one.batches;
      all.failures += one.failures;
      all.max_depth = std::max(all.max_depth, one.max_depth);
    }
  }
  return all;
}

std::vector<std::vector<int>> Proxy::affinity() {
  std::vector<std::vector<int>> all;
  for (auto& thread : threads_) all.push_back(thread->affinity());
  return all;
}

}  // namespace gin::proxy
