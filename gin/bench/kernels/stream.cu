// Each iteration the sender puts `messages` messages to the other of ranks 0 and 1, and ends when that one has said that
// all of them arrived. With put_signal every message carries a signal; with put one ordered signal follows the last. The
// leader sends; with put_signal_bidir both ranks do, at the same time, and both take times.
extern "C" __global__ void __launch_bounds__(BENCH_THREADS, 1)
    BENCH_KERNEL(gin::Comm comm, gin::Window source, gin::Window target, gin::Window out, bench::Plan plan) {
  using namespace bench;
  const Channel channel(plan);
  const Net net(comm, channel.context);
  if (net.rank() > 1) return;
  const uint32_t peer = 1 - net.rank();
#if defined(BENCH_OP_put_signal_bidir)
  const bool sends = true, receives = true;
#else
  const bool sends = net.rank() == plan.leader, receives = !sends;
#endif
#if defined(BENCH_OP_put)
  const uint64_t arrivals = 1;
#else
  const uint64_t arrivals = plan.messages;
#endif
  const uint64_t first = plan.place[0] + uint64_t(blockIdx.x) * plan.messages * plan.stride;
  const uint64_t data_before = net.epoch(channel.data), ready_before = net.epoch(channel.ready),
                 done_before = net.epoch(channel.done);
  const uint64_t serial = plan.serial + uint64_t(blockIdx.x) * plan.rounds() * plan.messages;
  uint64_t wrong = 0;
  bool failed = false;
  __syncthreads();

  for (uint32_t round = 0; round < plan.rounds(); ++round) {
    const uint64_t serial_now = serial + uint64_t(round) * plan.messages;
    for (uint32_t m = 0; sends && plan.verify && m < plan.messages; ++m) {
      fill(source.local(first + m * plan.stride), Pattern(net.rank(), serial_now + m), plan.bytes);
    }
    __syncthreads();
    uint64_t start = 0;
    if (threadIdx.x == 0) {
      if (receives) net.signal(peer, gin::signal_inc{channel.ready});
      if (sends) {
        failed = !net.wait(gin::thread, channel.ready, ready_before + round + 1).ok() || !together(comm, out, round);
      }
      start = now();
    }
    if (__syncthreads_or(failed)) break;
    for (uint32_t m = group(); sends && m < plan.messages; m += groups()) {
      const uint64_t offset = first + m * plan.stride;
#if defined(BENCH_OP_put)
      net.put(Coop{}, peer, target, offset, source, offset, plan.bytes);
#else
      net.put(Coop{}, peer, target, offset, source, offset, plan.bytes, gin::signal_inc{channel.data});
#endif
    }
#if defined(BENCH_OP_put)
    __syncthreads();
    if (sends && threadIdx.x == 0) net.signal(peer, gin::ordered(gin::signal_inc{channel.data}));
#endif
    if (threadIdx.x == 0) {
      if (receives) {
        failed = !net.wait(gin::thread, channel.data, data_before + (round + 1) * arrivals).ok();
        net.signal(peer, gin::signal_inc{channel.done});
      }
      if (sends) {
        failed = failed || !net.wait(gin::thread, channel.done, done_before + round + 1).ok();
        keep(out, plan, round, start, now());
        failed = failed || !net.flush(gin::thread).ok();
      }
    }
    if (__syncthreads_or(failed)) break;
    for (uint32_t m = 0; receives && plan.verify && m < plan.messages; ++m) {
      wrong += wrong_words(target.local(first + m * plan.stride), Pattern(peer, serial_now + m), plan.bytes);
    }
    __syncthreads();
  }
  report_wrong(out, wrong);
  if (threadIdx.x == 0) {
    if (receives) caught_up(net, channel.data, data_before + plan.rounds() * arrivals);
    if (sends) caught_up(net, channel.ready, ready_before + plan.rounds());
    if (sends) caught_up(net, channel.done, done_before + plan.rounds());
  }
}
