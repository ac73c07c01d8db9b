// Every rank puts one message with a signal to every rank, itself included, and waits for those of all ranks. Blocks
// share out the peers; block b sends to the ranks at distance b, b + grid, ... and waits for the ranks that send to it.
// Timed on every rank from the barrier before to the last arrival.
extern "C" __global__ void __launch_bounds__(BENCH_THREADS, 1)
    BENCH_KERNEL(gin::Comm comm, gin::Window source, gin::Window target, gin::Window out, bench::Plan plan) {
  using namespace bench;
  const Channel channel(plan);
  gin::Context net(comm, channel.context);
  const uint32_t me = net.rank(), ranks = net.size();
  const uint32_t barrier = blockIdx.x / plan.contexts;
  const uint64_t place = plan.place[0];
  const uint64_t data_before = net.epoch(channel.data);
  const uint32_t distances = blockIdx.x < ranks ? (ranks - blockIdx.x + gridDim.x - 1) / gridDim.x : 0;
  uint64_t wrong = 0;
  __syncthreads();

  for (uint32_t round = 0; round < plan.rounds(); ++round) {
    const uint64_t serial_now = plan.serial + uint64_t(round) * ranks;
    if (plan.verify) {
      for (uint32_t i = 0; i < distances; ++i) {
        const uint32_t to = (me + blockIdx.x + i * gridDim.x) % ranks;
        fill(source.local(place + to * plan.stride), Pattern(me, serial_now + to), plan.bytes);
      }
    }
    __syncthreads();
    bool failed = !net.barrier(gin::block, gin::world, barrier, false).ok();
    if (threadIdx.x == 0) failed = failed || !together(comm, out, round);
    if (__syncthreads_or(failed)) break;
    const uint64_t start = now();
    for (uint32_t i = group(); i < distances && !failed; i += groups()) {
      const uint32_t to = (me + blockIdx.x + i * gridDim.x) % ranks;
      net.put(Coop{}, to, target, place + me * plan.stride, source, place + to * plan.stride, plan.bytes,
              gin::signal_inc{channel.data});
    }
    failed = failed || !net.wait(gin::block, channel.data, data_before + uint64_t(round + 1) * distances).ok();
    if (threadIdx.x == 0) keep(out, plan, round, start, now());
    failed = failed || !net.flush(gin::block).ok();
    if (__syncthreads_or(failed)) break;
    if (plan.verify) {
      for (uint32_t i = 0; i < distances; ++i) {
        const uint32_t from = (me + ranks - (blockIdx.x + i * gridDim.x) % ranks) % ranks;
        wrong += wrong_words(target.local(place + from * plan.stride), Pattern(from, serial_now + me), plan.bytes);
      }
    }
    __syncthreads();
  }
  report_wrong(out, wrong);
}
