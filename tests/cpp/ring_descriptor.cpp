// Descriptors say exactly what was put into them, at the extremes of every field.
#include <random>

#include "check.h"
#include "gin/backends/ibrc_proxy/descriptor.h"

using namespace gin::ibrc;

namespace {

constexpr Op ops[] = {Op::put,  Op::value,     Op::get,      Op::signal,    Op::fence,       Op::fetch_add,
                      Op::swap, Op::fetch_and, Op::fetch_or, Op::fetch_xor, Op::compare_swap};

// 0, the largest that fits, powers of two, or anything.
uint64_t draw(std::mt19937_64& random, uint32_t bits) {
  const uint64_t all = bits == 64 ? ~0ull : (1ull << bits) - 1;
  switch (random() % 4) {
    case 0:
      return 0;
    case 1:
      return all;
    case 2:
      return 1ull << (random() % bits);
    default:
      return random() & all;
  }
}

Fields any_fields(std::mt19937_64& random) {
  Fields f;
  f.op = ops[random() % (sizeof(ops) / sizeof(ops[0]))];
  f.has_signal = !is_atomic(f.op) && random() % 2;
  f.ordered = random() % 2;
  f.peer = uint32_t(draw(random, 16));
  f.id = uint32_t(draw(random, 16));
  f.dst_window = uint32_t(draw(random, 12));
  f.src_window = uint32_t(draw(random, 12));
  f.counter = uint32_t(draw(random, 15));
  f.dst_offset = draw(random, 63);
  if (has_immediate(f.op)) {
    f.immediate = draw(random, 64);
    f.bytes = draw(random, 8);
  } else {
    f.src_offset = draw(random, 63);
    f.bytes = draw(random, 48);
  }
  if (f.has_signal && f.op != Op::signal) f.signal_add = draw(random, 64);
  if (f.op == Op::compare_swap) f.compare = draw(random, 64);
  return f;
}

Fields decode_all(const Fields& f, uint64_t first_phase, uint64_t second_phase) {
  const Descriptor d = encode(f, first_phase);
  CHECK(complete(d, first_phase));
  CHECK(!complete(d, first_phase ^ phase_bit));
  CHECK_EQ(is_extended(d), slots(f) == 2);
  Fields out = decode(d);
  if (is_extended(d)) {
    const Descriptor extension = encode_extension(f, second_phase);
    CHECK(complete(extension, second_phase));
    CHECK(!complete(extension, second_phase ^ phase_bit));
    CHECK(op_of(extension) == Op::extension);
    decode_extension(out, extension);
  }
  return out;
}

void check_same(const Fields& a, const Fields& b) {
  CHECK(a.op == b.op);
  CHECK_EQ(a.has_signal, b.has_signal);
  CHECK_EQ(a.ordered, b.ordered);
  CHECK_EQ(a.peer, b.peer);
  CHECK_EQ(a.id, b.id);
  CHECK_EQ(a.dst_window, b.dst_window);
  CHECK_EQ(a.src_window, b.src_window);
  CHECK_EQ(a.counter, b.counter);
  CHECK_EQ(a.dst_offset, b.dst_offset);
  CHECK_EQ(a.src_offset, b.src_offset);
  CHECK_EQ(a.bytes, b.bytes);
  CHECK_EQ(a.immediate, b.immediate);
  CHECK_EQ(a.signal_add, b.signal_add);
  CHECK_EQ(a.compare, b.compare);
}

}  // namespace

CASE(round_trip) {
  std::mt19937_64 random(1);
  for (int i = 0; i < 300000 && !check::failures(); ++i) {
    const Fields f = any_fields(random);
    check_same(f, decode_all(f, random() % 2 ? phase_bit : 0, random() % 2 ? phase_bit : 0));
  }
}

CASE(a_torn_descriptor_is_not_complete) {
  std::mt19937_64 random(2);
  for (int i = 0; i < 10000; ++i) {
    const Descriptor before = encode(any_fields(random), 0), after = encode(any_fields(random), phase_bit);
    const uint32_t arrived = random() % 16;
    Descriptor torn;
    for (uint32_t w = 0; w < 4; ++w) torn.word[w] = arrived >> w & 1 ? after.word[w] : before.word[w];
    CHECK_EQ(complete(torn, phase_bit), arrived == 15);
    CHECK_EQ(complete(torn, 0), arrived == 0);
  }
}

CASE(zeroed_memory_is_empty_in_the_first_lap) {
  CHECK(!complete(Descriptor{}, phase(0, 4)));
  CHECK_EQ(phase(3, 4), phase_bit);
  CHECK_EQ(phase(4, 4), 0ull);
  CHECK_EQ(phase(8, 4), phase_bit);
}

CHECK_MAIN
