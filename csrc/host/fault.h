// Faults of a kernel's thread: a segmentation fault, a division by zero. Where the scheduler is stepped, the fault ends the
// launch as an error; elsewhere, and where what faults is not the kernel's own code, a line says whose it was before the
// process dies of it.
#pragma once

#include <cstdint>
#include <string>

namespace gin::host {

class Scheduler;

// While it lives, faults of this OS thread are looked up in the scheduler. Nests. The first one of the process installs
// the handler, in front of whatever handler was there.
class FaultScope {
 public:
  explicit FaultScope(Scheduler& scheduler);
  ~FaultScope();
  FaultScope(const FaultScope&) = delete;
  FaultScope& operator=(const FaultScope&) = delete;

  // The innermost of this OS thread, nullptr outside of any, and how many there have been: for handlers of signals.
  static Scheduler* scheduler();
  static uint64_t count();

 private:
  Scheduler* outer_;
};

// What the process writes last when it dies of a fault in a kernel: what helps to repeat the run. Of this OS thread; empty at
// first.
void set_last_words(const std::string& text);

// From a handler of signals: writes a line about the thread that runs, and the last words.
void write_last_words(const Scheduler& scheduler, const char* what);

// Gives this OS thread a stack for signal handlers, as a handler cannot run on a stack that has overflowed. Until the end
// of the thread's life.
class SignalStack {
 public:
  SignalStack();
  ~SignalStack();
  SignalStack(const SignalStack&) = delete;
  SignalStack& operator=(const SignalStack&) = delete;

 private:
  void* memory_;
  bool installed_ = false;
};

}  // namespace gin::host
