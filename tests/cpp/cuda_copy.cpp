// The CUDA platform's copy, on this machine: bytes, and that every access is aligned (as UBSan sees).
#include "gin/platform/cuda_copy.cuh"

#include <cstddef>
#include <sstream>
#include <string>
#include <vector>

#include "check.h"

namespace {

struct Group {
  uint32_t threads, me;

  uint32_t rank() const { return me; }
  uint32_t size() const { return threads; }
};

constexpr size_t margin = 32;

char before(size_t i) { return char(0x80 | (i * 7 & 0x7f)); }
char sent(size_t i) { return char(i * 31 & 0x7f); }

struct alignas(16) Line {
  char byte[16];
};

// Not inlined, as the compiler otherwise warns of sizes that do not come up.
[[gnu::noinline]] void copy(uint32_t threads, char* to, const char* from, size_t bytes) {
  for (uint32_t me = 0; me < threads; ++me) gin::platform::copy(Group{threads, me}, to, from, bytes);
}

// Copies with every thread of the group in turn. Whether exactly these bytes arrived.
bool arrives(uint32_t threads, size_t to_offset, size_t from_offset, size_t bytes) {
  const size_t lines = (bytes + 2 * margin + 32) / 16;
  std::vector<Line> there(lines), here(lines);
  char* target = there[0].byte;
  char* source = here[0].byte;
  for (size_t i = 0; i < lines * 16; ++i) target[i] = before(i), source[i] = sent(i);
  copy(threads, target + margin + to_offset, source + margin + from_offset, bytes);
  for (size_t i = 0; i < lines * 16; ++i) {
    const size_t k = i - margin - to_offset;  // huge in front of the target
    if (target[i] != (k < bytes ? sent(margin + from_offset + k) : before(i))) return false;
  }
  return true;
}

std::string place(uint32_t threads, size_t to, size_t from, size_t bytes) {
  std::ostringstream text;
  text << threads << " threads, " << bytes << " bytes from " << from << " to " << to;
  return text.str();
}

}  // namespace

CASE(every_length_and_place) {
  for (uint32_t threads : {1u, 2u, 3u, 32u, 33u}) {
    for (size_t to = 0; to < 16; ++to) {
      for (size_t from = 0; from < 16; ++from) {
        for (size_t bytes = 0; bytes < 67; ++bytes) {
          const std::string told = arrives(threads, to, from, bytes) ? "" : place(threads, to, from, bytes);
          CHECK_EQ(told, std::string());
          if (!told.empty()) return;
        }
      }
    }
  }
}

CASE(many_units_per_thread) {
  for (uint32_t threads : {1u, 5u, 32u, 256u}) {
    for (size_t apart : {0u, 1u, 2u, 4u, 8u, 12u}) {
      for (size_t bytes : {127u, 128u, 129u, 1024u, 4095u, 4096u, 4099u, 70001u})
        CHECK(arrives(threads, 3, 3 + apart, bytes));
    }
  }
}

CHECK_MAIN
