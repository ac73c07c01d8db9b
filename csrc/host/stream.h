// A stream of launches: in order, asynchronous, on one OS thread of its own.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "launch.h"

namespace gin::host {

// What an executor does when all threads only poll: `spins` times a processor pause, then `yields` times sched_yield, then
// it sleeps, longer and longer up to `sleep_ns`. With more busy OS threads than processors, few spins.
struct Backoff {
  uint32_t spins = 4000;
  uint32_t yields = 1000;
  uint32_t sleep_ns = 50'000;
};

struct StreamOptions {
  Backoff backoff;
  uint32_t max_threads = 0;  // resident at once; 0 for as many as there are stacks
};

class Stream {
 public:
  explicit Stream(const StreamOptions& options = {});
  ~Stream();  // closes
  Stream(const Stream&) = delete;
  Stream& operator=(const Stream&) = delete;

  // Queues a launch; gin::Error{argument} when its shape is refused. After an error, launches are dropped until
  // synchronize() has reported it.
  void launch(Launch launch);

  // Waits until every launch has ended. False when the time is up first; throws the first error since the last call.
  bool synchronize(std::chrono::nanoseconds timeout);

  // Drops what is queued and has the running kernel stop at its next poll or barrier. Returns at once; the stopped kernel
  // is reported by synchronize() as an error.
  void abandon();

  // Abandons what runs and waits for it for a second. A kernel that never polls cannot be stopped: its OS thread is then
  // left behind, with a warning; it is pending, and what the kernel reaches has to stay. Nothing can be launched afterwards.
  void close();

  // Where the threads of the running kernel stand. A kernel that does not poll within the timeout is said to do that.
  std::string where(std::chrono::nanoseconds timeout = std::chrono::milliseconds(200));

  // The report that the last kernel with one asked for, by gin::host::capture(); empty without.
  std::string captured() const;

  // Launches that have not ended.
  uint64_t pending() const;

 private:
  struct State;
  std::shared_ptr<State> state_;
};

}  // namespace gin::host
