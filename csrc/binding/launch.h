// Launches as Python gives them, for streams and for the simulator.
#pragma once

#include <nanobind/nanobind.h>

#include <cstdint>
#include <memory>
#include <string>
#include <tuple>
#include <vector>

#include "host/launch.h"
#include "host/module.h"

namespace gin::binding {

// A launch owns its module until the kernel has ended, on a thread without the interpreter: that ownership must not be
// Python's.
struct Module {
  explicit Module(const std::string& path) : loaded(std::make_shared<const host::Module>(path)) {}

  std::shared_ptr<const host::Module> loaded;
};

using Dim = std::tuple<int64_t, int64_t, int64_t>;

// gin::Error{argument} for arguments that are not the kernel's, and numbers out of range.
host::Launch make_launch(const Module& module, const std::vector<nanobind::bytes>& args, const Dim& grid,
                         const Dim& block, int64_t shared, uint64_t library, std::string name);

}  // namespace gin::binding
