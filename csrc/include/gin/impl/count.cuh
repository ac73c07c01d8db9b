// Completions that gin counts itself, beside those that a backend does.
#pragma once

#include "memory.cuh"

namespace gin::impl {

GIN_DEVICE void count(Channel channel, uint32_t counter) {
  add_release(&channel.comm.counter[channel.index * channel.comm.counters + counter], 1);
}

}  // namespace gin::impl
