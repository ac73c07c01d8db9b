// How a compiled kernel presents itself to the executor: its parameters, the call, and the place of its shared memory.
#pragma once

#include <stddef.h>

#include "abi.h"

namespace gin::host {

// Where __shared__ variables are: thread_local variables of a module are addressed through this function, and the
// module's own definition of it returns the block's copy instead of the OS thread's. Compile with the TLS model
// that calls it (-mtls-dialect=gnu on x86-64, trad on aarch64); the executor checks.
struct TlsIndex {
  uint64_t module, offset;
};
__attribute__((visibility("hidden"))) inline uint64_t tls_module = 0;

}  // namespace gin::host

extern "C" __attribute__((visibility("hidden"), used, noinline)) inline void* __tls_get_addr(
    gin::host::TlsIndex* index) {
  gin::host::Thread* t = gin::host::self();
  if (index->module != gin::host::tls_module) return t->services->tls_address(index);
  return t->shared + index->offset;
}

extern "C" {
// Dynamic shared memory. Its size is the most a launch can ask for; what is touched is what the launch asks for.
extern thread_local unsigned char gin_dynamic_shared[gin::host::dynamic_placeholder];
alignas(1024)
    __attribute__((visibility("hidden"))) thread_local unsigned char gin_dynamic_shared[gin::host::dynamic_placeholder];
}

namespace gin::host {

__attribute__((visibility("hidden"), noinline)) inline void* dynamic_shared() { return gin_dynamic_shared; }

template <class T>
struct param_kind {
  static constexpr Kind get() {
    if constexpr (__is_enum(T)) {
      return param_kind<__underlying_type(T)>::get();
    } else {
      static_assert(__is_class(T) || __is_union(T), "a kernel takes its parameters by value");
      return Kind::structure;
    }
  }
};
template <class T>
struct param_kind<T*> {
  static constexpr Kind get() { return Kind::pointer; }
};
#define GIN_HOST_PARAM_KIND(T, kind)             \
  template <>                                    \
  struct param_kind<T> {                         \
    static constexpr Kind get() { return kind; } \
  };
GIN_HOST_PARAM_KIND(::gin::Comm, Kind::comm)
GIN_HOST_PARAM_KIND(::gin::Window, Kind::window)
GIN_HOST_PARAM_KIND(bool, Kind::boolean)
GIN_HOST_PARAM_KIND(char, char(-1) < char(0) ? Kind::signed_integer : Kind::unsigned_integer)
GIN_HOST_PARAM_KIND(signed char, Kind::signed_integer)
GIN_HOST_PARAM_KIND(short, Kind::signed_integer)
GIN_HOST_PARAM_KIND(int, Kind::signed_integer)
GIN_HOST_PARAM_KIND(long, Kind::signed_integer)
GIN_HOST_PARAM_KIND(long long, Kind::signed_integer)
GIN_HOST_PARAM_KIND(unsigned char, Kind::unsigned_integer)
GIN_HOST_PARAM_KIND(unsigned short, Kind::unsigned_integer)
GIN_HOST_PARAM_KIND(unsigned int, Kind::unsigned_integer)
GIN_HOST_PARAM_KIND(unsigned long, Kind::unsigned_integer)
GIN_HOST_PARAM_KIND(unsigned long long, Kind::unsigned_integer)
GIN_HOST_PARAM_KIND(float, Kind::floating)
GIN_HOST_PARAM_KIND(double, Kind::floating)
#undef GIN_HOST_PARAM_KIND

template <class T, T... I>
struct Indices {};
#if defined(__clang__)
template <size_t n>
using FirstIndices = __make_integer_seq<Indices, size_t, n>;
#else
template <size_t n>
using FirstIndices = Indices<size_t, __integer_pack(n)...>;
#endif

template <auto kernel, class F = decltype(kernel)>
struct Kernel {
  static_assert(sizeof(F) == 0, "the entry of a program is a __global__ function that returns void");
};

template <auto kernel, class... A>
struct Kernel<kernel, void (*)(A...)> {
  static constexpr size_t count = sizeof...(A);
  static constexpr Param params[count + 1] = {{param_kind<A>::get(), sizeof(A), alignof(A)}..., {}};

  static void call(void* const* args) { unpack(args, FirstIndices<sizeof...(A)>()); }

 private:
  template <size_t... I>
  static void unpack([[maybe_unused]] void* const* args, Indices<size_t, I...>) {
    kernel(*static_cast<A*>(args[I])...);
  }
};

}  // namespace gin::host

// Makes the variable with this assembler name, declared as `extern __shared__ T name[]`, another name of the dynamic
// shared memory (host_source.py writes these).
#if defined(__x86_64__)
#define GIN_HOST_TLS_OBJECT "@tls_object"
#else
#define GIN_HOST_TLS_OBJECT "%tls_object"
#endif
#define GIN_HOST_DYNAMIC_SHARED(symbol)                                                                       \
  __asm__(".globl " #symbol "\n.hidden " #symbol "\n.type " #symbol "," GIN_HOST_TLS_OBJECT "\n.set " #symbol \
          ",gin_dynamic_shared\n");

// The entry of a program: the name of a kernel, with template arguments if it has any.
#define GIN_HOST_ENTRY(...)                                                                      \
  using gin_host_kernel = gin::host::Kernel<(&__VA_ARGS__)>;                                     \
  extern "C" __attribute__((visibility("default"), used)) const gin::host::Entry gin_host_entry{ \
      gin::host::abi_stamp,   #__VA_ARGS__,          gin_host_kernel::params,                    \
      gin_host_kernel::count, gin_host_kernel::call, gin::host::dynamic_shared,                  \
      &gin::host::tls_module,                                                                    \
  };
