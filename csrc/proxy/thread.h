// An OS thread that steps an engine: at once while there is work, then yielding, then sleeping in between. What a wire throws
// fails the job and ends the thread: nobody knows which requests the wire has taken, so none is posted again.
#pragma once

#include <atomic>
#include <chrono>
#include <string>
#include <thread>
#include <vector>

#include "proxy/engine.h"

namespace gin::proxy {

struct ThreadOptions {
  uint32_t spin = 256;             // steps without movement before it yields between steps
  uint32_t yield = 4096;           // ... and before it sleeps between steps
  uint32_t sleep_us = 50;          // how long it sleeps: the most that work waits for an idle thread
  int32_t cpu = -1;                // the one CPU it runs on, -1 for any
  std::string name = "gin-proxy";  // 15 characters at most count
};

class ProgressThread {
 public:
  // Starts at once. Throws gin::Error when the thread cannot be started or pinned.
  ProgressThread(Engine& engine, Failures& failures, const ThreadOptions& options);

  ~ProgressThread();
  ProgressThread(const ProgressThread&) = delete;
  ProgressThread& operator=(const ProgressThread&) = delete;

  // Tells the thread to end when its engine is idle, or at the deadline. Does not wait.
  void request_stop(std::chrono::steady_clock::time_point deadline);

  // Waits for its end; returns whether the engine was idle then.
  bool join();

  // The CPUs it may run on.
  std::vector<int> affinity();

 private:
  void run();
  void step_until_told();
  void fail(const char* why);
  void rest(uint32_t idle_steps);
  bool may_end() const;

  Engine& engine_;
  Failures& failures_;
  const ThreadOptions options_;
  std::atomic<bool> stopping_{false};
  std::atomic<int64_t> deadline_ns_{0};  // of steady_clock, valid once stopping_
  bool drained_ = true;                  // read after join
  std::thread thread_;
};

}  // namespace gin::proxy
