// Random numbers from a seed: the same on every machine, integers only.
#pragma once

#include <cstdint>

namespace gin::sim {

class Random {
 public:
  explicit Random(uint64_t seed) {
    for (uint64_t& word : state_) word = mix(seed += 0x9e3779b97f4a7c15u);
  }

  // xoshiro256**
  uint64_t next() {
    const uint64_t result = rotate(state_[1] * 5, 7) * 9, t = state_[1] << 17;
    state_[2] ^= state_[0];
    state_[3] ^= state_[1];
    state_[1] ^= state_[2];
    state_[0] ^= state_[3];
    state_[2] ^= t;
    state_[3] = rotate(state_[3], 45);
    return result;
  }

  // 0 to n - 1; 0 for n of 0.
  uint64_t below(uint64_t n) { return uint64_t((static_cast<unsigned __int128>(next()) * n) >> 64); }

  bool one_in(uint64_t n) { return below(n) == 0; }

  // From `least` to `most`, each doubling as likely as the next: short and long in the same run. 0 < least <= most.
  uint64_t spread(uint64_t least, uint64_t most) {
    const uint32_t doublings = uint32_t(__builtin_clzll(least) - __builtin_clzll(most));
    const uint64_t from = least << below(doublings + 1);
    const uint64_t value = from + below(from);
    return value < most ? value : most;
  }

 private:
  static uint64_t rotate(uint64_t value, int by) { return value << by | value >> (64 - by); }
  static uint64_t mix(uint64_t z) {
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 27) * 0x94d049bb133111ebu;
    return z ^ z >> 31;
  }

  uint64_t state_[4];
};

}  // namespace gin::sim
