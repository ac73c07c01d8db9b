// Ping-pong between ranks 0 and 1: the leader sends with a signal, the other waits for it and sends back. Timed on the
// leader from its sending until the answer's signal; filling, verifying and the hand-over between iterations are outside.
namespace bench {

template <class Send>
GIN_DEVICE void pingpong(const Net& net, const gin::Window& source, const gin::Window& target, const gin::Window& out,
                         const Plan& plan, Send send) {
  if (net.rank() > 1) return;
  const uint32_t peer = 1 - net.rank();
  const bool first = net.rank() == plan.leader;
  const bool active = group() == 0;
  const Channel here(plan, net.rank()), there(plan, peer);
  const uint64_t offset = blockIdx.x * plan.stride;
  const uint64_t mine = plan.place_of(net.rank()) + offset, theirs = plan.place_of(peer) + offset;
  const uint64_t data_before = net.epoch(here.data), ready_before = net.epoch(here.ready);
  const uint64_t block_serial = plan.serial + uint64_t(blockIdx.x) * plan.rounds();
  uint64_t wrong = 0;
  __syncthreads();

  for (uint32_t round = 0; round < plan.rounds(); ++round) {
    if (plan.verify) fill(source.local(mine), Pattern(net.rank(), block_serial + round), plan.bytes);
    __syncthreads();
    bool failed = false;
    if (active) {
      if (first) {
        failed = !net.wait(Coop{}, here.ready, ready_before + round + 1).ok();
        const uint64_t start = now();
        send(peer, theirs, mine, there.data);
        failed = failed || !net.wait(Coop{}, here.data, data_before + round + 1).ok();
        if (threadIdx.x == 0) keep(out, plan, round, start, now());
      } else {
        if (threadIdx.x == 0) net.signal(peer, gin::signal_inc{there.ready});
        failed = !net.wait(Coop{}, here.data, data_before + round + 1).ok();
        send(peer, theirs, mine, there.data);
      }
      failed = failed || !net.flush(Coop{}).ok();
    }
    if (__syncthreads_or(failed)) break;
    if (plan.verify) wrong += wrong_words(target.local(mine), Pattern(peer, block_serial + round), plan.bytes);
    __syncthreads();
  }
  report_wrong(out, wrong);
  if (threadIdx.x == 0) {
    caught_up(net, here.data, data_before + plan.rounds());
    if (first) caught_up(net, here.ready, ready_before + plan.rounds());
  }
}

}  // namespace bench

extern "C" __global__ void __launch_bounds__(BENCH_THREADS, 1)
    BENCH_KERNEL(gin::Comm comm, gin::Window source, gin::Window target, gin::Window out, bench::Plan plan) {
  const bench::Net net(comm, bench::Channel(plan).context);
  bench::pingpong(net, source, target, out, plan, [&](uint32_t peer, uint64_t to, uint64_t from, uint32_t signal) {
#if defined(BENCH_OP_put_value)
    if (threadIdx.x == 0) {
      const uint64_t value = *static_cast<const uint64_t*>(source.local(from));
      net.put_value(peer, target, to, value, gin::signal_inc{signal});
    }
#else
    net.put(bench::Coop{}, peer, target, to, source, from, plan.bytes, gin::signal_inc{signal});
#endif
  });
}
