// Ranks of one process on the verbs wire, each with memory, a fabric and an endpoint or two, and their requests.
#pragma once

#include <chrono>
#include <memory>
#include <string>
#include <vector>

#include "check.h"
#include "requests.h"
#include "wire/verbs/verbs.h"

namespace verbs_job {

using namespace gin;
using namespace gin::wire;

constexpr uint64_t data_bytes = 1 << 20, control_words = 64;
constexpr double patience = 30;  // seconds

using Clock = std::chrono::steady_clock;

// Told of the memory of a rank before it is registered, where a test has set it.
inline void (*declare)(uint32_t rank, void* memory, uint64_t bytes) = nullptr;

struct Rank {
  Rank(uint32_t rank, uint32_t size, const Options& options, uint32_t endpoints = 1)
      : bytes(data_bytes), fabric(make_fabric("verbs", rank, size, options)), endpoint(fabric->endpoint()) {
    if (endpoints == 2) other = fabric->endpoint();
    if (declare) declare(rank, words, sizeof(words)), declare(rank, bytes.data(), data_bytes);
    exported_control = fabric->add_region(control, words, sizeof(words));
    exported_data = fabric->add_region(data, bytes.data(), data_bytes);
    fabric->add_region(result, results, sizeof(results));
  }

  // Waits until `count` completions have come.
  std::vector<Completion> wait(size_t count) {
    std::vector<Completion> got;
    const auto deadline = Clock::now() + std::chrono::duration<double>(patience);
    while (got.size() < count && Clock::now() < deadline) {
      Completion c[16];
      const size_t n = endpoint->poll(c, 16);
      got.insert(got.end(), c, c + n);
    }
    CHECK_EQ(got.size(), count);
    return got;
  }

  Completion run(const Request& request) {
    CHECK_EQ(endpoint->post(&request, 1), size_t(1));
    const std::vector<Completion> got = wait(1);
    return got.empty() ? Completion{} : got[0];
  }

  // Asks whether all has settled until the loss of a peer is told; it must not have settled before.
  std::vector<Completion> settle_or_hear() {
    const auto deadline = Clock::now() + std::chrono::duration<double>(patience);
    while (Clock::now() < deadline && !endpoint->settled()) {
      Completion c[16];
      if (const size_t n = endpoint->poll(c, 16)) {
        CHECK(endpoint->settled());
        return {c, c + n};
      }
    }
    CHECK(!"settled or late");
    return {{}};
  }

  bool settle() {
    const auto deadline = Clock::now() + std::chrono::duration<double>(patience);
    while (!endpoint->settled())
      if (Clock::now() >= deadline) return false;
    return true;
  }

  std::vector<char> bytes;  // until the fabric is gone: the device may write to it
  alignas(64) uint64_t words[control_words] = {};
  alignas(64) uint64_t results[8] = {};
  std::unique_ptr<Fabric> fabric;
  std::unique_ptr<Endpoint> endpoint, other;
  std::string exported_control, exported_data;
};

struct Job {
  explicit Job(uint32_t size, const Options& options = {}, uint32_t endpoints = 1) {
    for (uint32_t r = 0; r < size; ++r) ranks.push_back(std::make_unique<Rank>(r, size, options, endpoints));
    for (uint32_t r = 0; r < size; ++r) {
      for (uint32_t p = 0; p < size; ++p) {
        ranks[r]->fabric->import_region(control, p, ranks[p]->exported_control, nullptr);
        ranks[r]->fabric->import_region(data, p, ranks[p]->exported_data, nullptr);
        ranks[r]->fabric->connect(p, ranks[p]->fabric->address(r));
      }
    }
    for (auto& rank : ranks) rank->fabric->probe(patience);
  }
  Rank& operator[](size_t i) { return *ranks[i]; }

  std::vector<std::unique_ptr<Rank>> ranks;
};

inline Request with_signal(Request r, uint64_t word, uint64_t add) {
  r.has_signal = true;
  r.signal_region = control;
  r.signal_offset = 8 * word;
  r.signal_add = add;
  return r;
}

inline Request atomic(Atomic op, uint32_t peer, uint64_t operand, uint64_t compare = 0) {
  Request r = request(Verb::atomic, peer, 64, 0, 8);
  r.atomic = op;
  r.local_region = result;
  r.value = operand;
  r.compare = compare;
  return r;
}

inline uint64_t word_at(const Rank& rank, uint64_t offset) {
  return __atomic_load_n(reinterpret_cast<const uint64_t*>(rank.bytes.data() + offset), __ATOMIC_ACQUIRE);
}

}  // namespace verbs_job
