// Barriers of all ranks, one after the other, on one index per block. Every rank times each from its entering to its leaving.
extern "C" __global__ void __launch_bounds__(BENCH_THREADS, 1)
    BENCH_KERNEL(gin::Comm comm, gin::Window source, gin::Window target, gin::Window out, bench::Plan plan) {
  using namespace bench;
  gin::Context net(comm, blockIdx.x % plan.contexts);
  if (group() != 0) return;
  for (uint32_t round = 0; round < plan.rounds(); ++round) {
    const uint64_t start = now();
    if (!net.barrier(Coop{}, gin::world, blockIdx.x / plan.contexts, false).ok()) break;
    if (threadIdx.x == 0) keep(out, plan, round, start, now());
  }
}
