// A protection domain whose queue pairs one thread alone uses: the device's library then posts without locks.
#pragma once

#include <unistd.h>

#include <memory>

#include "wire/verbs/device.h"

namespace gin::wire::verbs {

struct FreeThread {
  pid_t owner = getpid();  // as with Destroy
  void operator()(ibv_td* thread) const {
    if (getpid() == owner) ibv_dealloc_td(thread);
  }
};

class ThreadDomain {
 public:
  // The device's own domain where the device knows no such thing, as Soft-RoCE does not, or has no more of them.
  explicit ThreadDomain(const Device& device) : shared_(device.domain.get()) {
    ibv_td_init_attr init{};
    thread_.reset(ibv_alloc_td(device.context.get(), &init));
    if (!thread_) return;
    ibv_parent_domain_init_attr both{};
    both.pd = shared_;
    both.td = thread_.get();
    own_ = DomainHandle(ibv_alloc_parent_domain(device.context.get(), &both));
  }

  ibv_pd* get() const { return own_ ? own_.get() : shared_; }

 private:
  ibv_pd* shared_;
  std::unique_ptr<ibv_td, FreeThread> thread_;
  DomainHandle own_;  // goes before the thread's
};

}  // namespace gin::wire::verbs
