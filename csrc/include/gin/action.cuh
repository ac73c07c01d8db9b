// What an operation does besides moving bytes: to a signal of the peer when its bytes have settled there, and to a counter
// of the caller when its source may be reused.
#pragma once

#include <cstdint>

#include "comm.h"
#include "coop.cuh"

namespace gin {

struct None {};
GIN_CONSTANT None none{};

// Adds 1 to signal `id` of the peer. Visible there only after the bytes of the operation that carries it.
struct signal_inc {
  uint32_t id;
};

// Adds `value` to signal `id` of the peer; otherwise like signal_inc. Both may be used on one signal.
struct signal_add {
  uint32_t id;
  uint64_t value;
};

// A signal that is visible only after every earlier put of the same context to the same peer has settled as well.
template <class Action>
struct Ordered {
  Action action;
};

template <class Action>
GIN_DEVICE Ordered<Action> ordered(Action action) {
  return {action};
}

// Adds 1 to counter `id` of the caller when the operation's source may be reused.
struct counter_inc {
  uint32_t id;
};

namespace impl {

// A remote action as the backends take it; after inlining its fields are constants wherever the action's were.
struct Signal {
  bool present;
  bool ordered;
  uint32_t id;  // an index of signal words: user signals first, then the barriers' own
  uint64_t add;

  // Not constexpr, for what Status says.
  GIN_DEVICE Signal(bool present_, bool ordered_, uint32_t id_, uint64_t add_)
      : present(present_), ordered(ordered_), id(id_), add(add_) {}
};

GIN_DEVICE Signal to_signal(None) { return {false, false, 0, 0}; }
GIN_DEVICE Signal to_signal(signal_inc action) { return {true, false, action.id, 1}; }
GIN_DEVICE Signal to_signal(signal_add action) { return {true, false, action.id, action.value}; }
template <class Action>
GIN_DEVICE Signal to_signal(Ordered<Action> action) {
  Signal signal = to_signal(action.action);
  signal.ordered = true;
  return signal;
}
template <class Other>
GIN_DEVICE Signal to_signal(Other) {
  static_assert(
      sizeof(Other) == 0,
      "gin: the remote action is none, signal_inc, signal_add, or ordered(one of these); a counter is the local "
      "action, which comes after it: gin::none, gin::counter_inc{id}");
  return to_signal(none);
}

// A local action likewise: the counter's id, or no_counter.
constexpr uint32_t no_counter = 0xffffffffu;
GIN_DEVICE uint32_t to_counter(None) { return no_counter; }
GIN_DEVICE uint32_t to_counter(counter_inc action) { return action.id; }
template <class Other>
GIN_DEVICE uint32_t to_counter(Other) {
  static_assert(sizeof(Other) == 0,
                "gin: the local action is none or counter_inc; signals are remote actions, in front of it");
  return no_counter;
}

}  // namespace impl
}  // namespace gin
