// A completion's detail: the verbs status in the low half and the vendor's word above it, or an errno of a call.
#pragma once

#include <infiniband/verbs.h>

#include <cstdint>

namespace gin::wire::verbs {

constexpr uint64_t errno_mark = 1ull << 31;

inline uint64_t syndrome_of(const ibv_wc& completion) {
  return uint64_t(completion.vendor_err) << 32 | uint64_t(completion.status);
}

inline uint64_t syndrome_of_errno(int error) { return errno_mark | uint64_t(error); }

}  // namespace gin::wire::verbs
