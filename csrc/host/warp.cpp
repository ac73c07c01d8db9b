// Warp operations: a rendezvous of the lanes of a mask, whose last lane works out everybody's result.
#include "scheduler.h"

namespace gin::host {

namespace {

// Replaces the value of each lane that takes part by its result.
void exchange(Warp& w, uint32_t lanes) {
  uint64_t values[warp_size], result = 0;
  auto each = [&](auto body) {
    for (uint32_t rest = lanes; rest; rest &= rest - 1) body(uint32_t(__builtin_ctz(rest)));
  };
  each([&](uint32_t i) { values[i] = w.lanes[i]->value; });
  auto fold = [&](auto combine) {
    result = values[__builtin_ctz(lanes)];
    each([&](uint32_t i) { result = combine(result, values[i]); });
    each([&](uint32_t i) { w.lanes[i]->value = result; });
  };
  switch (WarpOp(w.lanes[__builtin_ctz(lanes)]->op)) {
    case WarpOp::sync:
      break;
    case WarpOp::gather:
      each([&](uint32_t i) {
        uint32_t from = w.lanes[i]->source % warp_size;
        w.lanes[i]->value = lanes >> from & 1 ? values[from] : 0xcdcdcdcdcdcdcdcdu;
      });
      break;
    case WarpOp::ballot:
      each([&](uint32_t i) { result |= uint64_t(values[i] != 0) << i; });
      each([&](uint32_t i) { w.lanes[i]->value = result; });
      break;
    case WarpOp::match:
      each([&](uint32_t i) {
        uint64_t same = 0;
        each([&](uint32_t j) { same |= uint64_t(values[i] == values[j]) << j; });
        w.lanes[i]->value = same;
      });
      break;
    case WarpOp::add:
      each([&](uint32_t i) { result += values[i]; });
      each([&](uint32_t i) { w.lanes[i]->value = result; });
      break;
    case WarpOp::min_signed:
      fold([](uint64_t a, uint64_t b) { return int64_t(a) < int64_t(b) ? a : b; });
      break;
    case WarpOp::max_signed:
      fold([](uint64_t a, uint64_t b) { return int64_t(a) > int64_t(b) ? a : b; });
      break;
    case WarpOp::min_unsigned:
      fold([](uint64_t a, uint64_t b) { return a < b ? a : b; });
      break;
    case WarpOp::max_unsigned:
      fold([](uint64_t a, uint64_t b) { return a > b ? a : b; });
      break;
    case WarpOp::bit_and:
      fold([](uint64_t a, uint64_t b) { return a & b; });
      break;
    case WarpOp::bit_or:
      fold([](uint64_t a, uint64_t b) { return a | b; });
      break;
    case WarpOp::bit_xor:
      each([&](uint32_t i) { result ^= values[i]; });
      each([&](uint32_t i) { w.lanes[i]->value = result; });
      break;
  }
}

std::string operation(const Thread* t) {
  return std::string(t->what) + " (" + t->file + ":" + std::to_string(t->line) + ")";
}

}  // namespace

uint64_t Scheduler::warp(Thread* t, WarpOp op, uint32_t mask, uint64_t value, uint32_t source) {
  auto& b = *static_cast<BlockState*>(t->block);
  Warp& w = b.warps[t->rank / warp_size];
  uint32_t bit = 1u << t->rank % warp_size;
  t->op = uint32_t(op);
  t->mask = mask;
  t->value = value;
  t->source = source;
  streak_ = 0;
  if (!(mask & bit)) {
    fail(t, operation(t) + " with a mask that does not name the calling lane");
    leave(t);
  }
  uint32_t i = 0;
  while (i < w.groups && w.group[i].mask != mask) ++i;
  if (i == w.groups) {
    w.group[w.groups++] = {mask, 0};
  } else if (const Thread* other = w.lanes[__builtin_ctz(w.group[i].arrived)]; other->op != t->op) {
    w.group[i].arrived |= bit;
    fail(t, "lanes of one mask call different operations: " + operation(t) + " here, " + operation(other) + " in " +
                place(other));
    leave(t);
  }
  w.group[i].arrived |= bit;
  if ((mask & ~w.gone) != w.group[i].arrived) {
    suspend(t);
    return t->value;
  }
  complete(w, i, t);
  if (must_stop()) leave(t);
  return t->value;
}

// Gives each lane its result, and all but `running` back to the run queue.
void Scheduler::complete(Warp& w, uint32_t group, const Thread* running) {
  uint32_t arrived = w.group[group].arrived;
  w.group[group] = w.group[--w.groups];
  exchange(w, arrived);
  for (uint32_t rest = arrived; rest; rest &= rest - 1) {
    Thread* t = w.lanes[__builtin_ctz(rest)];
    if (t != running) push(t);
  }
}

// An ended lane is waited for no longer.
void Scheduler::lane_ended(Warp& w, uint32_t lane) {
  w.gone |= 1u << lane;
  w.lanes[lane] = nullptr;
  for (uint32_t i = w.groups; i-- > 0;) {
    if ((w.group[i].mask & ~w.gone) == w.group[i].arrived) complete(w, i, nullptr);
  }
}

}  // namespace gin::host
