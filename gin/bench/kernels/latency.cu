// Ping-pong between rank 0 and rank 1: rank 0 puts with a signal, rank 1 waits for it and puts back. Timed on rank 0
// from its put until the answer's signal; filling, verifying and the hand-over between iterations are outside.
extern "C" __global__ void __launch_bounds__(1024)
    latency(gin::Comm comm, gin::Window source, gin::Window target, gin::Window out, uint64_t bytes, uint64_t stride,
            uint64_t serial, uint32_t messages, uint32_t warmup, uint32_t iterations, uint32_t verify) {
  using namespace bench;
  const Plan plan{bytes, stride, serial, messages, warmup, iterations, verify != 0};
  const Channel channel(comm);
  gin::Context net(comm, channel.context);
  if (net.rank() > 1) return;
  const uint32_t peer = 1 - net.rank();
  const bool first = net.rank() == 0;
  const bool active = group() == 0;
  const uint64_t place = blockIdx.x * plan.stride;
  const uint64_t data_before = net.epoch(channel.data), ready_before = net.epoch(channel.ready);
  const uint64_t block_serial = plan.serial + uint64_t(blockIdx.x) * plan.rounds();
  uint64_t wrong = 0;
  __syncthreads();

  for (uint32_t round = 0; round < plan.rounds(); ++round) {
    if (plan.verify) fill(source.local(place), Pattern(net.rank(), block_serial + round), plan.bytes);
    __syncthreads();
    bool failed = false;
    if (active) {
      uint64_t start = 0;
      if (first) {
        failed = !net.wait(Coop{}, channel.ready, ready_before + round + 1).ok();
        start = now();
        net.put(Coop{}, peer, target, place, source, place, plan.bytes, gin::signal_inc{channel.data});
        failed = failed || !net.wait(Coop{}, channel.data, data_before + round + 1).ok();
        if (threadIdx.x == 0) keep(out, plan, round, start, now());
      } else {
        if (threadIdx.x == 0) net.signal(peer, gin::signal_inc{channel.ready});
        failed = !net.wait(Coop{}, channel.data, data_before + round + 1).ok();
        net.put(Coop{}, peer, target, place, source, place, plan.bytes, gin::signal_inc{channel.data});
      }
      failed = failed || !net.flush(Coop{}).ok();
    }
    if (__syncthreads_or(failed)) break;
    if (plan.verify) wrong += wrong_words(target.local(place), Pattern(peer, block_serial + round), plan.bytes);
    __syncthreads();
  }
  report_wrong(out, wrong);
}
