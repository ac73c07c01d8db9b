// Shared memory between a process and one forked child, both of which end by a deadline.
#pragma once

#include <immintrin.h>
#include <sched.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstring>
#include <string>

#include "error.h"

namespace gin::baseline {

using Clock = std::chrono::steady_clock;

inline double nanoseconds(Clock::duration d) { return std::chrono::duration<double, std::nano>(d).count(); }

// Spins until `ready()`, looking at the clock only now and then. False when the deadline passed.
template <class Ready>
bool spin(Ready ready, Clock::time_point deadline) {
  for (uint32_t i = 1; !ready(); ++i) {
    _mm_pause();
    if (i % 4096 == 0) {
      if (Clock::now() > deadline) return false;
      sched_yield();  // on a busy machine the other side may need this core
    }
  }
  return true;
}

class SharedMemory {
 public:
  explicit SharedMemory(size_t bytes) : bytes_(bytes) {
    base_ = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
    if (base_ == MAP_FAILED) {
      throw Error(Error::Kind::memory,
                  "baseline: cannot map " + std::to_string(bytes) + " bytes of shared memory: " + std::strerror(errno));
    }
  }
  ~SharedMemory() { munmap(base_, bytes_); }
  SharedMemory(const SharedMemory&) = delete;
  SharedMemory& operator=(const SharedMemory&) = delete;

  char* at(size_t offset) const { return static_cast<char*>(base_) + offset; }

 private:
  void* base_;
  size_t bytes_;
};

// A forked process that runs `body` and nothing else; it dies with its parent and is killed when this object goes.
class Child {
 public:
  template <class Body>
  explicit Child(Body body) {
    pid_t parent = getpid();
    pid_ = fork();
    if (pid_ < 0) throw Error(Error::Kind::internal, std::string("baseline: cannot fork: ") + std::strerror(errno));
    if (pid_ == 0) {
      prctl(PR_SET_PDEATHSIG, SIGKILL);
      if (getppid() == parent) body();
      _exit(0);
    }
  }
  ~Child() {
    kill(pid_, SIGKILL);
    while (waitpid(pid_, nullptr, 0) < 0 && errno == EINTR) {
    }
  }
  Child(const Child&) = delete;
  Child& operator=(const Child&) = delete;

 private:
  pid_t pid_;
};

[[noreturn]] inline void timed_out(const char* what, double deadline_s) {
  throw Error(Error::Kind::timeout, std::string("baseline ") + what + " did not finish in " +
                                        std::to_string(deadline_s) + " s; is the machine overloaded?");
}

}  // namespace gin::baseline
