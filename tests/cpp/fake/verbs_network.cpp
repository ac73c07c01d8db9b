// Moves what was posted to the pretended devices, late and in any order that reliable connections allow: queue pairs overtake
// each other, a completed write is not yet in memory, a read may be passed by what was posted after it.
#include <dlfcn.h>
#include <pthread.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <sstream>
#include <type_traits>

#include "fake/verbs.h"

namespace fake {
namespace {

constexpr uint32_t nobody = 0x7e7e7e7e;  // in fields that mean nothing

void* at(uint64_t address) { return reinterpret_cast<void*>(uintptr_t(address)); }

// Memory of real GPUs, where this process has NVIDIA's driver loaded; the one that tests pretend copies nothing.
struct Gpus {
  int (*attribute)(void* value, int which, uint64_t address);
  int (*move)(uint64_t to, uint64_t from, size_t bytes);
  int (*retain)(void** context, int device);
  int (*set)(void* context);
  int (*get)(void** context);

  static const Gpus* driver() {
    static const Gpus found = [] {
      void* library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_NOLOAD);
      const auto named = [&](auto& function, const char* name) {
        function = library ? reinterpret_cast<std::decay_t<decltype(function)>>(dlsym(library, name)) : nullptr;
      };
      Gpus g{};
      named(g.attribute, "cuPointerGetAttribute");
      named(g.move, "cuMemcpy");
      named(g.retain, "cuDevicePrimaryCtxRetain");
      named(g.set, "cuCtxSetCurrent");
      named(g.get, "cuCtxGetCurrent");
      return g;
    }();
    return found.attribute && found.move && found.retain && found.set && found.get ? &found : nullptr;
  }

  static bool hold(uint64_t address) {
    unsigned kind = 0;
    return driver() && driver()->attribute(&kind, 2, address) == 0 && kind == 2;
  }

  static void copy(uint64_t to, uint64_t from, uint64_t bytes) {
    void* context = nullptr;
    if (driver()->get(&context) == 0 && !context && driver()->retain(&context, 0) == 0) driver()->set(context);
    if (driver()->move(to, from, bytes) != 0) std::abort();
  }
};

// An aligned word arrives whole, whoever reads it at the same time.
void store(uint64_t to, const char* from, uint64_t bytes) {
  if (Gpus::hold(to)) {
    Gpus::copy(to, uint64_t(uintptr_t(from)), bytes);
  } else if (bytes == 8 && to % 8 == 0) {
    uint64_t word;
    std::memcpy(&word, from, 8);
    __atomic_store_n(static_cast<uint64_t*>(at(to)), word, __ATOMIC_RELEASE);
  } else if (bytes) {
    std::memcpy(at(to), from, bytes);
  }
}

void load(char* to, uint64_t from, uint64_t bytes) {
  if (Gpus::hold(from)) {
    Gpus::copy(uint64_t(uintptr_t(to)), from, bytes);
  } else if (bytes == 8 && from % 8 == 0) {
    const uint64_t word = __atomic_load_n(static_cast<uint64_t*>(at(from)), __ATOMIC_ACQUIRE);
    std::memcpy(to, &word, 8);
  } else if (bytes) {
    std::memcpy(to, at(from), bytes);
  }
}

// Adds, or writes `swap` where `add` is; what was there before. In a GPU's memory atomic with other devices' changes only.
uint64_t change(uint64_t address, bool adds, uint64_t add, uint64_t swap) {
  auto* word = static_cast<uint64_t*>(at(address));
  uint64_t old = add;
  if (Gpus::hold(address)) {
    load(reinterpret_cast<char*>(&old), address, 8);
    const uint64_t now = adds ? old + add : old == add ? swap : old;
    store(address, reinterpret_cast<const char*>(&now), 8);
  } else if (adds) {
    old = __atomic_fetch_add(word, add, __ATOMIC_ACQ_REL);
  } else {
    __atomic_compare_exchange_n(word, &old, swap, false, __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE);
  }
  return old;
}

uint64_t total(const Work& w) {
  uint64_t bytes = 0;
  for (const ibv_sge& piece : w.pieces) bytes += piece.length;
  return bytes;
}

}  // namespace

Network& network() {
  static Network one;
  return one;
}

// A fork's child finds the lock free.
Network::Network() {
  pthread_atfork([] { network().mutex.lock(); }, [] { network().mutex.unlock(); }, [] { network().mutex.unlock(); });
  reset(0);
}

void Network::reset(uint32_t seed) {
  settings = defaults;
  const char* given = std::getenv("FAKE_VERBS");  // name=value,...
  std::istringstream in(given ? given : "");
  for (std::string part; std::getline(in, part, ',');)
    settings.at(part.substr(0, part.find('='))) = std::stoll(part.substr(part.find('=') + 1), nullptr, 0);
  random.seed(uint32_t(get("seed")) + seed);
}

Pd* root(ibv_pd* domain) {
  auto* pd = static_cast<Pd*>(domain);
  return pd->parent ? pd->parent : pd;
}

// In a thread of its own, from the first device that is opened to the last that is closed.
void Network::run() {
  Lock lock(mutex);
  while (!ending) {
    for (uint32_t steps = chance(16); steps-- && step();) continue;
    if (idle()) {
      wake.wait(lock, [this] { return ending || !idle(); });
      continue;
    }
    const uint32_t pause = chance(100);
    lock.unlock();
    usleep(pause);
    lock.lock();
  }
}

bool Network::idle() const {
  for (const auto& [number, q] : queue_pairs)
    if (!q->works.empty()) return false;
  return flows.empty();
}

bool Network::step() {
  const size_t all = queue_pairs.size() + flows.size();
  if (all == 0) return false;
  const size_t first = random() % all;
  for (size_t i = 0; i < all; ++i) {
    size_t chosen = (first + i) % all;
    if (chosen >= queue_pairs.size()) {
      const auto flow = std::next(flows.begin(), long(chosen - queue_pairs.size()));
      if (!land_one(flow->second)) continue;
      if (flow->second.empty()) flows.erase(flow);
      return true;
    }
    Qp& q = *std::next(queue_pairs.begin(), long(chosen))->second;
    const uint32_t action = chance(3);
    for (uint32_t a = 0; a < 3; ++a)
      if (act(q, (action + a) % 3)) return true;
  }
  return false;
}

bool Network::act(Qp& q, uint32_t action) {
  if (q.works.empty()) return false;
  const Work& front = q.works.front();
  if (q.state == IBV_QPS_ERR && (front.status == IBV_WC_SUCCESS || Clock::now() < front.answer)) {
    if (front.stage == Work::Stage::done && front.status == IBV_WC_SUCCESS && !q.stopped && chance(2))
      return complete(q);
    report(q, IBV_WC_WR_FLUSH_ERR);
    return true;
  }
  return action == 0 ? send(q) : action == 1 ? answer(q) : complete(q);
}

// -- at the sender ----------------------------------------------------------------------------------------------------

bool Network::local(const Qp& q, const ibv_sge& piece, bool writes) const {
  const auto found = regions.find(piece.lkey - 1);
  return found != regions.end() && found->second->pd == root(q.pd) &&
         covers(*found->second, piece.addr, piece.length) &&
         (!writes || found->second->rights & IBV_ACCESS_LOCAL_WRITE);
}

bool Network::send(Qp& q) {
  if (q.stopped || q.state != IBV_QPS_RTS || !get("sending")) return false;
  uint32_t trips = 0;
  for (Work& w : q.works) {
    if (w.stage == Work::Stage::under_way && w.trips()) ++trips;
    if (w.stage != Work::Stage::posted) continue;
    if (w.flags & IBV_SEND_FENCE && trips) return false;
    if (w.trips() && trips >= q.attr.max_rd_atomic) return false;
    perform(q, w);
    if (w.status != IBV_WC_SUCCESS) w.stage = Work::Stage::done, q.stopped = true;
    return true;
  }
  return false;
}

void Network::perform(Qp& q, Work& w) {
  if (q.end_status >= 0) {
    w.status = ibv_wc_status(q.end_status);
    w.vendor = q.end_vendor;
    q.end_status = -1;
    return;
  }
  const bool inlined = w.flags & IBV_SEND_INLINE;
  const uint64_t bytes = inlined ? w.data.size() : total(w);
  for (const ibv_sge& piece : w.pieces)
    if (!inlined && !local(q, piece, w.trips())) {
      w.status = IBV_WC_LOC_PROT_ERR;
      return;
    }
  const auto found = queue_pairs.find(q.attr.dest_qp_num);
  Qp* there = found == queue_pairs.end() ? nullptr : found->second;
  if (q.silent || !there || (there->state != IBV_QPS_RTR && there->state != IBV_QPS_RTS) ||
      there->attr.dest_qp_num != q.qp_num || there->attr.rq_psn != q.attr.sq_psn ||
      there->attr.path_mtu != q.attr.path_mtu) {
    w.status = IBV_WC_RETRY_EXC_ERR;
    w.answer = Clock::now() + std::chrono::nanoseconds(4096ll << q.attr.timeout) * (q.attr.retry_cnt + 1);
    return;
  }
  const bool atomic = w.trips() && w.opcode != IBV_WR_RDMA_READ;
  w.status = reach(q, *there, w, bytes,
                   !w.trips() ? IBV_ACCESS_REMOTE_WRITE
                   : atomic   ? IBV_ACCESS_REMOTE_ATOMIC
                              : IBV_ACCESS_REMOTE_READ);
  if (w.status != IBV_WC_SUCCESS) {
    there->state = IBV_QPS_ERR;
    return;
  }
  w.stage = w.trips() ? Work::Stage::under_way : Work::Stage::done;
  if (!w.trips()) {
    if (!inlined)
      for (const ibv_sge& piece : w.pieces) {
        const size_t before = w.data.size();
        w.data.resize(before + piece.length);
        load(w.data.data() + before, piece.addr, piece.length);
      }
    if (bytes) {
      const bool relaxed = regions.at(w.key)->rights & IBV_ACCESS_RELAXED_ORDERING;
      flows[q.qp_num].push_back({w.key, w.remote, std::move(w.data), relaxed});
    }
  } else if (atomic) {
    land_before(q.qp_num, w.key);
    const uint64_t old = change(w.remote, w.opcode == IBV_WR_ATOMIC_FETCH_AND_ADD, w.add, w.swap);
    w.data.assign(reinterpret_cast<const char*>(&old), 8);
  }
}

// Whether the target lets the request in.
ibv_wc_status Network::reach(Qp& q, Qp& there, const Work& w, uint64_t bytes, int right) {
  uint32_t trips = 0;
  for (const Work& other : q.works) trips += other.trips() && other.stage == Work::Stage::under_way;
  if (w.trips() && trips >= there.attr.max_dest_rd_atomic) return IBV_WC_REM_INV_REQ_ERR;
  if (right == IBV_ACCESS_REMOTE_ATOMIC && (w.remote % 8 || bytes != 8)) return IBV_WC_REM_INV_REQ_ERR;
  if (bytes == 0) return IBV_WC_SUCCESS;
  const auto found = regions.find(w.key);
  const bool let = found != regions.end() && found->second->pd == root(there.pd) &&
                   covers(*found->second, w.remote, bytes) && found->second->rights & right &&
                   there.attr.qp_access_flags & unsigned(right);
  return let ? IBV_WC_SUCCESS : IBV_WC_REM_ACCESS_ERR;
}

// The oldest answer comes. What a read finds is what is there by now.
bool Network::answer(Qp& q) {
  for (Work& w : q.works) {
    if (w.stage != Work::Stage::under_way) continue;
    if (w.opcode == IBV_WR_RDMA_READ) {
      land_before(q.qp_num, w.key);
      const auto found = regions.find(w.key);
      const uint64_t bytes = total(w);
      if (bytes && (found == regions.end() || !covers(*found->second, w.remote, bytes))) {
        w.status = IBV_WC_REM_ACCESS_ERR;
        q.stopped = true;
      } else {
        w.data.resize(bytes);
        load(w.data.data(), w.remote, bytes);
      }
    }
    w.stage = Work::Stage::done;
    return true;
  }
  return false;
}

bool Network::complete(Qp& q) {
  Work& w = q.works.front();
  if (w.stage != Work::Stage::done || Clock::now() < w.answer) return false;
  if (w.status == IBV_WC_SUCCESS && w.trips()) {
    uint64_t done = 0;
    for (const ibv_sge& piece : w.pieces) {
      if (!local(q, piece, true)) w.status = IBV_WC_LOC_PROT_ERR;
      if (w.status == IBV_WC_SUCCESS) store(piece.addr, w.data.data() + done, piece.length);
      done += piece.length;
    }
  }
  report(q, w.status);
  return true;
}

void Network::report(Qp& q, ibv_wc_status status) {
  const Work w = std::move(q.works.front());
  q.works.pop_front();
  ++q.unreported;
  if (status != IBV_WC_SUCCESS) q.state = IBV_QPS_ERR, q.stopped = true;
  if (status == IBV_WC_SUCCESS && !(w.flags & IBV_SEND_SIGNALED)) return;
  Cq& cq = q.sends_to();
  if (cq.overrun || cq.entries.size() == size_t(cq.cqe)) {
    if (!cq.overrun) ++live["overruns"];
    cq.overrun = true;
    return;
  }
  ibv_wc wc;
  std::memset(&wc, int(nobody & 0xff), sizeof(wc));
  wc.wr_id = w.id;
  wc.status = status;
  wc.qp_num = q.qp_num;
  wc.vendor_err = status == IBV_WC_SUCCESS ? nobody : w.vendor;
  cq.entries.push_back({wc, q.unreported});
  q.unreported = 0;
}

void Network::purge(Qp& q) {
  q.works.clear();
  q.used = q.unreported = 0;
  std::erase_if(q.sends_to().entries, [&](const Cqe& e) { return e.wc.qp_num == q.qp_num; });
}

// -- at the target ----------------------------------------------------------------------------------------------------

// The last bytes of a long write may come first.
void Network::land(std::deque<Landing>& flow, size_t i, bool whole) {
  Landing& l = flow[i];
  const size_t size = l.data.size(), kept = whole || size <= 8 || chance(2) ? 0 : size / 2 & ~size_t(7);
  if (regions.count(l.key)) store(l.address + kept, l.data.data() + kept, size - kept);
  l.data.resize(kept);
  if (kept == 0) flow.erase(flow.begin() + long(i));
}

bool Network::land_one(std::deque<Landing>& flow) {
  if (get("landing") == 1) return false;
  if (get("landing") == 2) {
    const bool newest = flow.back().relaxed;
    if (newest) land(flow, flow.size() - 1, true);
    for (Landing& older : flow) older.relaxed = false;
    return newest;
  }
  const size_t chosen = chance(uint32_t(flow.size()));
  land(flow, flow[chosen].relaxed ? chosen : 0, false);
  return true;
}

void Network::land_all(uint32_t sender) {
  const auto flow = flows.find(sender);
  if (flow == flows.end()) return;
  while (!flow->second.empty()) land(flow->second, 0, true);
  flows.erase(flow);
}

bool Network::of_gpu(uint32_t key) const {
  const auto found = regions.find(key);
  return found != regions.end() && found->second->of_gpu;
}

void Network::land_before(uint32_t sender, uint32_t key) {
  const auto flow = flows.find(sender);
  if (flow == flows.end()) return;
  const bool gpu = of_gpu(key);
  for (size_t i = 0; i < flow->second.size();)
    if (of_gpu(flow->second[i].key) == gpu)
      land(flow->second, i, true);
    else
      ++i;
  if (flow->second.empty()) flows.erase(flow);
}

void Network::forget(Mr& region) {
  std::vector<uint32_t> senders;
  for (const auto& [sender, flow] : flows)
    if (std::any_of(flow.begin(), flow.end(), [&](const Landing& l) { return l.key == region.rkey; }))
      senders.push_back(sender);
  for (uint32_t sender : senders) land_all(sender);
  regions.erase(region.rkey);
}

}  // namespace fake
