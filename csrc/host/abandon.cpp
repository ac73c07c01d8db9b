// Ends a thread from a handler of signals: the handler returns to code that ends the launch, on the thread's own stack and
// from its top, as nothing of what was interrupted goes on.
#include <dlfcn.h>
#include <link.h>
#include <ucontext.h>

#include <cstdio>

#include "module.h"
#include "scheduler.h"

namespace gin::host {

namespace {

#if defined(__x86_64__)

const void* stack_pointer(const ucontext_t& context) {
  return reinterpret_cast<const void*>(context.uc_mcontext.gregs[REG_RSP]);
}

uintptr_t instruction(const ucontext_t& context) { return uintptr_t(context.uc_mcontext.gregs[REG_RIP]); }

// Of a function that keeps nothing on its stack, as the C library's copies do not.
uintptr_t caller_of_leaf(const ucontext_t& context) { return *static_cast<const uintptr_t*>(stack_pointer(context)); }

void go_on_with(ucontext_t& context, void (*function)(Thread*), char* stack_top, Thread* argument) {
  auto* stack = reinterpret_cast<uintptr_t*>(uintptr_t(stack_top) & ~uintptr_t(15));
  *--stack = 0;  // as after a call
  greg_t* registers = context.uc_mcontext.gregs;
  constexpr greg_t direction = 0x400;
  registers[REG_EFL] &= ~direction;
  registers[REG_RSP] = greg_t(stack);
  registers[REG_RBP] = 0;
  registers[REG_RDI] = greg_t(argument);
  registers[REG_RIP] = greg_t(function);
}

#else

const void* stack_pointer(const ucontext_t& context) { return reinterpret_cast<const void*>(context.uc_mcontext.sp); }

uintptr_t instruction(const ucontext_t& context) { return uintptr_t(context.uc_mcontext.pc); }

uintptr_t caller_of_leaf(const ucontext_t& context) { return uintptr_t(context.uc_mcontext.regs[30]); }

void go_on_with(ucontext_t& context, void (*function)(Thread*), char* stack_top, Thread* argument) {
  context.uc_mcontext.sp = uintptr_t(stack_top) & ~uintptr_t(15);
  context.uc_mcontext.regs[29] = context.uc_mcontext.regs[30] = 0;
  context.uc_mcontext.regs[0] = uintptr_t(argument);
  context.uc_mcontext.pc = uintptr_t(function);
}

#endif

struct Code {
  uintptr_t begin = 0, end = 0;
  bool has(uintptr_t address) const { return address - begin < end - begin; }
};

// The code of gin itself, which must not be left in the middle.
Code find_own_code() {
  Code own;
  dl_iterate_phdr(
      [](dl_phdr_info* info, size_t, void* data) {
        const auto here = reinterpret_cast<uintptr_t>(&find_own_code);
        for (int i = 0; i < info->dlpi_phnum; ++i) {
          const ElfW(Phdr) & header = info->dlpi_phdr[i];
          const Code code{info->dlpi_addr + header.p_vaddr, info->dlpi_addr + header.p_vaddr + header.p_memsz};
          if (header.p_type != PT_LOAD || !(header.p_flags & PF_X) || !code.has(here)) continue;
          *static_cast<Code*>(data) = code;
          return 1;
        }
        return 0;
      },
      &own);
  return own;
}

const Code own_code = find_own_code();

// Where in the kernel's code the thread is: there, or in a leaf that it calls. 0 for elsewhere.
uintptr_t place_in(const Module& module, const ucontext_t& context, const Arena& arena) {
  const uintptr_t at = instruction(context);
  if (module.has_code(at)) return at;
  if (own_code.has(at) || arena.overrun(stack_pointer(context))) return 0;
  const uintptr_t caller = caller_of_leaf(context);
  return module.has_code(caller) ? caller - 1 : 0;
}

}  // namespace

bool Scheduler::abandon(void* context, Crash::Kind kind, const char* why) {
  if (!stepped_ || !current_ || !launch_) return false;
  auto& interrupted = *static_cast<ucontext_t*>(context);
  const uintptr_t at = place_in(*launch_->module, interrupted, arena_);
  if (!at) return false;
  std::snprintf(abandoned_for_, sizeof abandoned_for_, "%s", why);
  crash_.kind = kind;
  crash_.offset = at - launch_->module->base();
  const uint32_t slot = arena_.slot(current_);
#ifdef GIN_ASAN
  ASAN_UNPOISON_MEMORY_REGION(arena_.stack_bottom(slot) + 4096, stack_bytes - 4096);
#endif
  go_on_with(interrupted, &Scheduler::end_abandoned, arena_.stack_top(slot), current_);
  return true;
}

// What the thread does next. In two statements: frames that are left for good must own nothing.
void Scheduler::end_abandoned(Thread* t) {
  Scheduler& s = of(t);
  s.crash_.module = s.launch_->module;
  s.fail(t, s.abandoned_for_);
  s.leave(t);
}

}  // namespace gin::host
