// One rank's cuda wire on a driver that is not there (fake/cuda.cpp), sending to itself and to what would be peers' memory.
#pragma once

#include <dlfcn.h>
#include <unistd.h>

#include <array>
#include <chrono>
#include <climits>
#include <cstring>
#include <memory>
#include <numeric>
#include <thread>
#include <vector>

#include "check.h"
#include "wire/cuda_driver.h"
#include "wire/registry.h"

namespace cuda_wire {

using namespace gin;
using namespace gin::wire;

template <class F>
F fake(const char* name) {
  static void* driver = dlopen(GIN_FAKE_CUDA, RTLD_NOW | RTLD_GLOBAL);  // the wire finds it by its name
  return reinterpret_cast<F>(dlsym(driver, name));
}

inline const auto allocate = fake<void* (*)(uint64_t, int)>("fake_allocate");
inline const auto place = fake<void (*)(void*, int)>("fake_place");
inline const auto release = fake<void (*)(void*)>("fake_free");
inline const auto enter = fake<int (*)(void*)>("cuCtxSetCurrent");
inline const auto entered = fake<int (*)(void**)>("cuCtxGetCurrent");
inline const auto word_writes = fake<int (*)()>("fake_word_writes");
inline const auto batches = fake<int (*)()>("fake_batches");
inline const auto pinned = fake<int (*)()>("fake_pinned");
inline const auto cut_batches = fake<void (*)(int)>("fake_cut_batches");
inline const auto refuse_copy = fake<void (*)(int)>("fake_refuse_copy");
inline const auto copies = fake<int (*)()>("fake_copies");
inline const auto run_kernels = fake<void (*)(int)>("fake_run");
inline const auto hold = fake<void (*)(void*)>("fake_hold");
inline const auto break_device = fake<void (*)(int)>("fake_break");
inline const auto fail_words = fake<void (*)(int)>("fake_fail_words");
inline const auto streams = fake<int (*)()>("fake_streams");

inline constexpr uint32_t control = 0, data = 1;
inline constexpr uint64_t bytes = 8 << 20;
inline constexpr uint32_t most_ranks = 9;

// Rank 0; all ranks' memory is this process's, on a GPU each, or on so many.
struct Job {
  explicit Job(const Options& options = {}, uint32_t size = 2, uint32_t gpus = most_ranks) : memory(size) {
    enter(reinterpret_cast<void*>(1));
    for (char*& one : memory) one = static_cast<char*>(allocate(bytes, 1));
    for (uint32_t rank = 0; rank < size; ++rank) place(memory[rank], int(rank % gpus));
    mine = memory[0], theirs = memory[1];
    std::iota(mine, mine + bytes, 1);
    fabric = make_fabric("cuda", 0, size, options);
    const std::string exported[] = {fabric->add_region(control, words[0], sizeof(words[0])),
                                    fabric->add_region(data, mine, bytes)};
    for (uint32_t peer = 0; peer < size; ++peer) {
      std::string told = exported[1];
      told.back() = char('0' + peer % gpus);  // the GPU's UUID comes last
      fabric->import_region(control, peer, exported[0], words[peer]);
      fabric->import_region(data, peer, told, memory[peer]);
    }
    endpoint = fabric->endpoint();
  }
  ~Job() {
    endpoint.reset();
    fabric.reset();
    for (char* one : memory) release(one);
  }

  Request put(uint64_t token, uint64_t at, uint64_t size, bool signal, uint32_t peer = 1) const {
    Request r{};
    r.verb = Verb::put;
    r.peer = peer;
    r.local_region = r.remote_region = data;
    r.local_offset = r.remote_offset = at;
    r.bytes = size;
    r.has_signal = signal;
    r.signal_region = control;
    r.signal_add = 1;
    r.token = token;
    return r;
  }

  Request value(uint64_t token, uint64_t at, uint64_t size, uint64_t value, uint32_t peer) const {
    Request r = put(token, at, size, false, peer);
    r.verb = Verb::value;
    r.value = value;
    return r;
  }

  std::vector<Completion> await(size_t count) { return await(*endpoint, count); }

  // Polls until `count` have completed, or for five seconds.
  static std::vector<Completion> await(Endpoint& from, size_t count) {
    std::vector<Completion> all(count);
    size_t got = 0;
    const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(5);
    while (got < count && std::chrono::steady_clock::now() < end) got += from.poll(&all[got], count - got);
    all.resize(got);
    return all;
  }

  std::vector<char*> memory;
  char *mine, *theirs;
  uint64_t words[most_ranks][8] = {};
  std::unique_ptr<Fabric> fabric;
  std::unique_ptr<Endpoint> endpoint;
};

// What happens to the device until `end`, or until this goes.
struct Kernel {
  Kernel() { run_kernels(1); }
  ~Kernel() { run_kernels(-1); }
};
struct Hold {
  explicit Hold(char* target) { hold(target); }
  ~Hold() { end(); }
  void end() { hold(nullptr); }
};
struct Broken {
  explicit Broken(int error) { break_device(error); }
  ~Broken() { break_device(0); }
};

// There are fewer streams than contexts: one that has the first context's streams.
inline std::unique_ptr<Endpoint> sharing(const Job& job) {
  for (int i = 0; i < 3; ++i) job.fabric->endpoint();
  return job.fabric->endpoint();
}

}  // namespace cuda_wire
