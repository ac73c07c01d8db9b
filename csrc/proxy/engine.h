// The progress engine: a set of channels stepped in turn. It has no thread, clock or lock of its own, and a step costs
// what its channels and their traffic cost, however many peers there are.
#pragma once

#include <memory>
#include <vector>

#include "proxy/channel.h"

namespace gin::proxy {

class Engine {
 public:
  void add(std::unique_ptr<Channel> channel) { channels_.push_back(std::move(channel)); }

  // One pass over the channels; returns whether anything moved. Never waits.
  bool step() {
    bool moved = false;
    for (auto& channel : channels_) moved |= channel->step();
    return moved;
  }

  // Whether nothing is in flight and all rings are empty. The stepping thread only.
  bool idle() const {
    for (auto& channel : channels_)
      if (!channel->idle()) return false;
    return true;
  }

  const std::vector<std::unique_ptr<Channel>>& channels() const { return channels_; }

 private:
  std::vector<std::unique_ptr<Channel>> channels_;
};

}  // namespace gin::proxy
