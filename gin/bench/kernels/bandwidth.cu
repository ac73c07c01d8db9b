// Rank 0 keeps `messages` puts in flight, each with a signal, and stops its clock when rank 1 has answered that all
// arrived.
extern "C" __global__ void __launch_bounds__(1024)
    bandwidth(gin::Comm comm, gin::Window source, gin::Window target, gin::Window out, uint64_t bytes, uint64_t stride,
              uint64_t serial, uint32_t messages, uint32_t warmup, uint32_t iterations, uint32_t verify) {
  bench::stream<true>(comm, source, target, out, {bytes, stride, serial, messages, warmup, iterations, verify != 0});
}
