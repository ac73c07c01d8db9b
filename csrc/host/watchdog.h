// Ends threads of a stepped launch that keep the OS thread for themselves: loops that only load.
//
// Measured in processor time of the OS thread, so that a machine that is busy with other things ends nobody. A timer's signal
// (SIGURG, which is otherwise ignored) looks now and then whether still the same turn is on.
#pragma once

#include <signal.h>
#include <sys/types.h>
#include <time.h>

#include <cstdint>

namespace gin::host {

// Requests to end the process that somebody else handles: noted as well, from begin() to end().
class Requests {
 public:
  void begin();
  void end();

 private:
  static constexpr int numbers[] = {SIGINT, SIGTERM, SIGHUP};
  bool taken_[3] = {};
};

class Watchdog {
 public:
  // limit_ms: 0 for none; a request to end the process (SIGINT, SIGTERM, SIGHUP with a handler) ends such a thread
  // nevertheless, after a second.
  explicit Watchdog(uint64_t limit_ms);
  ~Watchdog();
  Watchdog(const Watchdog&) = delete;
  Watchdog& operator=(const Watchdog&) = delete;

  // Whether this OS thread is the one that made it, and may use it.
  bool is_mine() const;

  // While it lives, the turns of this OS thread are watched.
  class Watch {
   public:
    explicit Watch(Watchdog& dog);
    ~Watch();
    Watch(const Watch&) = delete;
    Watch& operator=(const Watch&) = delete;

   private:
    Watchdog& dog_;
    Watchdog* outer_;
  };

  // Called by the handler of its signal, with the handler's third argument.
  void look(void* context);

 private:
  void set_period(uint64_t ns);

  const uint64_t limit_ns_;
  const uint64_t period_ns_;
  const pid_t thread_;
  timer_t timer_{};
  Requests requests_;
  bool works_ = false;
  bool hurries_ = false;  // it has found one, and looks for a moment at which it can be ended
  uint64_t turn_ = 0;     // the turn that was on at the last look
  uint64_t since_ = 0;    // when it was first seen
};

}  // namespace gin::host
