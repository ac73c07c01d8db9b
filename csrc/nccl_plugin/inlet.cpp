#include "nccl_plugin/inlet.h"

#include <cstring>

#include "error.h"

namespace gin::rma {

Inlet::Inlet(uint32_t peer, LaneMemory memory, std::shared_ptr<Pinned> heads, std::unique_ptr<Pinned> staged,
             uint32_t contexts, Comm& comm, Owner& owner)
    : peer_(peer),
      memory_(memory),
      heads_(std::move(heads)),
      chunks_(std::move(staged)),
      comm_(comm),
      owner_(owner),
      queues_(contexts),
      gpu_(contexts) {}

Inlet::~Inlet() {
  for (const Queue& queue : queues_) comm_.words().forget(&queue);
}

void Inlet::poll() {
  const bool more = load(&memory_.slot(taken_)->turn) == taken_ + 1;
  if (!more && active_.empty() && landings_.empty()) return;
  auto held = comm_.words().lock();
  for (uint64_t i = 0; i < ring && load(&memory_.slot(taken_)->turn) == taken_ + 1; ++i) {
    Message message = memory_.slot(taken_)->message;
    store(memory_.taken(), ++taken_);
    if (message.context >= queues_.size())
      throw Error(Error::Kind::internal, "rank " + std::to_string(peer_) + " sent to a context that is not there");
    Queue& queue = queues_[message.context];
    if (queue.empty() && apply(message, &queue)) continue;
    if (queue.empty()) active_.push_back(message.context);
    queue.push_back(message);
  }
  for (size_t i = 0; i < active_.size();) {
    Queue& queue = queues_[active_[i]];
    while (!queue.empty() && apply(queue.front(), &queue)) queue.pop_front();
    if (queue.empty()) {
      active_[i] = active_.back();
      active_.pop_back();
    } else {
      ++i;
    }
  }
  mark_pulls();
  comm_.words().send();
  reap();
}

void Inlet::fail() {
  store(memory_.failed(), 1);
  auto held = comm_.words().lock();
  for (const Queue& queue : queues_) comm_.words().forget(&queue);
}

// False when it has to wait; what has been done of it is then not done again.
bool Inlet::apply(Message& message, const Queue* owner) {
  if (!settled(message)) return false;
  if (message.content == Content::fetch) {
    owner_.fetched(peer_, message, region(message.region, message.offset, message.bytes));
    return true;
  }
  if (message.content != Content::signal) land(message);
  message.content = Content::signal;
  if (!(message.flags & has_signal)) return true;
  auto target = region(message.signal_region, message.signal_offset, 8);
  if (uintptr_t(target->base + message.signal_offset) % 8)
    throw Error(Error::Kind::config, "rank " + std::to_string(peer_) + " signals a word that is not aligned");
  if (!target->cuda && !landed_before(message.context)) return false;
  return comm_.words().add(*target, message.signal_offset, message.signal_add, owner);
}

// Whether the GPU has done what it was given for a context: a signal in host memory does not stand in its stream.
bool Inlet::landed_before(uint32_t context) {
  Work& gpu = gpu_[context];
  if (gpu.unmarked) gpu.number = comm_.words().mark();
  gpu.unmarked = false;
  return comm_.words().passed() >= gpu.number;
}

bool Inlet::settled(const Message& message) const {
  return message.after == 0 || load(memory_.mark(message.context)) >= message.after;
}

void Inlet::land(const Message& message) {
  auto target = region(message.region, message.offset, message.bytes);
  if (message.content == Content::chunk) return land_chunk(message, *target);
  if (message.content == Content::pull) return pull(message, *target);
  if (message.bytes > most_inline) throw Error(Error::Kind::internal, "a message that is too long");
  comm_.words().write(*target, message.offset, message.data, message.bytes);
  gpu_[message.context].unmarked |= target->cuda;
}

void Inlet::land_chunk(const Message& message, Region& target) {
  if (message.chunk >= chunks || message.bytes > chunk_bytes)
    throw Error(Error::Kind::internal, "a chunk that is not there");
  const bool answered = message.flags & answer;
  if (!target.cuda) {
    std::memcpy(target.base + message.offset, memory_.chunk(message.chunk), message.bytes);
    store(memory_.busy(message.chunk), 0);
    if (answered) owner_.landed(message.token, message.bytes);
    return;
  }
  comm_.words().copy(target, message.offset, chunks_->device(memory_.chunk(message.chunk)), message.bytes,
                     Copy::straight);
  gpu_[message.context].unmarked = true;
  landings_.push_back({comm_.words().mark(), message.chunk, message.token, message.bytes, answered});
}

void Inlet::pull(const Message& message, Region& target) {
  auto source = comm_.find(message.chunk);
  const Part* part = source ? &source->parts[peer_] : nullptr;
  if (!part || !part->reached || !holds(*part, message.token, message.bytes) || !target.cuda)
    throw Error(Error::Kind::config, "rank " + std::to_string(peer_) + " offers memory that is not reached from here");
  comm_.words().copy(target, message.offset, Address(uintptr_t(part->reached + message.token)), message.bytes,
                     part->way(target.cuda));
  gpu_[message.context].unmarked = true;
  ++gpu_[message.context].pulls;
  if (pulled_.empty() || pulled_.back() != message.context) pulled_.push_back(message.context);
}

// One word says how many were copied.
void Inlet::mark_pulls() {
  for (uint32_t context : pulled_) comm_.words().mark(heads_->device(memory_.pulled(context)), gpu_[context].pulls);
  pulled_.clear();
}

void Inlet::reap() {
  while (!landings_.empty() && landings_.front().number <= comm_.words().passed()) {
    const Landing& first = landings_.front();
    store(memory_.busy(first.chunk), 0);
    if (first.answer) owner_.landed(first.token, first.bytes);
    landings_.pop_front();
  }
}

std::shared_ptr<Region> Inlet::region(uint32_t number, uint64_t offset, uint64_t bytes) {
  auto found = comm_.find(number);
  if (!found || !found->holds(offset, bytes))
    throw Error(Error::Kind::config, "rank " + std::to_string(peer_) + " reaches for " + std::to_string(bytes) +
                                         " bytes at " + std::to_string(offset) + " of region " +
                                         std::to_string(number) + ", which are not registered here");
  return found;
}

}  // namespace gin::rma
