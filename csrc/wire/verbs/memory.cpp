#include "wire/verbs/memory.h"

#include <sstream>

#include "error.h"

namespace gin::wire::verbs {
namespace {

constexpr const char* format = "gin-verbs-region-1";
using Kind = Error::Kind;

}  // namespace

Memory::Memory(const Device& device, uint32_t rank, uint32_t size)
    : device_(device), rank_(rank), size_(size), table_(std::make_unique<std::atomic<LocalRegion*>[]>(most)) {}

std::string Memory::add(uint32_t region, void* base, uint64_t bytes, bool relaxed) {
  if (region >= most)
    throw Error(Kind::config,
                "region " + std::to_string(region) + " does not exist; there are " + std::to_string(most));
  std::lock_guard<std::mutex> lock(mutex_);
  if (table_[region].load(std::memory_order_relaxed))
    throw Error(Kind::config, "region " + std::to_string(region) + " is already registered; remove it first");
  auto added = std::make_unique<LocalRegion>();
  added->base = static_cast<char*>(base);
  added->bytes = bytes;
  // Whole words of 8 bytes: an atomic of 4 works on the one around it.
  const uint64_t first = uint64_t(uintptr_t(base)) & ~uint64_t(7);
  const uint64_t end = bytes ? (uint64_t(uintptr_t(base)) + bytes + 7) & ~uint64_t(7) : first;
  added->registration = device_.add(reinterpret_cast<void*>(uintptr_t(first)), end - first, relaxed);
  const uint32_t remote_key = added->registration ? added->registration->rkey : 0;
  added->key = added->registration ? added->registration->lkey : 0;
  added->peers.resize(size_);
  added->peers[rank_] = {uint64_t(uintptr_t(base)), bytes, remote_key, true};
  table_[region].store(added.get(), std::memory_order_release);
  all_.push_back(std::move(added));

  std::ostringstream out;
  out << format << ' ' << uint64_t(uintptr_t(base)) << ' ' << bytes << ' ' << remote_key;
  return out.str();
}

void Memory::import(uint32_t region, uint32_t peer, const std::string& exported) {
  std::lock_guard<std::mutex> lock(mutex_);
  LocalRegion* found = region < most ? table_[region].load(std::memory_order_relaxed) : nullptr;
  const std::string what = "cannot import region " + std::to_string(region) + " of rank " + std::to_string(peer) + ": ";
  if (!found || peer >= size_)
    throw Error(Kind::config, what + "register the region on this rank first, for a job with that rank");
  if (peer == rank_) return;
  std::istringstream in(exported);
  std::string tag;
  RemoteRegion remote;
  if (!(in >> tag >> remote.address >> remote.bytes >> remote.key) || tag != format)
    throw Error(Kind::config, what + "'" + exported.substr(0, 80) +
                                  "' was not made by the verbs wire of this version; use one wire on all ranks");
  remote.known = true;
  found->peers[peer] = remote;
}

void Memory::remove(uint32_t region) {
  std::lock_guard<std::mutex> lock(mutex_);
  LocalRegion* found = region < most ? table_[region].exchange(nullptr, std::memory_order_acq_rel) : nullptr;
  if (found) found->registration.reset();
}

}  // namespace gin::wire::verbs
