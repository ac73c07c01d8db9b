// cooperative_groups::reduce over a tile.
#pragma once

#include "../cooperative_groups.h"

namespace cooperative_groups {

#define GIN_HOST_OPERATOR(name, expression)             \
  template <class T>                                    \
  struct name {                                         \
    T operator()(T a, T b) const { return expression; } \
  };
GIN_HOST_OPERATOR(plus, T(a + b))
GIN_HOST_OPERATOR(less, b < a ? b : a)
GIN_HOST_OPERATOR(greater, a < b ? b : a)
GIN_HOST_OPERATOR(bit_and, T(a& b))
GIN_HOST_OPERATOR(bit_or, T(a | b))
GIN_HOST_OPERATOR(bit_xor, T(a ^ b))
#undef GIN_HOST_OPERATOR

template <unsigned width, class Parent, class T, class F>
T reduce(const thread_block_tile<width, Parent>& tile, T value, F combine, GIN_HOST_SITE) {
  for (unsigned bits = width / 2; bits; bits /= 2) value = combine(value, tile.shfl_xor(value, int(bits), file, line));
  return value;
}

}  // namespace cooperative_groups
