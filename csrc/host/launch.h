// One launch of a kernel: what runs, over which grid, with which arguments.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "include/gin_host/abi.h"

namespace gin::host {

class Module;

// The arguments of a launch, copied, each at the alignment of its type.
class Arguments {
 public:
  Arguments() = default;
  // gin::Error{argument} when number or sizes are not those of the parameters.
  Arguments(const Module& module, const std::vector<std::string>& bytes);

  void* const* pointers() const { return pointers_.data(); }

 private:
  struct Free {
    void operator()(std::byte* p) const;
  };
  std::unique_ptr<std::byte[], Free> storage_;
  std::vector<void*> pointers_;
};

struct Launch {
  std::shared_ptr<const Module> module;
  std::string name;
  Index3 grid{1, 1, 1}, block{1, 1, 1};
  uint32_t shared = 0;      // dynamic shared memory of each block, in bytes
  void* library = nullptr;  // what gin::host::library() returns in the kernel
  Arguments arguments;

  // CUDA's limits on blocks, grids and shared memory; gin::Error{argument}.
  void check() const;
};

}  // namespace gin::host
