// Rank 0 puts `messages` messages without a signal, then one ordered signal that covers them all, and stops its clock
// when rank 1 has answered it.
extern "C" __global__ void __launch_bounds__(1024)
    rate(gin::Comm comm, gin::Window source, gin::Window target, gin::Window out, uint64_t bytes, uint64_t stride,
         uint64_t serial, uint32_t messages, uint32_t warmup, uint32_t iterations, uint32_t verify) {
  bench::stream<false>(comm, source, target, out, {bytes, stride, serial, messages, warmup, iterations, verify != 0});
}
