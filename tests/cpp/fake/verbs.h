// The pretended libibverbs' own: its objects, and what moves data between them. One lock is over everything.
#pragma once

#include <infiniband/verbs.h>

#include <chrono>
#include <condition_variable>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <random>
#include <set>
#include <string>
#include <vector>

namespace fake {

using Clock = std::chrono::steady_clock;
using Lock = std::unique_lock<std::mutex>;

// What can be set, and what it is otherwise.
inline const std::map<std::string, int64_t> defaults = {
    {"devices", 2},      // of one port each
    {"ethernet", 1},     // or InfiniBand
    {"active", 1},       // the port's link
    {"atomics", 1},      // whether the devices have them
    {"gids", 2},         // of a port: a link-local one, then IPv4
    {"pkeys", 128},      // partition keys of a port
    {"vendor", 0x02c9},  // 0xffffff is Soft-RoCE's
    {"max_qp_wr", 1 << 15},
    {"max_cqe", 1 << 22},
    {"rd_atomic", 16},  // reads and atomics under way, at both ends
    {"inline", 1024},   // bytes
    {"thread_domains", 1},
    {"sending", 1},          // 0: nothing is sent
    {"poll_most", 1 << 20},  // completions of one poll
    {"landing",
     0},  // of writes: 0 late, 1 when a read or atomic follows, 2 as 1 but a relaxed one that is the newest at once
    {"seed", 1},
};

struct Pd : ibv_pd {
  Pd* parent = nullptr;  // whose memory a parent domain shares
  struct Td* thread = nullptr;
  int users = 0;
};
struct Td : ibv_td {
  int users = 0;
};
struct Mr : ibv_mr {
  int rights = 0;
  bool of_gpu = false;  // to which bytes go another way than to the host's memory
};

inline bool covers(const Mr& region, uint64_t address, uint64_t bytes) {
  const uint64_t base = uint64_t(uintptr_t(region.addr));
  return address >= base && address - base <= region.length && bytes <= region.length - (address - base);
}

struct Cqe {
  ibv_wc wc;
  uint32_t releases;  // work requests that are off their send queue when this is polled
};
struct Cq : ibv_cq {
  std::deque<Cqe> entries;
  bool overrun = false;
  int users = 0;
};

struct Work {
  enum class Stage { posted, under_way, done } stage = Stage::posted;
  uint64_t id = 0, remote = 0, add = 0, swap = 0;
  uint32_t key = 0;
  ibv_wr_opcode opcode{};
  unsigned flags = 0;
  std::vector<ibv_sge> pieces;
  std::string data;  // of an inline write; of an answer
  ibv_wc_status status = IBV_WC_SUCCESS;
  uint32_t vendor = 0;
  Clock::time_point answer{};  // not before

  bool trips() const { return opcode != IBV_WR_RDMA_WRITE; }
};

struct Qp : ibv_qp {
  ibv_qp_cap cap{};
  ibv_qp_attr attr{};
  std::deque<Work> works;
  uint32_t used = 0, unreported = 0;  // of the send queue; that ended without a completion
  bool stopped = false;               // a work request has failed: none is sent after it
  bool silent = false;
  int end_status = -1;
  uint32_t end_vendor = 0;

  Cq& sends_to() const { return *static_cast<Cq*>(send_cq); }
};

// Bytes on their way to a target's memory.
struct Landing {
  uint32_t key;
  uint64_t address;
  std::string data;
  bool relaxed;
};

class Network {
 public:
  Network();
  void run();

  // With the lock held.
  bool step();        // something, chosen at random; false when there is nothing to do now
  bool idle() const;  // nothing to do until something is posted
  void purge(Qp& q);  // forgets its work requests and their completions
  void forget(Mr& region);
  void reset(uint32_t seed);
  int64_t get(const char* name) const { return settings.at(name); }
  uint32_t chance(uint32_t of) { return uint32_t(random() % of); }

  std::mutex mutex;
  std::condition_variable wake;
  bool ending = false;
  std::map<std::string, int64_t> settings = defaults;
  std::map<uint32_t, Qp*> queue_pairs;            // by number
  std::map<uint32_t, Mr*> regions;                // by remote key; the local one is one more
  std::map<uint32_t, std::deque<Landing>> flows;  // by the sender's number
  std::set<Cq*> completion_queues;
  std::map<std::string, int64_t> live;
  std::mt19937 random{1};

 private:
  bool act(Qp& q, uint32_t action);
  bool send(Qp& q);
  bool answer(Qp& q);
  bool complete(Qp& q);
  void report(Qp& q, ibv_wc_status status);
  void perform(Qp& q, Work& w);
  ibv_wc_status reach(Qp& q, Qp& there, const Work& w, uint64_t bytes, int right);
  bool local(const Qp& q, const ibv_sge& piece, bool writes) const;
  void land(std::deque<Landing>& flow, size_t i, bool whole);
  bool land_one(std::deque<Landing>& flow);
  void land_all(uint32_t sender);
  void land_before(uint32_t sender, uint32_t key);  // what goes the same way as this region's
  bool of_gpu(uint32_t key) const;
};

Network& network();
Pd* root(ibv_pd* domain);

}  // namespace fake
