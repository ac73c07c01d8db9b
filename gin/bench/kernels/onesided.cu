// The leader, rank 0 or 1, works on the other's memory alone; that one only prepares and verifies. Timed on the leader from
// the call until it has completed: locally (put_flush), at the target (put_quiet), or with what it brings back (get, atomic).
extern "C" __global__ void __launch_bounds__(BENCH_THREADS, 1)
    BENCH_KERNEL(gin::Comm comm, gin::Window source, gin::Window target, gin::Window out, bench::Plan plan) {
  using namespace bench;
  const Channel channel(plan);
  gin::Context net(comm, channel.context);
  if (net.rank() > 1) return;
  const uint32_t peer = 1 - net.rank();
  const bool leads = net.rank() == plan.leader;
  const uint64_t first = plan.place[0] + uint64_t(blockIdx.x) * plan.messages * plan.stride;
  const uint64_t ready_before = net.epoch(channel.ready), done_before = net.epoch(channel.done);
  const uint64_t serial = plan.serial + uint64_t(blockIdx.x) * plan.rounds() * plan.messages;
#if defined(BENCH_OP_get)
  const bool fills = !leads, reads = leads;
  const uint32_t sender = peer;
#elif defined(BENCH_OP_atomic)
  const bool fills = false, reads = false;
  const uint32_t sender = 0;
  uint64_t expected = 0;
#else
  const bool fills = leads, reads = !leads;
  const uint32_t sender = plan.leader;
#endif
  uint64_t wrong = 0;
  __syncthreads();

  for (uint32_t round = 0; round < plan.rounds(); ++round) {
    const uint64_t serial_now = serial + uint64_t(round) * plan.messages;
    for (uint32_t m = 0; fills && plan.verify && m < plan.messages; ++m) {
      fill(source.local(first + m * plan.stride), Pattern(net.rank(), serial_now + m), plan.bytes);
    }
    __syncthreads();
    bool failed = false;
    if (!leads && threadIdx.x == 0) net.signal(peer, gin::signal_inc{channel.ready});
    if (leads) {
      if (threadIdx.x == 0) {
        failed = !net.wait(gin::thread, channel.ready, ready_before + round + 1).ok() || !together(comm, out, round);
      }
      if (__syncthreads_or(failed)) break;
      const uint64_t start = now();
      for (uint32_t m = group(); m < plan.messages; m += groups()) {
        const uint64_t place = first + m * plan.stride;
#if defined(BENCH_OP_get)
        net.get(Coop{}, peer, source, place, target, place, plan.bytes);
#elif defined(BENCH_OP_atomic)
        if (threadIdx.x == 0) {
          const uint64_t old = net.atomic_fetch_add(peer, target, place, uint64_t(1));
          wrong += plan.verify && round > 0 && old != expected;
          expected = old + 1;
        }
#else
        net.put(Coop{}, peer, target, place, source, place, plan.bytes);
#endif
      }
      if (plan.messages > 1) __syncthreads();
#if defined(BENCH_OP_put_quiet)
      if (group() == 0) failed = !net.quiet(Coop{}).ok();
#elif !defined(BENCH_OP_atomic)
      if (group() == 0) failed = !net.flush(Coop{}).ok();
#endif
      if (threadIdx.x == 0) {
        keep(out, plan, round, start, now());
        net.signal(peer, gin::ordered(gin::signal_inc{channel.done}));
      }
    } else if (threadIdx.x == 0) {
      failed = !net.wait(gin::thread, channel.done, done_before + round + 1).ok();
    }
    if (__syncthreads_or(failed)) break;
    for (uint32_t m = 0; reads && plan.verify && m < plan.messages; ++m) {
      wrong += wrong_words(target.local(first + m * plan.stride), Pattern(sender, serial_now + m), plan.bytes);
    }
    __syncthreads();
  }
  report_wrong(out, wrong);
}
