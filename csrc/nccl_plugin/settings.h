// What the environment says: the variables of gin that also concern this plugin, and its own.
#pragma once

#include <cstdint>

namespace gin::rma {

struct Settings {
  double connect_timeout;  // seconds for one collective step, 0 for as long as it takes: GIN_CONNECT_TIMEOUT
  double timeout;          // seconds that a peer may take nothing while something waits for it: GIN_TIMEOUT
  uint64_t pull;           // bytes of the largest put that the target's GPU copies: NCCL_RMA_GIN_PULL

  static Settings from_environment();
};

// Seconds of text such as 500ms, 30s, 2min, 0, never; `otherwise` when it is none of these.
double seconds(const char* text, double otherwise);

// Seconds on a clock that never goes back.
double now();

// A moment from now on; 0 seconds: never.
class Deadline {
 public:
  explicit Deadline(double seconds) : at_(seconds > 0 ? now() + seconds : 0) {}
  bool passed() const { return at_ > 0 && now() > at_; }
  int poll_ms() const;  // for poll(2): at most a tenth of a second

 private:
  double at_;
};

}  // namespace gin::rma
