#include "nccl_plugin/context.h"

#include <algorithm>

#include "error.h"
#include "nccl_plugin/log.h"

namespace gin::rma {
namespace {

using Kind = Error::Kind;

constexpr const char* step = "making contexts";
constexpr double look_every = 1e-3, most_finish = 5;  // seconds

// The GPU has few queues for its streams, eight by default: one that shares a queue with a kernel waits for it.
constexpr uint32_t most_lanes = 4;

void check_range(bool inside, const char* what, uint64_t offset, uint64_t bytes, uint64_t size) {
  if (!inside)
    throw Error(Kind::config, std::string(what) + " of " + std::to_string(bytes) + " bytes at " +
                                  std::to_string(offset) + " is outside of " + std::to_string(size) + " bytes");
}

}  // namespace

// All that the GPU needs is made here: once a kernel waits, what the driver would make could wait for that kernel.
Context::Context(Comm& comm, uint32_t contexts)
    : comm_(comm), contexts_(contexts), lost_(comm.size()), watches_(comm.size()) {
  const uint32_t size = comm_.size(), rank = comm_.rank();
  const Gpu* gpu = comm_.gpu().get();
  Gpu::Use use(gpu);
  const uint64_t head = LaneMemory::head_bytes(contexts_);
  Inlet::Owner& owner = *this;
  auto letters = comm_.step(step, [&] {
    inbox_ = memory::Segment::create(LaneMemory::inbox_bytes(size, contexts_), "gin-rma-inbox");
    if (gpu) heads_ = std::make_shared<Pinned>(inbox_->address(), size * head);
    return std::to_string(contexts_) + ' ' + inbox_->export_name();
  });
  others_.resize(size);
  outlets_.resize(size);
  inlets_.resize(size);
  comm_.step(step, [&] {
    std::vector<std::shared_ptr<Lane>> lanes(gpu ? std::min(most_lanes, size * contexts_) : 0);
    for (auto& lane : lanes) lane = std::make_shared<Lane>();
    for (uint32_t peer = 0; peer < size; ++peer) {
      const std::string& text = letters[peer].text;
      const size_t space = text.find(' ');
      if (text.substr(0, space) != std::to_string(contexts_))
        throw Error(Kind::config, "rank " + std::to_string(peer) + " makes " + text.substr(0, space) +
                                      " contexts and this one " + std::to_string(contexts_));
      others_[peer] = peer == rank ? inbox_ : memory::Segment::open(text.substr(space + 1));
      const LaneMemory out(others_[peer]->address(), rank, size, contexts_);
      const LaneMemory in(inbox_->address(), peer, size, contexts_);
      auto pinned = peer == rank || !gpu ? heads_ : std::make_shared<Pinned>(out.head(), head);
      const auto pin = [&](const LaneMemory& lane) {
        return peer == rank || !gpu ? nullptr : std::make_unique<Pinned>(lane.chunk(0), chunks * chunk_bytes);
      };
      outlets_[peer] = std::make_unique<Outlet>(peer, out, pinned, pin(out), lanes, contexts_, comm_.settings().pull);
      inlets_[peer] = std::make_unique<Inlet>(peer, in, heads_, pin(in), contexts_, comm_, owner);
    }
    return std::string();
  });
  inbox_->seal();
}

Context::~Context() {
  try {
    Gpu::Use use(comm_.gpu().get());
    std::lock_guard<std::mutex> held(mutex_);
    auto words = comm_.words().lock();
    comm_.words().finish(most_finish);
    for (auto& outlet : outlets_) outlet->finish(most_finish);
    outlets_.clear();
    inlets_.clear();
    heads_.reset();
  } catch (const std::exception& error) {
    warn(std::string("closing contexts: ") + error.what());
  }
}

Request* Context::put(const Transfer& t, const Signal& signal, uint32_t peer) {
  return post(t.context, peer, [&](Outlet& outlet, Request& request) {
    if (t.bytes) {
      if (!t.source || !t.target) throw Error(Kind::config, "a put of bytes without memory");
      check_range(t.source->holds(t.source_offset, t.bytes), "a put's source", t.source_offset, t.bytes,
                  t.source->bytes);
      const Part& there = t.target->parts[peer];
      check_range(holds(there, t.target_offset, t.bytes), "a put", t.target_offset, t.bytes, there.bytes);
    }
    if (signal.region) {
      const Part& there = signal.region->parts[peer];
      check_range(holds(there, signal.offset, 8), "a signal", signal.offset, 8, there.bytes);
    }
    outlet.put(t, signal, request);
  });
}

Request* Context::get(const Transfer& t, uint32_t peer) {
  return post(t.context, peer, [&](Outlet& outlet, Request& request) {
    if (t.bytes) {
      if (!t.source || !t.target) throw Error(Kind::config, "a get of bytes without memory");
      const Part& there = t.source->parts[peer];
      check_range(holds(there, t.source_offset, t.bytes), "a get", t.source_offset, t.bytes, there.bytes);
      check_range(t.target->holds(t.target_offset, t.bytes), "a get's target", t.target_offset, t.bytes,
                  t.target->bytes);
    }
    request.token = next_token_++;
    outlet.get(t, request);
    if (request.missing) gets_[request.token] = &request;
  });
}

bool Context::test(Request* request) {
  std::lock_guard<std::mutex> held(mutex_);
  Outlet& outlet = *request->outlet;
  if (outlet.done(*request)) {
    free_request(request);
    return true;
  }
  if (!outlet.failed()) return false;
  const std::string& why = lost_[outlet.peer()];
  free_request(request);
  throw Error(Kind::remote, why.empty() ? "rank " + std::to_string(outlet.peer()) + " cannot go on" : why);
}

void Context::progress() {
  std::lock_guard<std::mutex> held(mutex_);
  Gpu::Use use(comm_.gpu().get());
  for (uint32_t peer = 0; peer < comm_.size(); ++peer) {
    if (!lost_[peer].empty()) continue;
    try {
      inlets_[peer]->poll();
      outlets_[peer]->pump();
    } catch (const Error& error) {
      lose(peer, error.what(), true);
    }
  }
  const double time = now();
  if (time - looked_ > look_every) {
    looked_ = time;
    look_after();
  }
}

void Context::fetched(uint32_t peer, const Message& fetch, std::shared_ptr<Region> source) {
  outlets_[peer]->answer(fetch, std::move(source));
}

void Context::landed(uint64_t token, uint64_t bytes) {
  auto found = gets_.find(token);
  if (found == gets_.end() || found->second->missing < bytes) throw Error(Kind::internal, "an answer nobody asked for");
  found->second->missing -= bytes;
  found->second->outlet->landed(bytes);
  if (found->second->missing == 0) gets_.erase(found);
}

Outlet& Context::check(uint32_t context, uint32_t peer) {
  if (context >= contexts_)
    throw Error(Kind::config, "context " + std::to_string(context) + " of " + std::to_string(contexts_));
  if (peer >= comm_.size())
    throw Error(Kind::config, "rank " + std::to_string(peer) + " of " + std::to_string(comm_.size()));
  if (!lost_[peer].empty()) throw Error(Kind::remote, lost_[peer]);
  return *outlets_[peer];
}

template <class Post>
Request* Context::post(uint32_t context, uint32_t peer, Post with) {
  std::lock_guard<std::mutex> held(mutex_);
  Gpu::Use use(comm_.gpu().get());
  Outlet& outlet = check(context, peer);
  Request* request = make_request();
  request->outlet = &outlet;
  try {
    with(outlet, *request);
  } catch (const Error& error) {
    free_request(request);
    if (error.kind() != Kind::config) lose(peer, error.what(), true);
    throw;
  }
  return request;
}

Request* Context::make_request() {
  if (free_.empty()) {
    requests_.push_back(std::make_unique<Request>());
    free_.push_back(requests_.back().get());
  }
  Request* request = free_.back();
  free_.pop_back();
  *request = Request{};
  request->context = this;
  return request;
}

void Context::free_request(Request* request) {
  if (request->token) gets_.erase(request->token);
  free_.push_back(request);
}

// Peers that have gone, or that cannot or do not go on.
void Context::look_after() {
  for (uint32_t peer = 0; peer < comm_.size(); ++peer) {
    if (!lost_[peer].empty()) continue;
    Outlet& outlet = *outlets_[peer];
    const std::string who = "rank " + std::to_string(peer);
    const Presence presence = comm_.mesh().presence(peer);
    if (presence == Presence::lost) {
      lose(peer, who + " has ended", true);
    } else if (presence == Presence::left) {
      lose(peer, who + " has closed the communicator", outlet.waiting());
    } else if (outlet.failed() || inlets_[peer]->failed()) {
      lose(peer, who + " cannot go on", true);
    } else {
      Watch& watch = watches_[peer];
      const uint64_t steps = outlet.steps();
      if (!outlet.waiting() || steps != watch.steps || watch.since == 0) watch = {steps, looked_};
      if (comm_.settings().timeout > 0 && looked_ - watch.since > comm_.settings().timeout)
        lose(
            peer,
            who + " has done nothing for " + std::to_string(int(looked_ - watch.since)) + " s; GIN_TIMEOUT allows more",
            true);
    }
  }
}

void Context::lose(uint32_t peer, const std::string& why, bool error) {
  lost_[peer] = why;
  outlets_[peer]->fail();
  inlets_[peer]->fail();
  if (!error) return;
  failed_ = true;
  warn(why);
}

}  // namespace gin::rma
