// The host half of the ibrc_proxy backend: the rings' memory, an engine per progress thread, and their start and stop.
#pragma once

#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "gin/backends/ibrc_proxy/ring.h"
#include "proxy/thread.h"

namespace gin::proxy {

// Where the producers are another device than this CPU. They then use copies of the rings in their own memory; the
// proxy's memory has to be made reachable for them before they start.
struct ProducerDevice {
  static constexpr uint64_t line = 128, words_bytes = 3 * line;

  char* words = nullptr;        // device memory, words_bytes for each context: 0, 0 and all ones at the starts of lines
  std::function<void()> raise;  // sets the word that waits on the device poll
};

struct ProxyOptions {
  uint32_t depth = 1024;  // slots of each context's ring: a power of two, at least 4
  uint32_t threads = 1;   // contexts are dealt out to so many progress threads
  ThreadOptions thread;
  const char* signals = nullptr;  // the control window as producers read it, where that is not Comm::control
  ProducerDevice device;
  Losses losses;  // where the loss of a peer is no failure of the job
};

class Proxy {
 public:
  // One ring per context of `layout`, over an endpoint of the fabric each. `record` and `failed` (nullptr: the record's
  // own state) are written on failure and must outlive the proxy. Throws gin::Error{config} for numbers that do not fit
  // a descriptor. Nothing runs before `start`.
  Proxy(std::shared_ptr<wire::Fabric> fabric, ControlLayout layout, uint32_t counters, Record& record, uint32_t* failed,
        const ProxyOptions& options);

  ~Proxy();
  Proxy(const Proxy&) = delete;
  Proxy& operator=(const Proxy&) = delete;

  // What Comm::backend points to, as long as the proxy lives.
  const ibrc::Ring* device_state() const { return rings_.data(); }

  const std::vector<ibrc::Ring>& rings() const { return rings_; }

  // All that the engine and producers share, but for the producers' own words.
  std::pair<char*, uint64_t> memory() const { return {memory_.get(), memory_bytes_}; }

  void start();

  // Lets the threads finish what is in the rings, for `timeout_s` at most; returns whether they did. Idempotent.
  bool stop(double timeout_s);

  // Whether all that kernels have put into the rings has settled, when none runs. Any thread.
  bool settled() const;

  // One step of all engines, for callers that drive them without threads. Not between start and stop.
  bool step();

  // The same as a progress thread takes it, which comes again at once: Engine::step_often.
  bool step_often();

  // From now on operations to that peer end at once. Any thread.
  void give_up(uint32_t peer) { failures_.give_up(peer); }

  Stats stats() const;
  std::vector<std::vector<int>> affinity();
  bool running() const { return !threads_.empty(); }

 private:
  void check(uint32_t counters) const;
  void lay_out_rings(uint32_t counters);

  std::shared_ptr<wire::Fabric> fabric_;
  const ControlLayout layout_;
  const ProxyOptions options_;
  Failures failures_;
  struct Free {
    void operator()(void* memory) const;
  };
  std::unique_ptr<char, Free> memory_;
  uint64_t memory_bytes_ = 0;
  ibrc::Result* results_ = nullptr;
  std::vector<ibrc::Ring> rings_;
  std::vector<std::unique_ptr<Engine>> engines_;
  std::vector<std::unique_ptr<ProgressThread>> threads_;
};

}  // namespace gin::proxy
