#include "nccl_plugin/comm.h"

#include "error.h"
#include "nccl_plugin/log.h"

namespace gin::rma {

Comm::Comm(const Listener& listener, const std::vector<Handle>& handles, uint32_t rank)
    : settings_(Settings::from_environment()),
      gpu_(Gpu::current()),
      mesh_(listener, handles, rank, settings_.connect_timeout),
      words_(gpu_) {
  inform("rank " + std::to_string(rank) + " of " + std::to_string(size()) + " connected, " +
         (gpu_ ? "GPUs of one host by copy engines" : "host memory only"));
}

Comm::~Comm() {
  Gpu::Use use(gpu_.get());
  regions_.clear();
}

std::shared_ptr<Region> Comm::add(void* data, uint64_t bytes, bool cuda, bool never_reset) {
  constexpr const char *name = "registering memory", *mapping = "mapping memory";
  std::lock_guard<std::mutex> lock(collective_);
  const uint32_t number = next_++;  // the same on all ranks, of which one may fail at what follows
  Gpu::Use use(gpu_.get());
  auto region = std::make_shared<Region>();
  std::optional<Exported> exported;
  or_fail(name, [&] {
    if (cuda && !gpu_)
      throw Error(Error::Kind::unsupported, "memory of a GPU, but the thread that connected had no CUDA context");
    if (!data && bytes) throw Error(Error::Kind::config, "no address for " + std::to_string(bytes) + " bytes");
    region->base = static_cast<char*>(data);
    region->bytes = bytes;
    region->cuda = cuda;
    region->never_reset = never_reset;
    if (cuda && never_reset) region->shadow.resize(bytes / 8);
    region->parts.resize(size());
    if (cuda && bytes) exported = gpu_->share(data, bytes);
    if (exported && exported->allocations.size() > most_descriptors) exported.reset();
    region->number = number;
    std::lock_guard<std::mutex> guard(table_);
    regions_[number] = region;  // before the others can send to it
    return true;
  });
  std::vector<int> descriptors;
  if (exported)
    for (const Descriptor& allocation : exported->allocations) descriptors.push_back(allocation.get());
  try {
    auto letters = mesh_.exchange(name, describe(*region, exported, gpu_.get()), descriptors);
    std::string reached(size(), '0');
    or_fail(mapping, [&] {
      for (uint32_t peer = 0; peer < size(); ++peer) {
        if (peer == rank()) continue;
        std::string note;
        region->parts[peer] = understand(letters[peer], peer, number, gpu_.get(), note);
        if (!note.empty()) inform("memory of rank " + std::to_string(peer) + " goes through host memory: " + note);
        if (region->parts[peer].mapping) reached[peer] = '1';
      }
      return true;
    });
    letters = mesh_.exchange(mapping, reached);
    for (uint32_t peer = 0; peer < size(); ++peer)
      region->parts[peer].reaches = peer != rank() && letters[peer].text.substr(rank(), 1) == "1";
  } catch (const std::exception&) {
    remove(*region);
    throw;
  }
  inform("region " + std::to_string(region->number) + ", " + std::to_string(bytes) + " bytes of " +
         (!cuda      ? "host memory"
          : exported ? "GPU memory that others map"
                     : "GPU memory that others cannot map") +
         (cuda && never_reset ? ", signals that only grow" : ""));
  region->parts[rank()] = Part{bytes, cuda, region->base, cuda, cuda, nullptr};
  return region;
}

void Comm::remove(const Region& region) {
  std::shared_ptr<Region> last;  // freed outside the lock
  Gpu::Use use(gpu_.get());
  std::lock_guard<std::mutex> guard(table_);
  auto found = regions_.find(region.number);
  if (found == regions_.end()) return;
  last = std::move(found->second);
  regions_.erase(found);
}

std::shared_ptr<Region> Comm::find(uint32_t number) {
  std::lock_guard<std::mutex> guard(table_);
  auto found = regions_.find(number);
  return found == regions_.end() ? nullptr : found->second;
}

}  // namespace gin::rma
