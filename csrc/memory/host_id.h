// Names of this machine and of its processes that stay unambiguous when a process number is used again.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <string>

namespace gin::memory {

// Equal in two processes exactly when each can name the other by its process number: boot id and process namespace.
std::string host_id();

// When the process started, in clock ticks since boot; 0 when there is no such process.
uint64_t start_time(pid_t pid);

}  // namespace gin::memory
