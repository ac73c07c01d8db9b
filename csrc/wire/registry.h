// Wires by name.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "wire/wire.h"

namespace gin::wire {

using Options = std::map<std::string, std::string>;

// Options that every wire takes:
//   max_message  the largest put or get in bytes that it states (callers split); default 1 GiB
//   queue        how many requests of an endpoint may be taken and not yet polled; default 4096
//   fault.*      see faulty.h; for tests
// Throws gin::Error{config} for a name or an option that does not exist.
std::unique_ptr<Fabric> make_fabric(const std::string& name, uint32_t rank, uint32_t size, const Options& options = {});

std::vector<std::string> names();

// A number among the options, or `otherwise` when it is not there. Throws gin::Error{config} when it is no number or
// outside [least, most].
uint64_t option(const Options& options, const std::string& key, uint64_t otherwise, uint64_t least, uint64_t most);

}  // namespace gin::wire
