// What a wait can end with, and the one record a failed job leaves behind. Shared by device code and the host.
#pragma once

#include <cstdint>

#if defined(__CUDACC__)
#define GIN_HD __host__ __device__ __forceinline__
#define GIN_DEVICE __device__ __forceinline__
#define GIN_DEVICE_CALL static __device__ __noinline__  // a function whose body is too large for every call
#define GIN_UNROLLED _Pragma("unroll")
#else
#define GIN_HD inline
#define GIN_DEVICE inline
#define GIN_DEVICE_CALL static inline __attribute__((noinline))
#define GIN_UNROLLED
#endif

namespace gin {

enum class Code : uint32_t {
  ok = 0,
  timeout = 1,      // the deadline passed
  remote = 2,       // a peer, or the path to it, failed: the job's failure, or with on_peer_failure=peer that peer's
  range = 3,        // a peer, id, offset or size out of range (GIN_CHECK=1)
  unsupported = 4,  // the backend cannot do it
  internal = 5,     // a broken promise inside gin or the library below it
};

enum class Operation : uint32_t {
  none = 0,
  put = 1,
  put_value = 2,
  get = 3,
  signal = 4,
  wait = 5,
  wait_counter = 6,
  flush = 7,
  fence = 8,
  quiet = 9,
  atomic = 10,
  barrier = 11,
  launch = 12,
  peer_pointer = 13,
};

// The first failure of a rank, written once (device, progress thread or host) and read by the host. `state` is what
// every wait polls: nonzero ends it.
struct Record {
  static constexpr uint32_t empty = 0, writing = 1, complete = 2;

  uint32_t state;
  Code code;
  Operation operation;
  int32_t peer;  // the rank waited for or talked to, -1 when it is not known
  uint32_t context;
  uint32_t id;  // signal, counter or barrier index
  uint64_t expected;
  uint64_t seen;
  uint64_t detail;  // a timeout's deadline in ns; otherwise the backend's own word: a verbs syndrome, an errno
  uint32_t block[3];
  uint32_t thread[3];
  uint64_t reserved[7];
};
static_assert(sizeof(Record) == 128, "one record is two cache lines on both sides");

// How an operation that waits has ended. With a constructor that is not constexpr: without, nvcc and NVRTC make `{}` a constant
// in global memory, and load it after every wait, past the first-level cache that the wait has emptied.
struct Status {
  Code code;

  GIN_HD Status(Code code_ = Code::ok) : code(code_) {}
  GIN_HD bool ok() const { return code == Code::ok; }
  GIN_HD explicit operator bool() const { return ok(); }
  GIN_HD bool operator==(Status other) const { return code == other.code; }
  GIN_HD bool operator!=(Status other) const { return code != other.code; }
};

}  // namespace gin
