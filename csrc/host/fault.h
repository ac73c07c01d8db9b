// Turns a segmentation fault of a kernel's thread into a line that says whose it was, before the process dies of it.
#pragma once

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

 private:
  Scheduler* outer_;
};

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
