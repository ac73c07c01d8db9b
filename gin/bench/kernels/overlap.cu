// How much computation a transfer leaves. Each iteration of the leader, rank 0 or 1, has three timed parts: a put with a
// signal until the other rank has answered it; a computation alone; and both, the computation between the put and the
// waiting.
namespace bench {

// A chain of dependent steps that the compiler cannot shorten.
GIN_DEVICE uint64_t compute(uint64_t steps, uint64_t seed) {
  uint64_t x = seed | 1;
  for (uint64_t i = 0; i < steps; ++i) x = (x ^ (x >> 29)) * 0xbf58476d1ce4e5b9ull;
  return x;
}

}  // namespace bench

extern "C" __global__ void __launch_bounds__(BENCH_THREADS, 1)
    BENCH_KERNEL(gin::Comm comm, gin::Window source, gin::Window target, gin::Window out, bench::Plan plan) {
  using namespace bench;
  const Channel channel(plan);
  gin::Context net(comm, channel.context);
  if (net.rank() > 1) return;
  const uint32_t peer = 1 - net.rank(), transfers = 2;
  const bool leads = net.rank() == plan.leader;
  const uint64_t place = plan.place[0] + blockIdx.x * plan.stride;
  const uint64_t data_before = net.epoch(channel.data), ready_before = net.epoch(channel.ready),
                 done_before = net.epoch(channel.done);
  const uint64_t serial = plan.serial + uint64_t(blockIdx.x) * plan.rounds() * transfers;
  uint64_t wrong = 0, residue = 0;
  __syncthreads();

  for (uint32_t round = 0; round < transfers * plan.rounds(); ++round) {
    const bool both = round % transfers == 1;
    if (leads && plan.verify) fill(source.local(place), Pattern(plan.leader, serial + round), plan.bytes);
    __syncthreads();
    bool failed = false;
    if (leads) {
      if (threadIdx.x == 0) failed = !net.wait(gin::thread, channel.ready, ready_before + round + 1).ok();
      if (__syncthreads_or(failed)) break;
      const uint64_t start = now();
      if (group() == 0) {
        net.put(Coop{}, peer, target, place, source, place, plan.bytes, gin::signal_inc{channel.data});
      }
      if (both) residue ^= compute(plan.work, round + threadIdx.x);
      failed = !net.wait(gin::block, channel.done, done_before + round + 1).ok();
      if (threadIdx.x == 0) keep(out, plan, round / transfers, start, now(), both ? 2 : 0, 3);
      if (!both) {
        __syncthreads();
        const uint64_t before = now();
        residue ^= compute(plan.work, round + threadIdx.x);
        __syncthreads();
        if (threadIdx.x == 0) keep(out, plan, round / transfers, before, now(), 1, 3);
      }
      if (group() == 0) failed = failed || !net.flush(Coop{}).ok();
    } else if (threadIdx.x == 0) {
      net.signal(peer, gin::signal_inc{channel.ready});
      failed = !net.wait(gin::thread, channel.data, data_before + round + 1).ok();
      net.signal(peer, gin::signal_inc{channel.done});
    }
    if (__syncthreads_or(failed)) break;
    if (!leads && plan.verify) wrong += wrong_words(target.local(place), Pattern(peer, serial + round), plan.bytes);
    __syncthreads();
  }
  // Never true; without it the computation would be left out.
  if (residue == 0x9e3779b97f4a7c15ull && plan.rounds() == ~0u) wrong += 1;
  report_wrong(out, wrong);
}
