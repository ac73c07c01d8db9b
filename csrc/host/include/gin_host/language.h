// Function and variable qualifiers, built-in variables, barriers, fences, clocks, and what gin's device code calls.
#pragma once

#include "abi.h"
#include "types.h"

#define __global__
#define __device__
#define __host__
#define __constant__
#define __grid_constant__
#define __managed__
#define __forceinline__ inline __attribute__((always_inline))
#define __noinline__ __attribute__((noinline))
#define __launch_bounds__(...)
#define __cluster_dims__(...)
#define __align__(n) __attribute__((aligned(n)))

// A function-local thread_local is static, and the module's own __tls_get_addr (entry.h) places it in the block.
#define __shared__ thread_local

#define GIN_HOST_INLINE inline __attribute__((always_inline))
// Where an operation was called, for reports.
#define GIN_HOST_SITE const char *file = __builtin_FILE(), uint32_t line = __builtin_LINE()

namespace gin::host {

// An idle poll: lets the other threads run. Use Waiting in loops, so that a report can say what is waited for and so that
// the executor polls eagerly at the beginning of each wait.
GIN_HOST_INLINE void yield() {
  Thread* t = self();
  t->services->yield(t);
}

// A wait in progress: `for (Waiting w("signal {} >= {}", id, least); !done();) w.poll();`
// `what` is a string literal; the first two {} in it are replaced by the numbers, in decimal.
class Waiting {
 public:
  GIN_HOST_INLINE explicit Waiting(const char* what, uint64_t first = 0, uint64_t second = 0, GIN_HOST_SITE)
      : thread_(self()) {
    thread_->what = what;
    thread_->file = file;
    thread_->line = line;
    thread_->value = first;
    thread_->detail = second;
    thread_->fresh = 1;
    thread_->polling = 1;
  }
  GIN_HOST_INLINE ~Waiting() {
    thread_->what = nullptr;
    thread_->polling = 0;
  }
  Waiting(const Waiting&) = delete;
  Waiting& operator=(const Waiting&) = delete;

  GIN_HOST_INLINE void poll() { thread_->services->yield(thread_); }

 private:
  Thread* thread_;
};

// Nanoseconds of a clock that all threads of the process share, from an arbitrary start.
GIN_HOST_INLINE uint64_t clock_ns() {
  Thread* t = self();
  return t->services->clock_ns(t);
}

// The launch's opaque pointer.
GIN_HOST_INLINE void* library() { return self()->block->library; }

// Keeps a report of where all threads of the launch stand now. The first of a launch wins.
GIN_HOST_INLINE void capture() {
  Thread* t = self();
  t->services->capture(t);
}

// Ends the launch with a kernel error that names the calling thread.
[[noreturn]] GIN_HOST_INLINE void fail(const char* what, GIN_HOST_SITE) {
  Thread* t = self();
  t->services->fail(t, what, file, line);
  __builtin_unreachable();
}

// Counts an atomic operation: a thread that spins on one gives the thread it waits for a turn now and then.
GIN_HOST_INLINE void count_atomic() {
  Thread* t = self();
  if (++t->atomics >= atomics_per_turn) t->services->pass(t);
}

GIN_HOST_INLINE uint32_t barrier(BarrierOp op, uint32_t value, const char* what, const char* file, uint32_t line) {
  Thread* t = self();
  return t->services->barrier(t, op, value, what, file, line);
}

GIN_HOST_INLINE uint3 vector(const Index3& index) { return uint3{index.x, index.y, index.z}; }
GIN_HOST_INLINE uint3 thread_index() { return vector(self()->index); }
GIN_HOST_INLINE uint3 block_index() { return vector(self()->block->index); }
GIN_HOST_INLINE dim3 block_size() { return dim3(vector(self()->block->size)); }
GIN_HOST_INLINE dim3 grid_size() { return dim3(vector(self()->block->grid)); }

}  // namespace gin::host

#define threadIdx (::gin::host::thread_index())
#define blockIdx (::gin::host::block_index())
#define blockDim (::gin::host::block_size())
#define gridDim (::gin::host::grid_size())
constexpr int warpSize = gin::host::warp_size;

// All threads of the block must call the same barrier, from the same line. A thread that has ended never reaches it.
GIN_HOST_INLINE void __syncthreads(GIN_HOST_SITE) {
  gin::host::barrier(gin::host::BarrierOp::plain, 0, "__syncthreads", file, line);
}
GIN_HOST_INLINE int __syncthreads_count(int predicate, GIN_HOST_SITE) {
  return int(gin::host::barrier(gin::host::BarrierOp::count, predicate != 0, "__syncthreads_count", file, line));
}
GIN_HOST_INLINE int __syncthreads_and(int predicate, GIN_HOST_SITE) {
  return int(gin::host::barrier(gin::host::BarrierOp::all, predicate != 0, "__syncthreads_and", file, line));
}
GIN_HOST_INLINE int __syncthreads_or(int predicate, GIN_HOST_SITE) {
  return int(gin::host::barrier(gin::host::BarrierOp::any, predicate != 0, "__syncthreads_or", file, line));
}

// The threads of a block share an OS thread, so among them only the compiler reorders.
GIN_HOST_INLINE void __threadfence_block() { __atomic_thread_fence(__ATOMIC_ACQ_REL); }
GIN_HOST_INLINE void __threadfence() { __atomic_thread_fence(__ATOMIC_SEQ_CST); }
GIN_HOST_INLINE void __threadfence_system() { __atomic_thread_fence(__ATOMIC_SEQ_CST); }

GIN_HOST_INLINE long long int clock64() {
  gin::host::Thread* t = gin::host::self();
  return static_cast<long long int>(t->services->cycles(t));
}
// With the declaration that libc has for this name, so that <time.h> may follow.
extern "C" __attribute__((visibility("hidden"))) inline long clock() noexcept { return clock64(); }
// Stands for reading %globaltimer, which takes inline PTX on a GPU.
GIN_HOST_INLINE unsigned long long int __globaltimer() { return gin::host::clock_ns(); }

inline void __nanosleep(unsigned int ns) {
  uint64_t end = gin::host::clock_ns() + ns;
  for (gin::host::Waiting w("__nanosleep"); gin::host::clock_ns() < end;) w.poll();
}

[[noreturn]] GIN_HOST_INLINE void __trap(GIN_HOST_SITE) { gin::host::fail("__trap()", file, line); }

extern "C" int printf(const char* format, ...) __attribute__((format(printf, 1, 2)));
