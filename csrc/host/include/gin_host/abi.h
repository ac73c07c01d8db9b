// What a compiled kernel and the executor that runs it agree on. Included by both; C++17, no library headers.
//
// Every thread of a kernel is a fiber. Stacks lie in an arena whose size and alignment are one power of two, and the
// arena begins with the array of the threads' control blocks, so a thread finds its own control block from the stack
// pointer alone, with two masks and a shift and without thread-local storage.
#pragma once

#include <stdint.h>

namespace gin {
struct Comm;
struct Window;
}  // namespace gin

namespace gin::host {

constexpr unsigned stack_bits = 18;  // 256 KiB of address space for each stack
constexpr unsigned arena_bits = 32;
constexpr unsigned thread_bytes = 128;
constexpr uint64_t stack_bytes = uint64_t(1) << stack_bits;
constexpr uint64_t arena_bytes = uint64_t(1) << arena_bits;
constexpr uint32_t arena_slots = uint32_t(arena_bytes >> stack_bits);
constexpr uint32_t first_slot = uint32_t(uint64_t(arena_slots) * thread_bytes >> stack_bits);

constexpr uint32_t warp_size = 32;
constexpr uint32_t shared_limit = 227 * 1024;     // static and dynamic shared memory of one block
constexpr uint32_t dynamic_placeholder = 232448;  // bytes that `gin_dynamic_shared` takes in the module's TLS image
constexpr uint32_t atomics_per_turn = 64;         // atomic operations in a row before other threads get their turn
static_assert(shared_limit == dynamic_placeholder);

struct Index3 {
  uint32_t x, y, z;
};

// What the threads of a block have in common.
struct Block {
  Index3 index, size, grid;  // blockIdx, blockDim, gridDim
  uint32_t shared_bytes;     // dynamic shared memory of the launch
  void* library;             // the launch's opaque pointer
};

enum class BarrierOp : uint32_t { plain, count, all, any };

enum class WarpOp : uint32_t {
  sync,
  gather,  // each lane names the lane whose value it gets
  ballot,  // the lanes whose value is not zero
  match,   // the lanes whose value is the same
  add,
  min_signed,
  max_signed,
  min_unsigned,
  max_unsigned,
  bit_and,
  bit_or,
  bit_xor,
};

struct Thread;

// A gin operation in progress, and where the kernel's source calls it. Kernels compiled for the simulator have them.
struct Call {
  const char* file;
  uint32_t line;
  bool yields;  // other threads may get their turn when it is over
};

// What such a kernel tells the executor.
enum class NoteKind : uint32_t {
  call_ends,  // a gin operation is over
  descriptor,  // context: of the ring. id: the sequence of the operation's first slot. first, second: address and bytes of
               // what a put reads
  wait_begins,  // context, id, first: what is waited for. second: for how many ns at most, 0 for ever
  wait_met,     // context, id, first. second: what was seen
  wait_fails,   // the same, past its deadline
  read,         // context, id. second: the value
  reset,        // context, id. first: what was taken off
  watch,  // the wait that begins goes on until the 64-bit word at the address `id` has come to `first`, in steps that may
          // wrap, or the 32-bit word at the address `second` is not 0
};

struct Note {
  NoteKind kind;
  uint32_t operation;  // a gin::Operation
  uint32_t context;
  uint64_t id, first, second;
};

// The executor's side of every operation that can block, look at the clock or fail.
struct Services {
  // A poll that found nothing. Other threads run; when all of them only poll, the executor backs off.
  void (*yield)(Thread*);
  // A turn for other threads, from one that may be getting on with its work.
  void (*pass)(Thread*);
  uint32_t (*barrier)(Thread*, BarrierOp, uint32_t value, const char* what, const char* file, uint32_t line);
  uint64_t (*warp)(Thread*, WarpOp, uint32_t mask, uint64_t value, uint32_t source, const char* what, const char* file,
                   uint32_t line);
  void (*fail)(Thread*, const char* what, const char* file, uint32_t line);  // ends the launch; does not return
  uint64_t (*clock_ns)(Thread*);
  uint64_t (*cycles)(Thread*);
  void (*capture)(Thread*);           // keeps a report of where all threads stand now, the first of a launch only
  void* (*tls_address)(void* index);  // other modules' thread-local variables
  void (*note)(Thread*, const Note&);
};

// A thread's control block. The first line is what every switch touches, the second what a waiting thread waits for.
struct alignas(thread_bytes) Thread {
  Index3 index;   // threadIdx
  uint32_t rank;  // linear index in its block
  Block* block;
  char* shared;  // the block's image of the module's TLS segment
  const Services* services;
  void* scheduler;
  Thread* next;
  void* stack;  // saved stack pointer

  const char* what;  // what a waiting thread waits for, nullptr when it does not
  const char* file;
  uint64_t value;   // a warp operation's operand, then its result; the first {} of `what`
  uint64_t detail;  // the second {} of `what`
  uint32_t line;
  uint32_t mask;     // the lanes a warp operation waits for
  uint32_t source;   // the lane a gather reads
  uint32_t atomics;  // since the last turn
  uint32_t op;
  uint16_t fresh;    // a new wait has begun: the executor's back-off starts again
  uint16_t polling;  // `what` is a wait of its own, and not a barrier or warp operation
  const Call* call;  // the gin operation that the thread is in, in kernels that tell
};
static_assert(sizeof(Thread) == thread_bytes);

enum class Kind : uint32_t {
  comm,
  window,
  signed_integer,
  unsigned_integer,
  floating,
  boolean,
  pointer,
  structure,
};

struct Param {
  Kind kind;
  uint32_t size, align;
};

// What a compiled kernel exports as `gin_host_entry`.
struct Entry {
  uint64_t stamp;
  const char* name;
  const Param* params;
  uint64_t param_count;
  void (*call)(void* const* args);  // the kernel, with args[i] pointing to its i-th argument
  void* (*dynamic_shared)();        // address of `gin_dynamic_shared` as the calling thread sees it
  uint64_t* tls_module;             // set by the loader: the module's id in a TLS index
};

// Changes whenever either side would misread the other. Readable: version, then the sizes that could differ.
constexpr uint64_t abi_version = 2;
constexpr uint64_t abi_stamp = abi_version << 48 | uint64_t(sizeof(Thread)) << 32 | uint64_t(sizeof(Services)) << 16 |
                               uint64_t(arena_bits) << 8 | stack_bits;

inline Thread* thread_of(uintptr_t stack_pointer) {
  uintptr_t arena = stack_pointer & ~uintptr_t(arena_bytes - 1);
  return reinterpret_cast<Thread*>(arena) + (uint32_t(stack_pointer) >> stack_bits);
}
static_assert(arena_bits == 32, "thread_of takes the slot from the low 32 bits of the stack pointer");

// The calling thread. Any stack pointer of its stack serves, so the compiler may read it once per function.
inline __attribute__((always_inline)) Thread* self() {
  uintptr_t stack_pointer;
#if defined(__x86_64__)
  __asm__("movq %%rsp, %0" : "=r"(stack_pointer));
#elif defined(__aarch64__)
  __asm__("mov %0, sp" : "=r"(stack_pointer));
#else
#error "the host platform runs on x86-64 and aarch64"
#endif
  return thread_of(stack_pointer);
}

}  // namespace gin::host
