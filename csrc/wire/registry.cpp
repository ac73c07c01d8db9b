#include "wire/registry.h"

#include <algorithm>
#include <charconv>

#include "error.h"
#include "wire/completions.h"
#include "wire/cuda.h"
#include "wire/faulty.h"
#include "wire/null.h"
#include "wire/shm.h"
#include "wire/verbs/verbs.h"

namespace gin::wire {
namespace {

struct Wire {
  const char* name;
  std::unique_ptr<Fabric> (*make)(uint32_t rank, uint32_t size, const Options& options);
  const std::vector<std::string>* more_options = nullptr;
};

constexpr Wire wires[] = {
    {"shm", make_shm},
    {"null", make_null},
    {"cuda", make_cuda},
    {"verbs", make_verbs, &verbs_options},
};

std::string known_names() {
  std::string all;
  for (const std::string& name : names()) all += (all.empty() ? "" : ", ") + name;
  return all;
}

void check_options(const Wire& wire, const Options& options) {
  const std::vector<std::string> more = wire.more_options ? *wire.more_options : std::vector<std::string>();
  for (const auto& [key, value] : options) {
    if (key == "max_message" || key == "queue" || is_fault(key)) continue;
    if (std::find(more.begin(), more.end(), key) != more.end()) continue;
    std::string taken = "max_message, queue";
    for (const std::string& other : more) taken += ", " + other;
    throw Error(Error::Kind::config, std::string("wire '") + wire.name + "' has no option '" + key + "' (given as '" +
                                         value + "'); it takes " + taken + ", and for tests " + fault_names());
  }
}

}  // namespace

std::vector<std::string> names() {
  std::vector<std::string> all;
  for (const Wire& wire : wires) all.push_back(wire.name);
  return all;
}

uint64_t option(const Options& options, const std::string& key, uint64_t otherwise, uint64_t least, uint64_t most) {
  auto found = options.find(key);
  if (found == options.end()) return otherwise;
  const std::string& text = found->second;
  uint64_t value = 0;
  auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size() || value < least || value > most)
    throw Error(Error::Kind::config, "wire option " + key + " is '" + text + "'; it must be a whole number from " +
                                         std::to_string(least) + " to " + std::to_string(most));
  return value;
}

std::unique_ptr<Fabric> make_fabric(const std::string& name, uint32_t rank, uint32_t size, const Options& options) {
  for (const Wire& wire : wires) {
    if (name != wire.name) continue;
    if (size == 0 || rank >= size || size > max_peers)
      throw Error(Error::Kind::config, "rank " + std::to_string(rank) + " of " + std::to_string(size) +
                                           " is not a rank; a job has 1 to " + std::to_string(max_peers) + " ranks");
    check_options(wire, options);
    std::unique_ptr<Fabric> fabric = wire.make(rank, size, options);
    return has_faults(options) ? make_faulty(std::move(fabric), options) : std::move(fabric);
  }
  throw Error(Error::Kind::config,
              "there is no wire '" + name + "'; choose one of " + known_names() + " (GIN_WIRE or wire=...)");
}

}  // namespace gin::wire
