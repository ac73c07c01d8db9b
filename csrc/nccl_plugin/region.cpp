#include "nccl_plugin/region.h"

#include <sstream>

#include "error.h"

namespace gin::rma {

std::string describe(const Region& region, const std::optional<Exported>& exported, const Gpu* gpu) {
  std::ostringstream out;
  out << region.number << ' ' << region.bytes << ' ' << int(region.cuda) << ' ' << (gpu ? gpu->name() : "-") << ' '
      << (exported ? exported->offset : 0);
  if (exported)
    for (uint64_t bytes : exported->bytes) out << ' ' << bytes;
  return out.str();
}

Part understand(Letter& letter, uint32_t peer, uint32_t number, const Gpu* gpu, std::string& note) {
  std::istringstream in(letter.text);
  uint32_t theirs = 0;
  Part part;
  Exported exported;
  std::string on;
  if (!(in >> theirs >> part.bytes >> part.cuda >> on >> exported.offset))
    throw Error(Error::Kind::internal, "registering memory: not understood: " + letter.text.substr(0, 80));
  if (theirs != number)
    throw Error(Error::Kind::internal, "registering memory: region " + std::to_string(number) + " is number " +
                                           std::to_string(theirs) + " at rank " + std::to_string(peer));
  for (uint64_t bytes; in >> bytes;) exported.bytes.push_back(bytes);
  exported.allocations = std::move(letter.descriptors);
  if (!part.cuda || exported.bytes.empty()) return part;
  if (!gpu || exported.bytes.size() != exported.allocations.size()) return part;
  part.mapping = gpu->map(exported);
  if (part.mapping) part.reached = reinterpret_cast<char*>(uintptr_t(part.mapping->address()));
  part.on_device = part.mapping && on == gpu->name();
  if (!part.mapping) note = "its GPU is not reached from this one";
  return part;
}

}  // namespace gin::rma
