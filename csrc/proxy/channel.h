// The consumer's side of one ring: takes descriptors, turns them into requests of one wire endpoint, retires them in
// order.
#pragma once

#include <array>
#include <atomic>
#include <memory>
#include <vector>

#include "gin/backends/ibrc_proxy/ring.h"
#include "gin/comm.h"
#include "proxy/failures.h"
#include "wire/wire.h"

namespace gin::proxy {

// What a channel has done since it began.
struct Stats {
  uint64_t descriptors = 0;  // operations taken from the ring
  uint64_t batches = 0;      // times that at least one was taken
  uint64_t failures = 0;     // operations that ended with anything but ok
  uint64_t max_depth = 0;    // slots of operations in flight at most
};

class Channel {
 public:
  // Neither `ring` nor what it points to belongs to the channel.
  Channel(uint32_t context, const ibrc::Ring& ring, uint32_t counters, ControlLayout layout,
          std::unique_ptr<wire::Endpoint> endpoint, Failures& failures);

  // Takes, posts and retires what it can without waiting; returns whether anything moved. One thread at a time.
  bool step();

  // Whether nothing is in flight; the next slot may hold an operation.
  bool at_rest() const { return tail_ == settled_ && first_ == last_; }

  // Whether nothing is in flight and the next slot is empty. The stepping thread only.
  bool idle() const;

  // Any thread; the fields are each up to date, not together.
  Stats stats() const;

 private:
  static constexpr size_t batch = 64;

  // An operation between being taken and being retired, at the index of its first slot.
  struct alignas(8) InFlight {
    static constexpr uint16_t result = 1u << 15;

    uint16_t follows;  // when it succeeds: its counter plus 1, and `result` for an atomic
    uint16_t id;
    uint8_t kind;  // View::kind
    uint8_t slots;
    bool done;

    ibrc::Op op() const { return ibrc::Op(kind >> 2); }
  };

  bool take();
  bool take_one();
  bool take_extended(ibrc::Descriptor descriptor, uint64_t room);
  void accept(const ibrc::View& view, uint32_t slots);
  uint32_t ids(const ibrc::View& view) const;
  bool acceptable(const ibrc::View& view) const;
  void translate(const ibrc::View& view, uint64_t token, wire::Request& request);
  void translate_atomic(uint32_t id, uint64_t compare, wire::Request& request);
  bool post();
  bool reap();
  void finish(const wire::Completion& completion);
  void end(uint64_t sequence, InFlight& operation);
  void succeed(uint64_t sequence, const InFlight& operation);
  void fail(const wire::Completion& completion);
  void lost(const wire::Completion& completion);
  void let_go(uint64_t sequence, InFlight& operation);
  void refuse(ibrc::View view);
  void abandon();
  void drop_pending(uint32_t peer);
  void retire();
  void publish();

  // Ring.
  const ibrc::Ring ring_;
  const uint64_t mask_;
  uint64_t tail_ = 0;                 // next slot to take
  uint64_t retired_ = 0;              // operations before it have ended
  uint64_t settled_ = 0, asked_ = 0;  // the wire was first asked about those before asked_
  ibrc::Progress published_{};

  // Wire.
  std::unique_ptr<wire::Endpoint> endpoint_;
  std::array<wire::Request, batch> pending_{};  // [first_, last_) are to be posted
  size_t first_ = 0, last_ = 0;
  std::vector<InFlight> in_flight_;

  const uint32_t context_, counters_;
  const ControlLayout layout_;
  const std::array<uint32_t, 4> most_ids_;
  const uint64_t signals_;  // offset of this context's first signal in the control window
  Failures& failures_;
  uint32_t given_up_ = 0;  // of the peers that are, how many this channel has abandoned

  struct {
    std::atomic<uint64_t> descriptors{0}, batches{0}, failures{0}, max_depth{0};
  } counts_;
};

}  // namespace gin::proxy
