// The few functions of NVIDIA's driver that the engine and the cuda wire call, found at run time: nothing links CUDA.
#pragma once

#include <cstddef>
#include <cstdint>

namespace gin::wire::cuda {

using Stream = void*;
using Context = void*;
using Address = uint64_t;

constexpr int success = 0, not_ready = 600;
constexpr unsigned non_blocking = 1, portable_mapped = 3, with_barrier = 0;
constexpr int urgent = -100;  // clamped to the highest priority there is

struct Driver {
  int (*get_context)(Context*);
  int (*set_context)(Context);
  int (*create_stream)(Stream*, unsigned flags, int priority);
  int (*destroy_stream)(Stream);
  int (*query_stream)(Stream);
  int (*copy)(Address to, Address from, size_t bytes, Stream);
  int (*write64)(Stream, Address to, uint64_t value, unsigned flags);
  int (*write32)(Stream, Address to, uint32_t value, unsigned flags);
  int (*allocate_host)(void**, size_t bytes, unsigned flags);
  int (*free_host)(void*);
  int (*describe)(int error, const char**);
};

// Throws gin::Error{unsupported} where there is no driver.
const Driver& driver();

// Throws gin::Error{internal} for anything but success. `what` is what was being done.
void check(int result, const char* what);

// The calling thread's context. Throws gin::Error{config} when it has none.
Context current_context();

// Makes a context the calling thread's. Returns CUDA's error.
int enter(Context context);

// Makes a context the calling thread's for as long as it lives. For what runs on threads of others, as destructors may
// between any two lines of Python: the thread keeps the context that it had. Says nothing when the device is lost.
class Visit {
 public:
  explicit Visit(Context context);
  ~Visit();
  Visit(const Visit&) = delete;
  Visit& operator=(const Visit&) = delete;

 private:
  Context before_ = nullptr;
  bool changed_ = false;
};

// A stream that never queues behind a kernel: streams of one priority share a few hardware queues, and what such a kernel
// waits for must not stand behind it.
Stream urgent_stream();

// Sets words of device memory from any thread while kernels run.
class WordWriter {
 public:
  WordWriter();
  ~WordWriter();
  WordWriter(const WordWriter&) = delete;
  WordWriter& operator=(const WordWriter&) = delete;

  // Returns without waiting; says nothing when the device is lost.
  void write(uint32_t* word, uint32_t value);

 private:
  Context context_;
  Stream stream_;
};

}  // namespace gin::wire::cuda
