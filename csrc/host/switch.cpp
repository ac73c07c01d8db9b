#include "switch.h"

// A suspended context is its stack pointer: it points to the callee-saved registers and the address to continue at.
// The switch ends with a return: the threads of a kernel mostly wait in the same place, so the return addresses that the
// processor predicts from one thread's calls are those of the next thread. A jump would shift them all by one.
#if defined(__x86_64__)
__asm__(R"(
        .text
        .p2align 6
        .globl  gin_host_switch
        .hidden gin_host_switch
        .type   gin_host_switch, @function
gin_host_switch:
        .cfi_startproc
        pushq   %rbp
        pushq   %rbx
        pushq   %r12
        pushq   %r13
        pushq   %r14
        pushq   %r15
        movq    %rsp, (%rdi)
        movq    %rsi, %rsp
        popq    %r15
        popq    %r14
        popq    %r13
        popq    %r12
        popq    %rbx
        popq    %rbp
        ret
        .cfi_endproc
        .size   gin_host_switch, . - gin_host_switch

        .p2align 4
        .globl  gin_host_start
        .hidden gin_host_start
        .type   gin_host_start, @function
gin_host_start:
        .cfi_startproc
        .cfi_undefined rip
        movq    %r12, %rdi
        xorl    %ebp, %ebp
        callq   *%rbx
        ud2
        .cfi_endproc
        .size   gin_host_start, . - gin_host_start
)");
#elif defined(__aarch64__)
__asm__(R"(
        .text
        .p2align 6
        .globl  gin_host_switch
        .hidden gin_host_switch
        .type   gin_host_switch, %function
gin_host_switch:
        .cfi_startproc
        sub     sp, sp, #160
        stp     x19, x20, [sp, #0]
        stp     x21, x22, [sp, #16]
        stp     x23, x24, [sp, #32]
        stp     x25, x26, [sp, #48]
        stp     x27, x28, [sp, #64]
        stp     x29, x30, [sp, #80]
        stp     d8, d9, [sp, #96]
        stp     d10, d11, [sp, #112]
        stp     d12, d13, [sp, #128]
        stp     d14, d15, [sp, #144]
        mov     x9, sp
        str     x9, [x0]
        mov     sp, x1
        ldp     x19, x20, [sp, #0]
        ldp     x21, x22, [sp, #16]
        ldp     x23, x24, [sp, #32]
        ldp     x25, x26, [sp, #48]
        ldp     x27, x28, [sp, #64]
        ldp     x29, x30, [sp, #80]
        ldp     d8, d9, [sp, #96]
        ldp     d10, d11, [sp, #112]
        ldp     d12, d13, [sp, #128]
        ldp     d14, d15, [sp, #144]
        add     sp, sp, #160
        ret
        .cfi_endproc
        .size   gin_host_switch, . - gin_host_switch

        .p2align 4
        .globl  gin_host_start
        .hidden gin_host_start
        .type   gin_host_start, %function
gin_host_start:
        .cfi_startproc
        .cfi_undefined x30
        mov     x0, x20
        mov     x29, xzr
        blr     x19
        brk     #1
        .cfi_endproc
        .size   gin_host_start, . - gin_host_start
)");
#else
#error "the host platform runs on x86-64 and aarch64"
#endif

extern "C" void gin_host_start();

namespace gin::host {

void* make_context(void* stack_top, void (*entry)(void*), void* argument) {
  auto word = [](auto value) { return reinterpret_cast<uintptr_t>(value); };
#if defined(__x86_64__)
  // In the order of the pops: r15, r14, r13, r12 = argument, rbx = entry, rbp, then the return address. The stack is
  // 16-byte aligned at gin_host_start, which calls.
  auto* frame = static_cast<uintptr_t*>(stack_top) - 8;
  uintptr_t values[7] = {0, 0, 0, word(argument), word(entry), 0, word(gin_host_start)};
  for (int i = 0; i < 7; ++i) frame[i + 1] = values[i];
  return frame + 1;
#else
  auto* frame = static_cast<uintptr_t*>(stack_top) - 20;
  for (int i = 0; i < 20; ++i) frame[i] = 0;
  frame[0] = word(entry);
  frame[1] = word(argument);
  frame[11] = word(gin_host_start);
  return frame;
#endif
}

}  // namespace gin::host
