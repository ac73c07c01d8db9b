// What the environment says when a communicator is made: this plugin's own variables, by which gin hands over what its job was
// given (gin/backends/nccl_gin/plugin.py), and else those of gin that also concern it.
#pragma once

#include <cstdint>

namespace gin::rma {

struct Settings {
  // Seconds for one collective step, 0 for as long as it takes: NCCL_RMA_GIN_CONNECT_TIMEOUT, GIN_CONNECT_TIMEOUT.
  double connect_timeout;
  // Seconds that a peer may take nothing while something waits for it: NCCL_RMA_GIN_TIMEOUT, GIN_TIMEOUT.
  double timeout;
  // Bytes of the largest put that the target's GPU copies: NCCL_RMA_GIN_PULL.
  uint64_t pull;

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
