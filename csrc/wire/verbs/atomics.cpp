// An endpoint's atomics with answers: the device's own, and those that are emulated by comparing and swapping.
#include <algorithm>
#include <cstring>

#include "wire/verbs/chain.h"

namespace gin::wire::verbs {

using Ends = Entry::Ends;

// What the 8 bytes become where they are `word`.
uint64_t VerbsEndpoint::Slot::desired(uint64_t word) const {
  const uint64_t found = part(word), given = part(operand << shift);
  uint64_t next = given;
  switch (atomic) {
    case Atomic::fetch_add:
      next = found + given;
      break;
    case Atomic::compare_swap:
      next = found == part(compare << shift) ? given : found;
      break;
    case Atomic::swap:
      break;
    case Atomic::fetch_and:
      next = found & given;
      break;
    case Atomic::fetch_or:
      next = found | given;
      break;
    case Atomic::fetch_xor:
      next = found ^ given;
      break;
  }
  if (bytes == 8) return next;
  const uint64_t mask = uint64_t(0xffffffffu) << shift;
  return (word & ~mask) | (next << shift & mask);
}

bool VerbsEndpoint::take_atomic(const Request& r, Queue& q) {
  const RemoteRegion* remote = core_->memory.find(r.remote_region, r.peer, device_);
  if (!remote || (r.bytes != 4 && r.bytes != 8) || !inside(r.remote_offset, r.bytes, remote->bytes))
    return end(r, Code::range, 0);
  const uint64_t target = remote->address + r.remote_offset;
  if (target % r.bytes != 0) return end(r, Code::range, 0);
  char* result = reinterpret_cast<char*>(uintptr_t(r.local_offset));
  if (r.local_region != local_address) {
    const LocalRegion* local = core_->memory.find(r.local_region);
    if (!local || !inside(r.local_offset, r.bytes, local->bytes)) return end(r, Code::range, 0);
    result = local->base + r.local_offset;
  }
  if (free_slots_.empty() || !has_room(q, 1) || waits_for_writes(q)) return false;
  const uint16_t slot = free_slots_.back();
  free_slots_.pop_back();
  slots_[slot] = {r.token,
                  r.atomic,
                  uint8_t(r.bytes),
                  uint8_t(8 * (target % 8)),
                  &q,
                  result,
                  r.value,
                  r.compare,
                  0,
                  target & ~uint64_t(7),
                  remote->key,
                  no_slot,
                  no_slot,
                  no_slot};
  ++taken_;
  if (!slots_[slot].native()) ++q.emulated, q.emulated_at = fences_;
  if (!join(slot)) post_slot(slot);
  return true;
}

// Whether an atomic that the device cannot do waits for one on the same 8 bytes, which is under way.
bool VerbsEndpoint::join(uint16_t number) {
  const Slot& slot = slots_[number];
  if (slot.native()) return false;
  for (uint16_t first : swapping_) {
    Slot& other = slots_[first];
    if (other.queue != slot.queue || other.target != slot.target) continue;
    (other.waiting == no_slot ? other.waiting : slots_[other.last_waiting].follower) = number;
    other.last_waiting = number;
    return true;
  }
  swapping_.push_back(number);
  return false;
}

// What the 8 bytes become, where they are `word`, by an atomic and those that are done with it.
uint64_t VerbsEndpoint::joint(uint16_t number, uint64_t word) const {
  for (; number != no_slot; number = slots_[number].follower) word = slots_[number].desired(word);
  return word;
}

// On Soft-RoCE no atomic with an answer goes behind a write that may be sent again.
bool VerbsEndpoint::waits_for_writes(const Queue& q) const { return soft_ && q.wrote > q.completed; }

void VerbsEndpoint::post_again(uint16_t number) {
  Queue& q = *slots_[number].queue;
  if (waits_for_writes(q)) {
    held_.push_back(number);
    ++q.held;
  } else {
    post_slot(number);
    ring();
  }
}

// Posts the atomics that were held back, where the writes before them have completed.
void VerbsEndpoint::release_held() {
  size_t kept = 0;
  for (size_t i = 0; i < held_.size(); ++i) {
    const uint16_t number = held_[i];
    Queue& q = *slots_[number].queue;
    if (!q.dead && (waits_for_writes(q) || !has_room(q, 1))) {
      held_[kept++] = number;
      continue;
    }
    --q.held;
    if (q.dead)
      finish_slot(number, true);
    else
      post_slot(number);
  }
  held_.resize(kept);
  ring();
}

void VerbsEndpoint::post_slot(uint16_t number) {
  const Slot& slot = slots_[number];
  pieces_[chained_] = {words_.address() + 8 * (1 + uint64_t(number)), 8, words_.local_key()};
  const bool adds = slot.native() && slot.atomic == Atomic::fetch_add;
  const bool fenced = starts_fenced(*slot.queue);
  ibv_send_wr& wr = chain(*slot.queue, adds ? IBV_WR_ATOMIC_FETCH_AND_ADD : IBV_WR_ATOMIC_CMP_AND_SWP, slot.target,
                          slot.key, {0, Ends::atomic, false, true, number});
  wr.wr.atomic.compare_add = adds ? slot.operand : slot.native() ? slot.compare : slot.expected;
  wr.wr.atomic.swap = slot.native() ? slot.operand : joint(number, slot.expected);
  if (fenced) wr.send_flags |= IBV_SEND_FENCE;
  slot.queue->fetched = slot.queue->posted;
}

void VerbsEndpoint::finish_slot(uint16_t number, bool failed) {
  Slot& slot = slots_[number];
  const auto* words = reinterpret_cast<const uint64_t*>(words_.data());
  const uint64_t found = failed ? 0 : __atomic_load_n(&words[1 + number], __ATOMIC_ACQUIRE);
  if (slot.native()) return hand_back(number, found, failed);

  const uint16_t waiting = slot.waiting;
  const bool late = !failed && found != slot.expected && joint(number, found) != found;  // somebody was faster
  if (late && !slot.queue->dead) {
    uint16_t last = number;
    while (slots_[last].follower != no_slot) last = slots_[last].follower;
    slots_[last].follower = waiting;
    slot.waiting = no_slot;
    slot.expected = found;
    return post_again(number);
  }
  std::erase(swapping_, number);
  const uint64_t now = joint(number, found);
  hand_back(number, found, failed || late);
  if (waiting == no_slot) return;
  if (slots_[waiting].queue->dead) return hand_back(waiting, 0, true);
  slots_[waiting].expected = now;
  swapping_.push_back(waiting);
  post_again(waiting);
}

// Ends an atomic and those that were done with it.
void VerbsEndpoint::hand_back(uint16_t number, uint64_t found, bool failed) {
  while (number != no_slot) {
    const Slot slot = slots_[number];
    const uint64_t old = slot.part(found);
    if (!failed) std::memcpy(slot.result, &old, slot.bytes);
    slot.queue->told |= failed;
    if (!slot.native()) --slot.queue->emulated;
    done_.push({slot.token, failed ? Code::remote : Code::ok, slot.queue->peer, failed ? slot.queue->syndrome : 0});
    free_slots_.push_back(number);
    if (!slot.native()) found = slot.desired(found);
    number = slot.follower;
  }
}

}  // namespace gin::wire::verbs
