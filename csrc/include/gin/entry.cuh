// How a kernel compiled for the CUDA platform tells the host what it takes: a device variable that is read back from the
// loaded module.
#pragma once

#include <cstdint>

#include "comm.h"

namespace gin::entry {

// Numbered as the names in gin/platforms/cuda_compile.py.
enum class Kind : uint32_t { comm, window, signed_integer, unsigned_integer, floating, boolean, pointer, structure };

template <class T>
struct KindOf {
  GIN_HD static constexpr Kind get() {
    if constexpr (__is_enum(T)) {
      return KindOf<__underlying_type(T)>::get();
    } else {
      static_assert(__is_class(T) || __is_union(T), "gin: a kernel takes its parameters by value");
      return Kind::structure;
    }
  }
};
template <class T>
struct KindOf<T*> {
  GIN_HD static constexpr Kind get() { return Kind::pointer; }
};
#define GIN_ENTRY_KIND(T, kind)                         \
  template <>                                           \
  struct KindOf<T> {                                    \
    GIN_HD static constexpr Kind get() { return kind; } \
  };
GIN_ENTRY_KIND(::gin::Comm, Kind::comm)
GIN_ENTRY_KIND(::gin::Window, Kind::window)
GIN_ENTRY_KIND(bool, Kind::boolean)
GIN_ENTRY_KIND(char, char(-1) < char(0) ? Kind::signed_integer : Kind::unsigned_integer)
GIN_ENTRY_KIND(signed char, Kind::signed_integer)
GIN_ENTRY_KIND(short, Kind::signed_integer)
GIN_ENTRY_KIND(int, Kind::signed_integer)
GIN_ENTRY_KIND(long, Kind::signed_integer)
GIN_ENTRY_KIND(long long, Kind::signed_integer)
GIN_ENTRY_KIND(unsigned char, Kind::unsigned_integer)
GIN_ENTRY_KIND(unsigned short, Kind::unsigned_integer)
GIN_ENTRY_KIND(unsigned int, Kind::unsigned_integer)
GIN_ENTRY_KIND(unsigned long, Kind::unsigned_integer)
GIN_ENTRY_KIND(unsigned long long, Kind::unsigned_integer)
GIN_ENTRY_KIND(float, Kind::floating)
GIN_ENTRY_KIND(double, Kind::floating)
#undef GIN_ENTRY_KIND

struct Param {
  uint32_t kind, size, align;
};

template <class F>
struct Signature {
  static_assert(sizeof(F) == 0, "gin: the entry of a program is a __global__ function that returns void");
};

template <class... A>
struct Signature<void (*)(A...)> {
  struct Table {
    uint32_t count;
    Param params[sizeof...(A) + 1];
  };
  GIN_HD static constexpr Table table() {
    return {sizeof...(A), {{uint32_t(KindOf<A>::get()), uint32_t(sizeof(A)), uint32_t(alignof(A))}..., {}}};
  }
};

}  // namespace gin::entry

// The entry of a program: the name of a kernel, with template arguments if it has any. Where nvcc compiles, the host's
// function makes it a template's instance.
#if defined(__CUDACC_RTC__)
#define GIN_ENTRY_USE(...)
#else
#define GIN_ENTRY_USE(...) \
  const void* gin_entry_use() { return reinterpret_cast<const void*>(&__VA_ARGS__); }
#endif
#define GIN_ENTRY(...)                                                                   \
  GIN_ENTRY_USE(__VA_ARGS__)                                                             \
  extern "C" __device__ gin::entry::Signature<decltype(&__VA_ARGS__)>::Table gin_entry = \
      gin::entry::Signature<decltype(&__VA_ARGS__)>::table();
