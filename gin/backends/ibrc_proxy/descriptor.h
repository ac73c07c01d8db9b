// One operation on its way from a kernel to the progress engine: 32 bytes of a ring in host memory, or 64 when an
// immediate does not fit. Bit 63 of each word is the phase of the lap that wrote it, so a reader knows a whole
// descriptor when it sees one and nothing is ever cleared.
//
//   word 0   phase | op 4 | has_signal, ordered, extended 3 | peer 16 | id 16 | dst window 12 | src window 12
//   word 1   phase | dst offset 63
//   word 2   phase | src offset 63, or the low 63 bits of the immediate
//   word 3   phase | counter + 1: 15 | bytes 48; with an immediate the bytes take 8 bits and its top bit is bit 8
//
// The immediate is the value of `value`, the addend of `signal`, the operand of an atomic. `id` is a signal, or the
// result slot of an atomic. An extension follows when a put or value adds something other than 1 to its signal, and for
// the comparand of compare_swap:
//
//   word 0   phase | extension 4 | 0
//   word 1   phase | low 63 bits
//   word 2   phase | top bit
//   word 3   phase | 0
#pragma once

#include <cstdint>

#if defined(__CUDACC__)
#define GIN_IBRC_HD __host__ __device__ __forceinline__
#else
#define GIN_IBRC_HD inline
#endif

namespace gin::ibrc {

struct alignas(16) Descriptor {
  uint64_t word[4];
};
static_assert(sizeof(Descriptor) == 32, "two descriptors fill a cache line");

enum class Op : uint32_t {
  none = 0,
  put = 1,
  value = 2,
  get = 3,
  signal = 4,
  fence = 5,
  fetch_add = 6,
  compare_swap = 7,
  swap = 8,
  fetch_and = 9,
  fetch_or = 10,
  fetch_xor = 11,
  extension = 15,  // second half of the one before it
};

// Field widths; what does not fit is refused on the host at init or registration.
constexpr uint32_t max_peers = 1u << 16, max_windows = 1u << 12, max_ids = 1u << 16, max_counters = (1u << 15) - 1;
constexpr uint64_t max_bytes = 1ull << 48, max_offset = 1ull << 63;

constexpr uint64_t phase_bit = 1ull << 63;

// What a descriptor says. Offsets: a put or value goes to dst on the peer, a get comes from src on the peer, an atomic
// works on dst on the peer.
struct Fields {
  Op op = Op::none;
  bool has_signal = false;
  bool ordered = false;
  uint32_t peer = 0;
  uint32_t id = 0;
  uint32_t dst_window = 0;
  uint32_t src_window = 0;
  uint32_t counter = 0;  // the counter's number plus 1, or 0 for none
  uint64_t dst_offset = 0;
  uint64_t src_offset = 0;
  uint64_t bytes = 0;
  uint64_t immediate = 0;
  uint64_t signal_add = 1;  // when has_signal; the addend of Op::signal is the immediate
  uint64_t compare = 0;
};

GIN_IBRC_HD constexpr bool is_atomic(Op op) { return op >= Op::fetch_add && op <= Op::fetch_xor; }

GIN_IBRC_HD constexpr bool has_immediate(Op op) { return op == Op::value || op == Op::signal || is_atomic(op); }

// The number of slots the operation takes: 1 or 2.
GIN_IBRC_HD constexpr uint32_t slots(const Fields& f) {
  bool odd_add = f.has_signal && f.op != Op::signal && f.signal_add != 1;
  return odd_add || f.op == Op::compare_swap ? 2 : 1;
}

// Phase of the slot at a ring sequence: 1 in the first lap, so that zeroed memory reads as empty.
GIN_IBRC_HD constexpr uint64_t phase(uint64_t sequence, uint64_t depth) { return sequence & depth ? 0 : phase_bit; }

GIN_IBRC_HD constexpr Descriptor encode(const Fields& f, uint64_t phase) {
  Descriptor d = {};
  d.word[0] = phase | uint64_t(f.op) << 59 | uint64_t(f.has_signal) << 58 | uint64_t(f.ordered) << 57 |
              uint64_t(slots(f) == 2) << 56 | uint64_t(f.peer & 0xffff) << 40 | uint64_t(f.id & 0xffff) << 24 |
              uint64_t(f.dst_window & 0xfff) << 12 | uint64_t(f.src_window & 0xfff);
  d.word[1] = phase | (f.dst_offset & ~phase_bit);
  uint64_t low = has_immediate(f.op) ? f.immediate : f.src_offset;
  uint64_t size = has_immediate(f.op) ? (f.bytes & 0xff) | f.immediate >> 63 << 8 : f.bytes & (max_bytes - 1);
  d.word[2] = phase | (low & ~phase_bit);
  d.word[3] = phase | uint64_t(f.counter & 0x7fff) << 48 | size;
  return d;
}

GIN_IBRC_HD constexpr Descriptor encode_extension(const Fields& f, uint64_t phase) {
  uint64_t value = f.op == Op::compare_swap ? f.compare : f.signal_add;
  Descriptor d = {};
  d.word[0] = phase | uint64_t(Op::extension) << 59;
  d.word[1] = phase | (value & ~phase_bit);
  d.word[2] = phase | value >> 63;
  d.word[3] = phase;
  return d;
}

// Whether all four words carry the phase.
GIN_IBRC_HD constexpr bool complete(const Descriptor& d, uint64_t phase) {
  uint64_t flip = phase ? 0 : ~0ull;
  return ((d.word[0] ^ flip) & (d.word[1] ^ flip) & (d.word[2] ^ flip) & (d.word[3] ^ flip)) >> 63;
}

GIN_IBRC_HD constexpr Op op_of(const Descriptor& d) { return Op(d.word[0] >> 59 & 0xf); }
GIN_IBRC_HD constexpr bool is_extended(const Descriptor& d) { return d.word[0] >> 56 & 1; }

// The value that an extension holds.
GIN_IBRC_HD constexpr uint64_t extension_value(const Descriptor& extension) {
  return (extension.word[1] & ~phase_bit) | extension.word[2] << 63;
}

// What a descriptor says, taken from its words where it is asked for; `more` is the value of its extension.
class View {
 public:
  GIN_IBRC_HD constexpr explicit View(const Descriptor& d, uint64_t more = 1) : d_(d), more_(more) {}

  GIN_IBRC_HD constexpr Op op() const { return op_of(d_); }
  // Operation and flags together: op 4 | has_signal | ordered.
  GIN_IBRC_HD constexpr uint32_t kind() const { return uint32_t(d_.word[0] >> 57 & 0x3f); }
  GIN_IBRC_HD constexpr bool has_signal() const { return d_.word[0] >> 58 & 1; }
  GIN_IBRC_HD constexpr bool ordered() const { return d_.word[0] >> 57 & 1; }
  GIN_IBRC_HD constexpr uint32_t peer() const { return uint32_t(d_.word[0] >> 40 & 0xffff); }
  GIN_IBRC_HD constexpr uint32_t id() const { return uint32_t(d_.word[0] >> 24 & 0xffff); }
  GIN_IBRC_HD constexpr uint32_t dst_window() const { return uint32_t(d_.word[0] >> 12 & 0xfff); }
  GIN_IBRC_HD constexpr uint32_t src_window() const { return uint32_t(d_.word[0] & 0xfff); }
  GIN_IBRC_HD constexpr uint32_t counter() const { return uint32_t(d_.word[3] >> 48 & 0x7fff); }
  GIN_IBRC_HD constexpr uint64_t dst_offset() const { return d_.word[1] & ~phase_bit; }
  GIN_IBRC_HD constexpr uint64_t src_offset() const { return d_.word[2] & ~phase_bit; }  // not with an immediate
  GIN_IBRC_HD constexpr uint64_t immediate() const { return src_offset() | d_.word[3] >> 8 << 63; }
  GIN_IBRC_HD constexpr uint64_t bytes() const { return has_immediate(op()) ? immediate_bytes() : moved_bytes(); }
  GIN_IBRC_HD constexpr uint64_t moved_bytes() const { return d_.word[3] & (max_bytes - 1); }  // of a put or get
  GIN_IBRC_HD constexpr uint64_t immediate_bytes() const { return d_.word[3] & 0xff; }
  GIN_IBRC_HD constexpr uint64_t more() const { return more_; }

 private:
  Descriptor d_;
  uint64_t more_;
};

// All that a descriptor says without its extension.
GIN_IBRC_HD constexpr Fields decode(const Descriptor& d) {
  const View view(d);
  Fields f = {};
  f.op = view.op();
  f.has_signal = view.has_signal();
  f.ordered = view.ordered();
  f.peer = view.peer();
  f.id = view.id();
  f.dst_window = view.dst_window();
  f.src_window = view.src_window();
  f.counter = view.counter();
  f.dst_offset = view.dst_offset();
  if (has_immediate(f.op)) {
    f.immediate = view.immediate();
  } else {
    f.src_offset = view.src_offset();
  }
  f.bytes = view.bytes();
  return f;
}

GIN_IBRC_HD constexpr void decode_extension(Fields& f, const Descriptor& extension) {
  (f.op == Op::compare_swap ? f.compare : f.signal_add) = extension_value(extension);
}

static_assert(4 + 3 + 16 + 16 + 12 + 12 == 63 && 15 + 48 == 63, "a word is its phase and 63 bits of fields");
static_assert(uint32_t(Op::extension) < 16, "an op takes 4 bits");
static_assert(op_of(encode({Op::fetch_xor}, phase_bit)) == Op::fetch_xor);
static_assert(decode(encode({Op::put, true, true, 0xffff, 0xffff, 0xfff, 0xfff, 0x7fff}, 0)).peer == 0xffff);

}  // namespace gin::ibrc
