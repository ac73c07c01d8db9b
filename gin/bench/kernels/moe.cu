// The exchange of a mixture of experts. Every rank holds `messages` tokens, sorted by the rank they go to, fewer for each
// higher rank: rank d of n gets a share in proportion to n - d. Dispatch: one put per token to the slots that the target
// keeps for this sender, then one ordered signal. Combine: every token goes back to where it came from, likewise. Blocks
// share out the peers as in alltoall.cu. Timed on every rank from the barrier before to the last token that is back.
namespace bench {

// The first of `tokens` that goes to a rank; all of them for the rank after the last. Rounded up: what does not divide
// goes to the lower ranks.
GIN_DEVICE uint64_t first_token(uint64_t tokens, uint64_t rank, uint64_t ranks) {
  const uint64_t shares = ranks * (ranks + 1) / 2, before = rank * ranks - rank * (rank - (rank > 0)) / 2;
  return (tokens * before + shares - 1) / shares;
}

}  // namespace bench

extern "C" __global__ void __launch_bounds__(BENCH_THREADS, 1)
    BENCH_KERNEL(gin::Comm comm, gin::Window source, gin::Window target, gin::Window out, bench::Plan plan) {
  using namespace bench;
  const Channel channel(plan);
  gin::Context net(comm, channel.context);
  const uint32_t me = net.rank(), ranks = net.size(), tokens = plan.messages;
  const uint32_t barrier = blockIdx.x / plan.contexts;
  const uint64_t place = plan.place[0];
  const uint64_t data_before = net.epoch(channel.data), done_before = net.epoch(channel.done);
  const uint32_t distances = blockIdx.x < ranks ? (ranks - blockIdx.x + gridDim.x - 1) / gridDim.x : 0;
  // Where in `target` the tokens come back to.
  const uint64_t returned = place + uint64_t(ranks) * tokens * plan.stride;
  const uint64_t mine = first_token(tokens, me, ranks);  // of every sender's tokens, the first for this rank
  const uint64_t count = first_token(tokens, me + 1, ranks) - mine;  // that every sender has for this rank
  uint64_t wrong = 0;
  __syncthreads();

  for (uint32_t round = 0; round < plan.rounds(); ++round) {
    const uint64_t serial = plan.serial + uint64_t(round) * tokens;
    for (uint32_t i = 0; i < distances && plan.verify; ++i) {
      const uint32_t to = (me + blockIdx.x + i * gridDim.x) % ranks;
      for (uint64_t t = first_token(tokens, to, ranks); t < first_token(tokens, to + 1, ranks); ++t) {
        fill(source.local(place + t * plan.stride), Pattern(me, serial + t), plan.bytes);
      }
    }
    __syncthreads();
    bool failed = !net.barrier(gin::block, gin::world, barrier, false).ok();
    if (threadIdx.x == 0) failed = failed || !together(comm, out, round);
    if (__syncthreads_or(failed)) break;
    const uint64_t start = now();
    for (uint32_t i = 0; i < distances; ++i) {
      const uint32_t to = (me + blockIdx.x + i * gridDim.x) % ranks;
      const uint64_t begin = first_token(tokens, to, ranks), end = first_token(tokens, to + 1, ranks);
      for (uint64_t t = begin + group(); t < end; t += groups()) {
        const uint64_t slot = uint64_t(me) * tokens + t - begin;
        net.put(Coop{}, to, target, place + slot * plan.stride, source, place + t * plan.stride, plan.bytes);
      }
      __syncthreads();
      if (threadIdx.x == 0) net.signal(to, gin::ordered(gin::signal_inc{channel.data}));
    }
    failed = !net.wait(gin::block, channel.data, data_before + uint64_t(round + 1) * distances).ok();
    for (uint32_t i = 0; i < distances && !failed; ++i) {
      const uint32_t from = (me + ranks - (blockIdx.x + i * gridDim.x) % ranks) % ranks;
      for (uint64_t k = group(); k < count; k += groups()) {
        net.put(Coop{}, from, target, returned + (mine + k) * plan.stride, target,
                place + (uint64_t(from) * tokens + k) * plan.stride, plan.bytes);
      }
      __syncthreads();
      if (threadIdx.x == 0) net.signal(from, gin::ordered(gin::signal_inc{channel.done}));
    }
    failed = failed || !net.wait(gin::block, channel.done, done_before + uint64_t(round + 1) * distances).ok();
    if (threadIdx.x == 0) keep(out, plan, round, start, now());
    failed = failed || !net.flush(gin::block).ok();
    if (__syncthreads_or(failed)) break;
    for (uint32_t i = 0; i < distances && plan.verify; ++i) {
      const uint32_t distance = blockIdx.x + i * gridDim.x;
      const uint32_t to = (me + distance) % ranks, from = (me + ranks - distance % ranks) % ranks;
      for (uint64_t t = first_token(tokens, to, ranks); t < first_token(tokens, to + 1, ranks); ++t) {
        wrong += wrong_words(target.local(returned + t * plan.stride), Pattern(me, serial + t), plan.bytes);
      }
      for (uint64_t k = 0; k < count; ++k) {
        wrong += wrong_words(target.local(place + (uint64_t(from) * tokens + k) * plan.stride),
                             Pattern(from, serial + mine + k), plan.bytes);
      }
    }
    __syncthreads();
  }
  report_wrong(out, wrong);
}
