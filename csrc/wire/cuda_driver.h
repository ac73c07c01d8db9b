// The few functions of NVIDIA's driver that the engine and the cuda wire call, found at run time: nothing links CUDA.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

namespace gin::wire::cuda {

using Stream = void*;
using Context = void*;
using Address = uint64_t;

constexpr int success = 0, not_ready = 600, not_supported = 801;
constexpr unsigned non_blocking = 1, portable_mapped = 3, with_barrier = 0;
constexpr int urgent = -100;  // clamped to the highest priority there is

struct Driver {
  int (*get_context)(Context*);
  int (*get_device)(int*);
  int (*get_uuid)(unsigned char out[16], int device);
  int (*set_context)(Context);
  int (*create_stream)(Stream*, unsigned flags, int priority);
  int (*destroy_stream)(Stream);
  int (*query_stream)(Stream);
  int (*exchange_capture_mode)(int* mode);  // the calling thread's; nullptr where there is none
  int (*copy)(Address to, Address from, size_t bytes, Stream);
  int (*copy_batch)(const Address* to, const Address* from, const size_t* bytes, size_t count, const void* attributes,
                    const size_t* first_of_attributes, size_t count_of_attributes, Stream);  // nullptr before CUDA 13
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

// From now on this thread's questions about streams are answered, and harm nobody, while another thread captures one of its own.
void ignore_captures();

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

// What the calling thread's GPU is called in every process. Throws gin::Error. (Whose memory an address is the driver does
// not say reliably: of another process's memory, opened by its handle, it names the GPU that opened it.)
std::string current_gpu();

// Copies in any order among themselves, all in the stream's turn. Returns CUDA's error, not_supported where the driver has
// no such call; what of them has been put into the stream then is not known.
int copy_all(const Address* to, const Address* from, const size_t* bytes, size_t count, Stream stream);

// A stream that never queues behind a kernel: streams of one priority share a few hardware queues, and what such a kernel
// waits for must not stand behind it.
class UrgentStream {
 public:
  UrgentStream();  // in the calling thread's context; throws gin::Error
  ~UrgentStream();
  UrgentStream(const UrgentStream&) = delete;
  UrgentStream& operator=(const UrgentStream&) = delete;

  Stream get() const { return stream_; }

  // CUDA's error: success when everything in it has been done, not_ready when it is under way.
  int query() const { return driver().query_stream(stream_); }

  // Waits a little for what is under way; false when it still is, as a kernel holds it up.
  bool drain() const;

 private:
  const Context context_ = current_context();
  Stream stream_ = nullptr;
};

// Sets words of device memory from any thread while kernels run.
class WordWriter {
 public:
  WordWriter() : context_(current_context()) {}

  // Returns without waiting; says nothing when the device is lost.
  void write(uint32_t* word, uint32_t value);

 private:
  Context context_;
  UrgentStream stream_;
};

}  // namespace gin::wire::cuda
