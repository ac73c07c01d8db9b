// A wire around another that misbehaves on request. For tests; nothing of it is in the data path of a wire without
// faults.
#pragma once

#include <atomic>

#include "wire/registry.h"

namespace gin::wire {

// What goes wrong, changeable while endpoints run. In options each is "fault.<name>"; a wire has faults when one is
// given.
struct Faults {
  static constexpr uint64_t off = UINT64_MAX;

  std::atomic<uint64_t> fail_at{off};     // the completion with this number (from 0, per endpoint) fails ...
  std::atomic<uint64_t> fail_peer{off};   // ... and so does each request to this peer, before it touches memory ...
  std::atomic<uint64_t> fail_code{2};     // ... with this gin::Code ...
  std::atomic<uint64_t> fail_detail{0};   // ... and this detail
  std::atomic<uint64_t> accept{off};      // at most so many requests are taken per post
  std::atomic<uint64_t> refuse{off};      // of so many posts only the last takes any
  std::atomic<uint64_t> reverse{0};       // 1: the completions of a poll come in reverse order
  std::atomic<uint64_t> hold{0};          // 1: completions stay inside
  std::atomic<uint64_t> settle_after{0};  // settled() is false so many times first
  std::atomic<uint64_t> overtake{0};      // for so many polls later requests overtake earlier ones, where they may
};

bool is_fault(const std::string& key);
bool has_faults(const Options& options);
std::string fault_names();

// Sets faults from options (other keys are left alone).
void set_faults(Faults& faults, const Options& options);

std::unique_ptr<Fabric> make_faulty(std::unique_ptr<Fabric> inner, const Options& options);

// The faults of a fabric that `make_fabric` wrapped, or nullptr.
Faults* faults_of(Fabric& fabric);

}  // namespace gin::wire
