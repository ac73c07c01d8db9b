// Values of 1 to 8 bytes for libraries that take 1, 2, 4 or 8.
#pragma once

#include "../backend.cuh"

namespace gin::impl {

// Calls send(value, bytes, offset, last) for each power-of-two piece of `value`, low bytes first. Each piece lies at a
// multiple of its size, counted from an address (or an offset) `place`: 0 where the library does not ask for that.
template <class Send>
GIN_DEVICE void for_each_piece(uint64_t value, uint32_t bytes, uint64_t place, Send send) {
  for (uint32_t done = 0; done < bytes;) {
    uint32_t piece = 8;
    while (piece > bytes - done || (place + done) % piece) piece /= 2;
    send(value >> (8 * done), piece, done, done + piece == bytes);
    done += piece;
  }
}

}  // namespace gin::impl
