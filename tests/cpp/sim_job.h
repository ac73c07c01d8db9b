// Jobs for the simulator's tests: ranks with windows and a communicator each, made without Python.
#pragma once

#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "emulation/include/card.h"
#include "emulation/nic.h"
#include "gin/comm.h"
#include "host_kernel.h"
#include "sim/simulation.h"

namespace sim_test {

using namespace gin;
using host_test::bytes;

inline std::string kernel_flags(const std::string& backend) {
  const std::string root = host_test::root();
  return "-w -DGIN_SIM=1 -DGIN_HOST_PLATFORM=1 -DGIN_BACKEND_HEADER='\"device.cuh\"' -I" + root + "/gin/backends/" +
         backend + " -I" + root + "/csrc/include -I" + root + "/csrc/emulation/include -I" + root + "/csrc -I" + root;
}

inline std::shared_ptr<host::Module> compile(const std::string& body, const std::string& backend = "ibrc_proxy") {
  return host_test::compile("#include <gin/gin.cuh>\n#line 1 \"kernel.cu\"\n" + body, "k", {}, kernel_flags(backend));
}

inline sim::Options options(uint64_t seed, const sim::Texts& more = {}) {
  sim::Texts texts = more;
  texts["seed"] = std::to_string(seed);
  return sim::Options::parse(texts);
}

// A job whose ranks have two windows, region 1 and 2, of `window_bytes` each.
class Job {
 public:
  Job(uint32_t ranks, const sim::Options& options, uint64_t window_bytes = 4096,
      const std::string& backend = "ibrc_proxy", uint32_t contexts = 2, uint64_t timeout_ns = 30'000'000'000)
      : simulation(ranks, options), ranks_(ranks), bytes_(window_bytes) {
    uint32_t rounds = 2;
    while ((1u << (rounds - 2)) < ranks) ++rounds;
    const ControlLayout layout{contexts, signals + barriers * rounds, ranks};
    for (uint32_t r = 0; r < ranks; ++r) ranks_[r] = std::make_unique<Rank>();
    for (uint32_t r = 0; r < ranks; ++r) set_up(r, layout, rounds, backend, timeout_ns);
  }
  ~Job() {
    for (uint32_t r = 0; r < ranks_.size(); ++r)
      if (ranks_[r]->proxy) simulation.remove_proxy(r, *ranks_[r]->proxy);
  }

  static constexpr uint32_t signals = 16, counters = 4, barriers = 2;

  // Launches the kernel (comm, first window, second window) on every rank.
  void launch(std::shared_ptr<const host::Module> module, host::Index3 grid = {1, 1, 1},
              host::Index3 block = {1, 1, 1}) {
    for (uint32_t r = 0; r < ranks_.size(); ++r) launch_on(r, module, grid, block);
  }

  void launch_on(uint32_t r, std::shared_ptr<const host::Module> module, host::Index3 grid = {1, 1, 1},
                 host::Index3 block = {1, 1, 1}) {
    Rank& rank = *ranks_[r];
    simulation.launch(r, host_test::make_launch(module, {grid, block, 0, rank.library()}, rank.comm, rank.windows[0],
                                                rank.windows[1]));
  }

  // Whether all launches have ended; throws the first error.
  bool run() {
    std::vector<uint32_t> left;
    for (uint32_t r = 0; r < ranks_.size(); ++r) left.push_back(r);
    while (!left.empty()) {
      const int64_t found = simulation.run(left);
      if (found < 0) return false;
      simulation.raise_error(uint32_t(found));
      std::erase(left, uint32_t(found));
    }
    return true;
  }

  template <class T>
  T* window(uint32_t rank, uint32_t which = 0) {
    return static_cast<T*>(ranks_[rank]->windows[which].base);
  }
  const Record& record(uint32_t rank) const { return ranks_[rank]->record; }

  sim::Simulation simulation;

 private:
  struct Rank {
    std::shared_ptr<wire::Fabric> fabric;
    std::shared_ptr<proxy::Proxy> proxy;
    std::unique_ptr<emulation::Nic> nic;
    emulation::Nvshmem shmem{};
    std::vector<char*> heaps;
    char* control = nullptr;
    std::unique_ptr<char[]> heap;
    std::vector<PeerWindow> peers[3];
    Window windows[2];
    std::vector<uint64_t> words;
    Record record{};
    Comm comm{};

    void* library() { return nic ? &shmem : nullptr; }
  };

  void set_up(uint32_t r, ControlLayout layout, uint32_t rounds, const std::string& backend, uint64_t timeout_ns) {
    Rank& rank = *ranks_[r];
    const uint64_t control_bytes = layout.bytes();
    rank.heap = std::make_unique<char[]>(control_bytes + 2 * bytes_ + 64);
    rank.control = reinterpret_cast<char*>((reinterpret_cast<uintptr_t>(rank.heap.get()) + 63) / 64 * 64);
    rank.fabric = simulation.fabric(r);
    const uint32_t size = uint32_t(ranks_.size());
    char* places[3] = {rank.control, rank.control + control_bytes, rank.control + control_bytes + bytes_};
    const uint64_t sizes[3] = {control_bytes, bytes_, bytes_};
    for (int i = 0; i < 3; ++i) rank.peers[i].assign(size, {nullptr, sizes[i]});
    for (int i = 0; i < 2; ++i)
      rank.windows[i] = {places[i + 1], bytes_, uint64_t(i + 1), rank.peers[i + 1].data(), {}};
    Comm& comm = rank.comm;
    const uint64_t words = uint64_t(layout.contexts) * (2 * signals + 2 * barriers + 2 * counters);
    rank.words.assign(words, 0);
    uint64_t* word = rank.words.data();
    const auto take = [&](uint64_t count) { return std::exchange(word, word + layout.contexts * count); };
    comm.rank = r;
    comm.size = size;
    comm.contexts = layout.contexts;
    comm.signals = signals;
    comm.counters = counters;
    comm.barriers = barriers;
    comm.rounds = rounds;
    comm.flags = Comm::native_only;
    comm.timeout_ns = timeout_ns;
    comm.record = &rank.record;
    comm.failed = &rank.record.state;
    comm.epoch = take(signals);
    comm.base = take(signals);
    comm.entered = take(2 * barriers);
    comm.counter = take(counters);
    comm.counter_base = take(counters);
    comm.control = {rank.control, control_bytes, 0, rank.peers[0].data(), {}};
    comm.max_message = rank.fabric->max_message();
    if (backend == "nvshmem") {
      rank.fabric->add_region(0, rank.control, control_bytes + 2 * bytes_);
      rank.nic = std::make_unique<emulation::Nic>(*rank.fabric, layout.contexts, &rank.record);
      set_up_card(rank, layout, timeout_ns);
    } else {
      for (uint32_t i = 0; i < 3; ++i) rank.fabric->add_region(i, places[i], sizes[i]);
      proxy::ProxyOptions options;
      options.depth = 64;
      rank.proxy = std::make_shared<proxy::Proxy>(rank.fabric, layout, counters, rank.record, nullptr, options);
      simulation.add_proxy(r, rank.proxy);
      comm.backend = rank.proxy->device_state();
    }
  }

  void set_up_card(Rank& rank, ControlLayout layout, uint64_t timeout_ns) {
    using emulation::Nic;
    emulation::Card& card = rank.shmem.card;
    card.nic = rank.nic.get();
    card.post = [](void* nic, const wire::Request* r, uint64_t* counter) {
      return static_cast<Nic*>(nic)->post(*r, counter);
    };
    card.completed = [](void* nic, uint32_t c, uint64_t n) { return static_cast<Nic*>(nic)->completed(c, n); };
    card.settled = [](void* nic, uint32_t c, uint64_t n) { return static_cast<Nic*>(nic)->settled(c, n); };
    card.posted = [](void* nic, uint32_t c) { return static_cast<Nic*>(nic)->posted(c); };
    card.progress = [](void* nic, uint32_t c) { static_cast<Nic*>(nic)->progress(c); };
    card.overdue = [](void* nic, uint32_t c, Operation o, uint64_t t) { static_cast<Nic*>(nic)->overdue(c, o, t); };
    card.timeout_ns = timeout_ns;
    card.failed = &rank.record.state;
    card.rank = rank.comm.rank;
    card.size = rank.comm.size;
    card.layout = layout;
    card.control = rank.comm.control;
    rank.shmem.heap = rank.control;
    rank.shmem.heap_bytes = rank.comm.control.bytes + 2 * bytes_;
    rank.heaps.assign(rank.comm.size, nullptr);
    rank.shmem.peer_heap = rank.heaps.data();
  }

  std::vector<std::unique_ptr<Rank>> ranks_;
  const uint64_t bytes_;
};

}  // namespace sim_test
