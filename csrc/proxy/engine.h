// The progress engine: a set of channels stepped in turn. It has no thread, clock or lock of its own, and a step costs
// what its channels and their traffic cost, however many peers there are.
#pragma once

#include <memory>
#include <vector>

#include "proxy/channel.h"

namespace gin::proxy {

class Engine {
 public:
  void add(std::unique_ptr<Channel> channel) {
    if (channels_.size() < few)
      awake_.push_back({channel.get(), 0});
    else
      asleep_.push_back(channel.get());
    channels_.push_back(std::move(channel));
  }

  // One pass over all channels; returns whether anything moved. Never waits.
  bool step() {
    bool moved = step_awake();
    return step_asleep(asleep_.size()) || moved;
  }

  // The same for who comes again at once: where there are many channels, those that have had nothing to do for long are
  // looked at in every 16th pass, or they would set the pace of the others.
  bool step_often() {
    bool moved = step_awake();
    moved |= step_asleep(still_ < still_passes ? (asleep_.size() + part - 1) / part : asleep_.size());
    still_ = moved ? 0 : still_ + (still_ < still_passes);
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
  static constexpr size_t few = 16;                  // channels that are awake from the start; of no more none sleeps
  static constexpr size_t part = 16;                 // passes in which each that sleeps is looked at once
  static constexpr size_t restful_visits = 1 << 20;  // of all that are awake, until one that rests falls asleep
  static constexpr uint32_t still_passes = 1 << 10;  // in which nothing moved: the thread may pause between them

  struct Awake {
    Channel* channel;
    uint32_t rested;  // passes
  };

  bool step_awake() {
    bool moved = false;
    for (size_t i = 0; i < awake_.size();) {
      Awake& one = awake_[i];
      if (one.channel->step()) {
        one.rested = 0;
        moved = true;
      } else if (channels_.size() > few && one.channel->at_rest() && ++one.rested >= restful_visits / awake_.size()) {
        asleep_.push_back(one.channel);
        one = awake_.back();
        awake_.pop_back();
        continue;
      }
      ++i;
    }
    return moved;
  }

  bool step_asleep(size_t count) {
    bool moved = false;
    for (; count > 0 && !asleep_.empty(); --count) {
      next_ = next_ + 1 < asleep_.size() ? next_ + 1 : 0;
      Channel*& one = asleep_[next_];
      if (!one->step()) continue;
      moved = true;
      awake_.push_back({one, 0});
      one = asleep_.back();
      asleep_.pop_back();
    }
    return moved;
  }

  std::vector<std::unique_ptr<Channel>> channels_;
  std::vector<Awake> awake_;
  std::vector<Channel*> asleep_;
  size_t next_ = 0;     // of those asleep
  uint32_t still_ = 0;  // passes in which nothing moved
};

}  // namespace gin::proxy
