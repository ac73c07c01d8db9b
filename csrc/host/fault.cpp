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
thread_local uint64_t scopes = 0;
thread_local char last_words[1024];
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

constexpr char null_hint[] = "; peer_pointer gives a null pointer for a peer without a direct route";

// Only kernels compiled for the simulator tell whether they are in an operation of gin.
const char* operation_hint(const Thread& t) {
  if (t.call) return ", in an operation of gin: GIN_CHECK=1 finds windows, offsets and peers that are out of range";
  if (active->stepped()) return "";
  return ", in the kernel's own code or in an operation of gin whose arguments GIN_CHECK=1 would check";
}

// What happened, in words.
void describe(int number, const siginfo_t& info, char* text, size_t room) {
  const void* address = info.si_addr;
  const bool nowhere = number == SIGSEGV && info.si_code == SI_KERNEL;  // the processor does not say which
  const Thread* t = active->current();
  const Thread* below = number == SIGFPE || number == SIGILL ? nullptr : active->arena().overrun(address);
  if (below && below == t) {
    std::snprintf(text, room,
                  "stack overflow: a thread has %llu KiB; make large local arrays __shared__ or move them to a window, "
                  "and bound recursion",
                  static_cast<unsigned long long>(stack_bytes >> 10));
    return;
  }
  const bool instruction = number == SIGFPE || number == SIGILL;
  char where[32];
  std::snprintf(where, sizeof where, " 0x%llx", static_cast<unsigned long long>(uintptr_t(address)));
  std::snprintf(text, room, "%s%s%s%s", meaning(number), nowhere ? " (none that memory can have)" : where,
                instruction ? "" : operation_hint(*t),
                instruction || nowhere || t->call || uintptr_t(address) >= 4096 ? "" : null_hint);
}

void on_fault(int number, siginfo_t* info, void* context) {
  if (active && active->current()) {
    char text[320];
    describe(number, *info, text, sizeof text);
    if (info->si_code > 0 && active->abandon(context, Crash::fault, text)) return;
    write_last_words(*active, text);
  }
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
  ++scopes;
}

FaultScope::~FaultScope() { active = outer_; }

Scheduler* FaultScope::scheduler() { return active; }

uint64_t FaultScope::count() { return scopes; }

void set_last_words(const std::string& text) { std::snprintf(last_words, sizeof last_words, "%s", text.c_str()); }

void write_last_words(const Scheduler& scheduler, const char* what) {
  const Thread* t = scheduler.current();
  char text[2048];
  const int length = std::snprintf(text, sizeof text, "gin: kernel %s, block (%u,%u,%u) thread (%u,%u,%u): %s\n%s",
                                   scheduler.kernel_name(), t->block->index.x, t->block->index.y, t->block->index.z,
                                   t->index.x, t->index.y, t->index.z, what, last_words);
  if (length < 0) return;
  [[maybe_unused]] ssize_t written =
      write(STDERR_FILENO, text, size_t(length) < sizeof text ? size_t(length) : sizeof text - 1);
}

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
