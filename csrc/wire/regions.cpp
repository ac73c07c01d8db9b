#include "wire/regions.h"

#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <sstream>

#include "error.h"
#include "memory/host_id.h"
#include "wire/cma.h"

namespace gin::wire {
namespace {

constexpr const char* format = "gin-shm-1";
using Kind = Error::Kind;

std::string region_of_rank(uint32_t region, uint32_t peer) {
  return "region " + std::to_string(region) + " of rank " + std::to_string(peer);
}

struct Exported {
  pid_t pid = 0;
  uint64_t started = 0, address = 0, bytes = 0;
  std::string host, device;
};

Exported parse(uint32_t region, uint32_t peer, const std::string& text) {
  std::istringstream in(text);
  std::string tag;
  Exported e;
  if (!(in >> tag >> e.pid >> e.started >> e.address >> e.bytes >> e.host) || tag != format)
    throw Error(Kind::config, "cannot import " + region_of_rank(region, peer) + ": '" + text.substr(0, 80) +
                                  "' was not made by the shm wire of this version; use one wire on all ranks");
  in >> e.device;
  return e;
}

// One byte through the kernel tells whether it will carry the rest.
void probe(uint32_t region, uint32_t peer, const Exported& e) {
  char byte;
  int error = cma::read(e.pid, &byte, e.address, 1);
  if (error == 0) return;
  std::string what = "cannot reach " + region_of_rank(region, peer) + " in process " + std::to_string(e.pid) + ": ";
  if (error == ESRCH || memory::start_time(e.pid) != e.started)
    throw Error(Kind::remote, what + "that process has ended; see its output for why");
  if (error == EPERM)
    throw Error(
        Kind::unsupported,
        what +
            "the kernel does not let this process copy to and from it (other user, or "
            "kernel.yama.ptrace_scope above 1, or a container without CAP_SYS_PTRACE); use comm.window() instead of "
            "comm.register(), or allow it");
  throw Error(Kind::remote, what + std::strerror(error));
}

}  // namespace

Regions::Regions(uint32_t rank, uint32_t size, std::string device)
    : rank_(rank), size_(size), device_(std::move(device)), table_(std::make_unique<std::atomic<Region*>[]>(most)) {}

std::string Regions::add(uint32_t region, void* base, uint64_t bytes, bool on_device) {
  if (region >= most)
    throw Error(Kind::config,
                "region " + std::to_string(region) + " does not exist; there are " + std::to_string(most));
  std::lock_guard<std::mutex> lock(mutex_);
  if (table_[region].load(std::memory_order_relaxed))
    throw Error(Kind::config, "region " + std::to_string(region) + " is already registered; remove it first");
  auto added = std::make_unique<Region>();
  added->base = static_cast<char*>(base);
  added->bytes = bytes;
  added->on_device = on_device;
  added->peers.resize(size_);
  added->peers[rank_] = {added->base, uint64_t(uintptr_t(base)), bytes, getpid(), on_device};
  table_[region].store(added.get(), std::memory_order_release);
  all_.push_back(std::move(added));

  std::ostringstream out;
  out << format << ' ' << getpid() << ' ' << memory::start_time(getpid()) << ' ' << uint64_t(uintptr_t(base)) << ' '
      << bytes << ' ' << memory::host_id();
  if (on_device) out << ' ' << device_;
  return out.str();
}

void Regions::import(uint32_t region, uint32_t peer, const std::string& exported, void* mapped) {
  std::lock_guard<std::mutex> lock(mutex_);
  Region* found = region < most ? table_[region].load(std::memory_order_relaxed) : nullptr;
  if (!found || peer >= size_)
    throw Error(Kind::config, "cannot import " + region_of_rank(region, peer) +
                                  ": register the region on this rank first, for a job with that rank");
  if (peer == rank_) return;
  Exported e = parse(region, peer, exported);
  if (e.host != memory::host_id())
    throw Error(Kind::unsupported, "cannot reach " + region_of_rank(region, peer) +
                                       ": it is on another host or in another "
                                       "container; the shm wire needs one host and one process namespace");
  if (!mapped && e.bytes > 0) probe(region, peer, e);
  found->peers[peer] = {static_cast<char*>(mapped), e.address, e.bytes, e.pid,
                        !e.device.empty() && e.device == device_};
}

void Regions::remove(uint32_t region) {
  std::lock_guard<std::mutex> lock(mutex_);
  if (region < most) table_[region].store(nullptr, std::memory_order_release);
}

}  // namespace gin::wire
