// Readings of the clock that the other kernels use, one straight after the other.
extern "C" __global__ void BENCH_KERNEL(gin::Comm comm, gin::Window source, gin::Window target, gin::Window out,
                                        bench::Plan plan) {
  if (blockIdx.x != 0 || threadIdx.x != 0) return;
  for (uint32_t round = 0; round < plan.rounds(); ++round) {
    const uint64_t start = bench::now();
    bench::keep(out, plan, round, start, bench::now());
  }
}
