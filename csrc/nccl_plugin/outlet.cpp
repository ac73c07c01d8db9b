#include "nccl_plugin/outlet.h"

#include <algorithm>
#include <cstring>

#include "error.h"

namespace gin::rma {
namespace {

Address address_of(const void* pointer) { return Address(uintptr_t(pointer)); }

}  // namespace

Outlet::Outlet(uint32_t peer, LaneMemory memory, std::shared_ptr<Pinned> head, std::unique_ptr<Pinned> staged,
               const std::vector<std::shared_ptr<Lane>>& lanes, uint32_t contexts, uint64_t pull)
    : peer_(peer), memory_(memory), head_(std::move(head)), chunks_(std::move(staged)), pull_(pull), flows_(contexts) {
  if (lanes.empty()) return;
  for (uint32_t context = 0; context < contexts; ++context)
    flows_[context].lane = lanes[(context + peer) % lanes.size()];
}

void Outlet::put(const Transfer& t, const Signal& signal, Request& request) {
  request.flow = t.context;
  Flow& flow = flows_[t.context];
  if (t.bytes == 0 && !signal.region) return;
  if (t.bytes == 0) {
    Message m = message(Content::signal, t, signal);
    if (signal.strong) m.after = settled_by(flow, t.context);
    return enqueue({m, nullptr, 0, 0, nullptr});
  }
  const Part& there = t.target->parts[peer_];
  if (!t.source->cuda && t.bytes <= most_inline) {
    Message m = message(Content::bytes, t, signal);
    if (signal.region && signal.strong) m.after = settled_by(flow, t.context);
    std::memcpy(m.data, t.source->base + t.source_offset, t.bytes);
    return enqueue({m, nullptr, 0, 0, nullptr});
  }
  if (can_pull(t)) {
    Message m = message(Content::pull, t, signal);
    if (signal.region && signal.strong) m.after = settled_by(flow, t.context);
    m.chunk = t.source->number;
    m.token = t.source_offset;
    request.pull = ++flow.pulls;
    return enqueue({m, nullptr, 0, 0, nullptr});
  }
  if (there.reached && (t.source->cuda || there.cuda)) return put_directly(t, signal, request);
  Message m = message(Content::chunk, t, signal);
  if (signal.region && signal.strong) m.after = settled_by(flow, t.context);
  request.queued = true;
  enqueue({m, t.source->shared_from_this(), t.source_offset, t.bytes, &request});
}

bool Outlet::can_pull(const Transfer& t) const {
  return t.bytes <= pull_ && t.source->cuda && t.target->parts[peer_].cuda && t.source->parts[peer_].reaches;
}

void Outlet::put_directly(const Transfer& t, const Signal& signal, Request& request) {
  Flow& flow = flows_[t.context];
  const Part& there = t.target->parts[peer_];
  const Address to = address_of(there.reached + t.target_offset);
  const Address from = address_of(t.source->base + t.source_offset);
  if (signal.region) {
    Message m = message(Content::signal, t, signal);
    m.after = flow.marked + 1;
    enqueue({m, nullptr, 0, 0, nullptr});
  }
  copy(flow, t.context, to, from, t.bytes, there.way(t.source->cuda));
  request.mark = flow.marked + 1;
  if (signal.region || load(memory_.mark(t.context)) == flow.marked) mark(flow, t.context);
}

void Outlet::get(const Transfer& t, Request& request) {
  request.flow = t.context;
  if (t.bytes == 0) return;
  const Part& there = t.source->parts[peer_];
  if (there.reached && (t.target->cuda || there.cuda)) {
    Flow& flow = flows_[t.context];
    copy(flow, t.context, address_of(t.target->base + t.target_offset), address_of(there.reached + t.source_offset),
         t.bytes, there.way(t.target->cuda));
    request.mark = flow.marked + 1;
    if (load(memory_.mark(t.context)) == flow.marked) mark(flow, t.context);
    return;
  }
  Message m{};
  m.content = Content::fetch;
  m.context = t.context;
  m.region = t.source->number;
  m.offset = t.source_offset;
  m.bytes = t.bytes;
  m.signal_region = t.target->number;
  m.signal_offset = t.target_offset;
  m.token = request.token;
  request.missing = t.bytes;
  fetching_ += t.bytes;
  enqueue({m, nullptr, 0, 0, nullptr});
}

void Outlet::answer(const Message& fetch, std::shared_ptr<Region> source) {
  Message m{};
  m.content = Content::chunk;
  m.context = fetch.context;
  m.region = fetch.signal_region;
  m.offset = fetch.signal_offset;
  m.flags = rma::answer;
  m.token = fetch.token;
  enqueue({m, std::move(source), fetch.offset, fetch.bytes, nullptr});
}

bool Outlet::done(const Request& request) const {
  if (request.queued || request.missing) return false;
  if (request.pull && load(memory_.pulled(request.flow)) < request.pull) return false;
  return request.mark == 0 || load(memory_.mark(request.flow)) >= request.mark;
}

void Outlet::pump() {
  for (size_t i = 0; i < active_.size();) {
    const uint32_t context = active_[i];
    Flow& flow = flows_[context];
    while (!flow.waiting.empty() && send(flow.waiting.front())) {
      flow.waiting.pop_front();
      --waiting_;
    }
    const bool caught_up = load(memory_.mark(context)) == flow.marked;
    if (flow.unmarked && (caught_up || flow.unmarked >= most_unmarked)) mark(flow, context);
    if (flow.waiting.empty() && !flow.unmarked) {
      flow.active = false;
      active_[i] = active_.back();
      active_.pop_back();
    } else {
      ++i;
    }
  }
}

bool Outlet::waiting() const {
  if (waiting_ || fetching_) return true;
  for (uint32_t context = 0; context < flows_.size(); ++context)
    if (load(memory_.mark(context)) < flows_[context].marked || load(memory_.pulled(context)) < flows_[context].pulls)
      return true;
  return false;
}

uint64_t Outlet::steps() const {
  uint64_t sum = taken() + fetching_;
  for (uint32_t context = 0; context < flows_.size(); ++context)
    sum += load(memory_.mark(context)) + load(memory_.pulled(context));
  return sum;
}

void Outlet::fail() {
  failed_ = true;
  store(memory_.failed(), 1);
  for (Flow& flow : flows_) flow.waiting.clear();
  waiting_ = fetching_ = 0;
}

void Outlet::finish(double seconds) {
  for (Flow& flow : flows_)
    if (flow.lane) drain(*flow.lane, seconds);
}

void Outlet::copy(Flow& flow, uint32_t context, Address to, Address from, uint64_t bytes, Copy way) {
  flow.lane->copy(to, from, bytes, way);
  ++flow.unmarked;
  activate(flow, context);
}

void Outlet::mark(Flow& flow, uint32_t context) {
  flow.lane->write64(mark_address(context), ++flow.marked);
  flow.lane->send();
  flow.unmarked = 0;
}

// The mark that all copies so far are before.
uint64_t Outlet::settled_by(Flow& flow, uint32_t context) {
  if (flow.unmarked) mark(flow, context);
  return flow.marked;
}

void Outlet::activate(Flow& flow, uint32_t context) {
  if (flow.active) return;
  flow.active = true;
  active_.push_back(context);
}

Message Outlet::message(Content content, const Transfer& t, const Signal& signal) const {
  Message m{};
  m.content = content;
  m.context = t.context;
  m.region = t.target ? t.target->number : 0;
  m.offset = t.target_offset;
  m.bytes = t.bytes;
  if (signal.region) {
    m.flags = has_signal;
    m.signal_region = signal.region->number;
    m.signal_offset = signal.offset;
    m.signal_add = signal.add;
  }
  return m;
}

void Outlet::enqueue(Item item) {
  Flow& flow = flows_[item.message.context];
  if (flow.waiting.empty() && send(item)) return;
  const uint32_t context = item.message.context;
  flow.waiting.push_back(std::move(item));
  ++waiting_;
  activate(flow, context);
}

// False when it has to wait.
bool Outlet::send(Item& item) {
  if (item.message.content != Content::chunk) return push(item.message);
  while (item.left > 0)
    if (!send_chunk(item)) return false;
  if (item.request) item.request->queued = false;
  return true;
}

bool Outlet::send_chunk(Item& item) {
  const int index = room() ? free_chunk() : -1;
  if (index < 0) return false;
  Message m = item.message;
  Flow& flow = flows_[m.context];
  m.chunk = uint32_t(index);
  m.bytes = std::min(item.left, chunk_bytes);
  const bool last = m.bytes == item.left;
  if (!last) m.flags &= ~has_signal;
  const char* from = item.source->base + item.source_offset;
  if (item.source->cuda) {
    copy(flow, m.context, chunks_->device(memory_.chunk(m.chunk)), address_of(from), m.bytes);
    m.after = settled_by(flow, m.context);
    if (item.request) item.request->mark = m.after;
  } else {
    std::memcpy(memory_.chunk(m.chunk), from, m.bytes);
  }
  store(memory_.busy(m.chunk), 1);
  push(m);
  item.source_offset += m.bytes;
  item.message.offset += m.bytes;
  item.left -= m.bytes;
  return true;
}

bool Outlet::push(const Message& message) {
  if (!room()) return false;
  Slot* slot = memory_.slot(sent_);
  slot->message = message;
  store(&slot->turn, ++sent_);
  return true;
}

bool Outlet::room() {
  if (sent_ - taken_ < ring) return true;
  taken_ = taken();
  return sent_ - taken_ < ring;
}

int Outlet::free_chunk() const {
  for (uint64_t i = 0; i < chunks; ++i)
    if (load(memory_.busy(i)) == 0) return int(i);
  return -1;
}

}  // namespace gin::rma
