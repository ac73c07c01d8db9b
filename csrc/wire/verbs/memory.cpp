#include "wire/verbs/memory.h"

#include <sstream>

#include "error.h"

namespace gin::wire::verbs {
namespace {

constexpr const char* format = "gin-verbs-region-3";
using Kind = Error::Kind;

}  // namespace

Memory::Memory(const Devices& devices, uint32_t rank, uint32_t size)
    : devices_(devices), rank_(rank), size_(size), table_(std::make_unique<std::atomic<LocalRegion*>[]>(most)) {}

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
  added->remote.resize(devices_.size() * size_);
  std::ostringstream keys;
  for (size_t d = 0; d < devices_.size(); ++d) {
    Registration made = devices_[d]->add(reinterpret_cast<void*>(uintptr_t(first)), end - first, relaxed);
    if (!made.note.empty()) note_ = made.note;
    added->of_gpu |= made.of_gpu;
    const uint32_t remote_key = made.handle ? made.handle->rkey : 0;
    added->keys.push_back(made.handle ? made.handle->lkey : 0);
    added->remote[d * size_ + rank_] = {uint64_t(uintptr_t(base)), bytes, remote_key, true, made.of_gpu};
    added->registrations.push_back(std::move(made.handle));
    keys << ' ' << remote_key;
  }
  std::ostringstream out;
  out << format << ' ' << uint64_t(uintptr_t(base)) << ' ' << bytes << ' ' << added->of_gpu << keys.str();
  table_[region].store(added.get(), std::memory_order_release);
  all_.push_back(std::move(added));
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
  in >> tag >> remote.address >> remote.bytes >> remote.of_gpu;
  std::vector<uint32_t> keys(devices_.size());
  for (uint32_t& key : keys) in >> key;
  if (!in || tag != format)
    throw Error(Kind::config,
                what + "'" + exported.substr(0, 80) +
                    "' was not made by the verbs wire of this version with as many NICs (GIN_IB_NICS); use "
                    "one wire and setting on all ranks");
  remote.known = true;
  for (size_t d = 0; d < keys.size(); ++d) {
    remote.key = keys[d];
    found->remote[d * size_ + peer] = remote;
  }
}

std::string Memory::note() const {
  std::lock_guard<std::mutex> lock(mutex_);
  return note_;
}

void Memory::remove(uint32_t region) {
  std::lock_guard<std::mutex> lock(mutex_);
  LocalRegion* found = region < most ? table_[region].exchange(nullptr, std::memory_order_acq_rel) : nullptr;
  if (found) found->registrations.clear();
}

}  // namespace gin::wire::verbs
