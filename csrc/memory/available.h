// How much more memory this process can get: what the machine has left and what its control groups leave of it.
#pragma once

#include <cstdint>
#include <string>

namespace gin::memory {

struct Available {
  uint64_t bytes;
  std::string limit;  // what sets it, for messages
};

// `root` stands before /proc and /sys; it is empty outside tests.
Available available(const std::string& root = "");

}  // namespace gin::memory
