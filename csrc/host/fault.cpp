#include "fault.h"

#include <signal.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstdio>
#include <cstring>
#include <mutex>

#include "scheduler.h"

namespace gin::host {

namespace {

constexpr size_t signal_stack_bytes = 64 * 1024;

// Signal handlers belong to the process and find their thread's data in thread-local storage; there is no other way.
thread_local Scheduler* active = nullptr;
constexpr int signals[] = {SIGSEGV, SIGBUS, SIGFPE, SIGILL};
struct sigaction previous[NSIG];

const char* meaning(int number) {
  switch (number) {
    case SIGFPE:
      return "integer division by zero, or overflow of one, at address";
    case SIGILL:
      return "illegal instruction at address";
    case SIGBUS:
      return "bus error (memory that the machine could not give) at address";
    default:
      return "segmentation fault at address";
  }
}

void describe(int number, const void* address) {
  const Thread* t = active->current();
  if (!t) return;
  const Thread* below = number == SIGFPE || number == SIGILL ? nullptr : active->arena().overrun(address);
  char text[512];
  int length =
      std::snprintf(text, sizeof text, "gin: kernel %s, block (%u,%u,%u) thread (%u,%u,%u): ", active->kernel_name(),
                    t->block->index.x, t->block->index.y, t->block->index.z, t->index.x, t->index.y, t->index.z);
  if (length < 0 || size_t(length) >= sizeof text) return;
  size_t room = sizeof text - size_t(length);
  if (below == t) {
    length += std::snprintf(text + length, room,
                            "stack overflow: a thread has %llu KiB; make large local arrays __shared__ or move them to "
                            "a window, and bound recursion\n",
                            static_cast<unsigned long long>(stack_bytes >> 10));
  } else {
    length += std::snprintf(text + length, room, "%s %p\n", meaning(number), address);
  }
  if (size_t(length) > sizeof text) length = sizeof text;
  [[maybe_unused]] ssize_t written = write(STDERR_FILENO, text, size_t(length));
}

void on_fault(int number, siginfo_t* info, void* context) {
  if (active) describe(number, info->si_addr);
  const struct sigaction& before = previous[number];
  if (before.sa_flags & SA_SIGINFO) {
    before.sa_sigaction(number, info, context);
  } else if (before.sa_handler != SIG_DFL && before.sa_handler != SIG_IGN) {
    before.sa_handler(number);
  } else {
    // Returning repeats the access, now with the default action.
    sigaction(number, &before, nullptr);
  }
}

void install() {
  struct sigaction action{};
  action.sa_sigaction = on_fault;
  action.sa_flags = SA_SIGINFO | SA_ONSTACK | SA_NODEFER;
  sigemptyset(&action.sa_mask);
  for (int number : signals) sigaction(number, &action, &previous[number]);
}

}  // namespace

FaultScope::FaultScope(Scheduler& scheduler) : outer_(active) {
  static std::once_flag once;
  std::call_once(once, install);
  active = &scheduler;
}

FaultScope::~FaultScope() { active = outer_; }

SignalStack::SignalStack() {
  memory_ = mmap(nullptr, signal_stack_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  stack_t current{};
  // A sanitizer may have given the thread one.
  if (memory_ == MAP_FAILED || sigaltstack(nullptr, &current) != 0 || !(current.ss_flags & SS_DISABLE)) return;
  stack_t stack{};
  stack.ss_sp = memory_;
  stack.ss_size = signal_stack_bytes;
  installed_ = sigaltstack(&stack, nullptr) == 0;
}

SignalStack::~SignalStack() {
  if (installed_) {
    stack_t none{};
    none.ss_flags = SS_DISABLE;
    sigaltstack(&none, nullptr);
  }
  if (memory_ != MAP_FAILED) munmap(memory_, signal_stack_bytes);
}

}  // namespace gin::host
