// Shared memory: where a module has it, and each block's copy.
#include <sys/mman.h>

#include <cerrno>
#include <cstring>

#include "../error.h"
#include "module.h"
#include "scheduler.h"

namespace gin::host {

// Shared memory of a block that starts: undefined on a GPU, so filled with a pattern that no program can take for zeros.
char* Scheduler::take_image() {
  char* image;
  if (images_.empty()) {
    images_.reserve(resident_.size() + 1);
    void* p = mmap(nullptr, image_bytes_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (p == MAP_FAILED) {
      throw Error(Error::Kind::memory, std::string("host platform: no memory for the shared memory of a block: ") +
                                           std::strerror(errno) + "; use fewer blocks or less shared memory");
    }
    image = static_cast<char*>(p);
  } else {
    image = images_.back();
    images_.pop_back();
  }
  uint64_t after = dynamic_offset_ + dynamic_placeholder;
  std::memset(image, 0xcd, dynamic_offset_ + launch_->shared);
  std::memset(image + after, 0xcd, launch_->module->image_bytes() - after);
  return image;
}

void Scheduler::drop_images() {
  for (char* image : images_) munmap(image, image_bytes_);
  images_.clear();
}

// Asks the module itself where its dynamic shared memory lies, on a stack of its own and with an address for its image
// that no memory has. An answer elsewhere means that the compiler did not go through the module's __tls_get_addr.
uint64_t Scheduler::find_dynamic() {
  const Module& module = *launch_->module;
  if (module.dynamic_offset() != Module::unknown) return module.dynamic_offset();
  constexpr uintptr_t nowhere = uintptr_t(1) << 30;
  Thread* t = take_stack();
  prepare_stack(t, [](void* thread) {
    auto* own = static_cast<Thread*>(thread);
    Scheduler& s = of(own);
    s.shadow(own).arrive(*s.previous_);
    s.found_ = reinterpret_cast<uintptr_t>(s.launch_->module->entry().dynamic_shared());
    s.leave(own);
  });
  t->shared = reinterpret_cast<char*>(nowhere);
  enter(t);
  t->stack = nullptr;
  t->next = free_;
  free_ = t;
  uint64_t offset = found_ - nowhere;
  if (offset > module.image_bytes() - dynamic_placeholder) {
    throw Error(Error::Kind::unsupported,
                "compiled kernel " + module.path() +
                    ": the compiler addresses __shared__ variables in a way that the host platform cannot redirect; "
                    "compile with -mtls-dialect=gnu (x86-64) or -mtls-dialect=trad (aarch64)");
  }
  module.set_dynamic_offset(offset);
  return offset;
}

}  // namespace gin::host
