// Values of 1 to 8 bytes for libraries that take 1, 2, 4 or 8.
#pragma once

#include "../backend.cuh"

namespace gin::impl {

// Calls send(value, bytes, offset, last) for each power-of-two piece of `value`, low bytes first.
template <class Send>
GIN_DEVICE void for_each_piece(uint64_t value, uint32_t bytes, Send send) {
  uint32_t done = 0;
  for (uint32_t piece = 8; piece; piece /= 2) {
    if (!(bytes & piece)) continue;
    send(value >> (8 * done), piece, done, done + piece == bytes);
    done += piece;
  }
}

}  // namespace gin::impl
