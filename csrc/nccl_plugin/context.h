// A set of contexts: what NCCL posts to from one progress thread, and what that thread drives.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <unordered_map>
#include <vector>

#include "memory/segment.h"
#include "nccl_plugin/comm.h"
#include "nccl_plugin/inlet.h"
#include "nccl_plugin/outlet.h"

namespace gin::rma {

class Context final : private Inlet::Owner {
 public:
  // Collective. Throws gin::Error.
  Context(Comm& comm, uint32_t contexts);
  ~Context();

  // Regions are null where there are no bytes. Throw gin::Error; what they return is owned until `test` says done.
  Request* put(const Transfer& transfer, const Signal& signal, uint32_t peer);
  Request* get(const Transfer& transfer, uint32_t peer);

  // Frees the request when it is done. Throws gin::Error, and frees it, when it cannot be.
  bool test(Request* request);

  void progress();

  // Something went wrong that not every test says.
  bool failed() const { return failed_.load(std::memory_order_relaxed); }

  Comm& comm() { return comm_; }

 private:
  // A peer that does nothing while something waits for it.
  struct Watch {
    uint64_t steps = 0;
    double since = 0;
  };

  void fetched(uint32_t peer, const Message& fetch, std::shared_ptr<Region> source) override;
  void landed(uint64_t token, uint64_t bytes) override;

  Outlet& check(uint32_t context, uint32_t peer);
  template <class Post>
  Request* post(uint32_t context, uint32_t peer, Post with);
  Request* make_request();
  void free_request(Request* request);
  void look_after();
  void lose(uint32_t peer, const std::string& why, bool error);

  Comm& comm_;
  const uint32_t contexts_;
  std::mutex mutex_;  // guards everything below
  std::shared_ptr<memory::Segment> inbox_;
  std::vector<std::shared_ptr<memory::Segment>> others_;
  std::shared_ptr<Pinned> heads_;
  std::vector<std::unique_ptr<Outlet>> outlets_;
  std::vector<std::unique_ptr<Inlet>> inlets_;
  std::vector<std::string> lost_;  // by rank: why it is; empty while it is there
  std::vector<Watch> watches_;
  std::vector<std::unique_ptr<Request>> requests_;
  std::vector<Request*> free_;
  std::unordered_map<uint64_t, Request*> gets_;
  uint64_t next_token_ = 1;
  double looked_ = 0;
  std::atomic<bool> failed_{false};
};

}  // namespace gin::rma
