// What kernels may use on the host platform gives CUDA's results: indices, barriers, warps, shared memory, atomics.
#include <numeric>

#include "check.h"
#include "host_kernel.h"

using namespace host_test;

CASE(indices_of_all_threads) {
  auto k = compile(R"(
    extern "C" __global__ void k(unsigned* seen, unsigned* wrong) {
      unsigned rank = threadIdx.x + blockDim.x * (threadIdx.y + blockDim.y * threadIdx.z);
      unsigned block = blockIdx.x + gridDim.x * (blockIdx.y + gridDim.y * blockIdx.z);
      unsigned threads = blockDim.x * blockDim.y * blockDim.z;
      seen[block * threads + rank] += 1;
      if (threadIdx.x >= blockDim.x || threadIdx.y >= blockDim.y || threadIdx.z >= blockDim.z) *wrong += 1;
      if (__lane_id() != rank % warpSize) *wrong += 1;
      dim3 copy = blockDim;
      uint3 t = threadIdx;
      if (copy.y != blockDim.y || t.z != threadIdx.z) *wrong += 1;
    })");
  const Shape shapes[] = {{{1, 1, 1}, {1, 1, 1}},   {{1, 1, 1}, {1024, 1, 1}}, {{7, 1, 1}, {33, 1, 1}},
                          {{2, 3, 4}, {4, 3, 2}},   {{1, 5, 1}, {1, 31, 5}},   {{1, 1, 2}, {2, 8, 64}},
                          {{1000, 1, 1}, {3, 1, 1}}};
  for (const Shape& s : shapes) {
    uint32_t blocks = s.grid.x * s.grid.y * s.grid.z, threads = s.block.x * s.block.y * s.block.z;
    std::vector<unsigned> seen(blocks * threads);
    unsigned wrong = 0;
    run(k, s, seen.data(), &wrong);
    CHECK_EQ(wrong, 0u);
    CHECK(seen == std::vector<unsigned>(blocks * threads, 1));
  }
}

CASE(block_sum_through_shared_memory_and_shuffles) {
  auto k = compile(R"(
    template <class T> __device__ T warp_sum(T v) {
      for (int o = 16; o; o /= 2) v += __shfl_down_sync(0xffffffffu, v, o);
      return v;
    }
    template <class T> __global__ void sum(const T* in, T* out, int n) {
      __shared__ T partial[32];
      int i = blockIdx.x * blockDim.x + threadIdx.x;
      T v = warp_sum(i < n ? in[i] : T(0));
      if (threadIdx.x % 32 == 0) partial[threadIdx.x / 32] = v;
      __syncthreads();
      if (threadIdx.x < 32) {
        v = warp_sum(threadIdx.x < blockDim.x / 32 ? partial[threadIdx.x] : T(0));
        if (threadIdx.x == 0) atomicAdd(out, v);
      }
    })",
                   "sum<double>");
  std::vector<double> in(5000);
  std::iota(in.begin(), in.end(), 1.0);
  double out = 0;
  run(k, {{20, 1, 1}, {256, 1, 1}}, in.data(), &out, 5000);
  CHECK_EQ(out, 5000.0 * 5001 / 2);
}

CASE(dynamic_shared_memory_has_many_names) {
  auto k = compile(R"(
    extern __shared__ __align__(16) float at_file[];
    namespace inner {
      template <class T> __device__ T first() { extern __shared__ T typed[]; return typed[0]; }
    }
    __device__ int reverse(int n) {
      extern __shared__ __align__(1024) unsigned char raw[];
      int* words = reinterpret_cast<int*>(raw);
      return words[n - 1 - threadIdx.x];
    }
    extern "C" __global__ void k(int* out, unsigned* aligned) {
      __shared__ int before[3];
      before[threadIdx.x % 3] = -1;
      extern __shared__ int values[];
      values[threadIdx.x] = blockIdx.x * 1000 + threadIdx.x;
      __syncthreads();
      out[blockIdx.x * blockDim.x + threadIdx.x] = reverse(blockDim.x);
      if (threadIdx.x == 0) {
        aligned[blockIdx.x] = reinterpret_cast<uintptr_t>(values) % 1024 == 0 &&
                              reinterpret_cast<float*>(values) == at_file &&
                              inner::first<int>() == int(blockIdx.x) * 1000 && before[2] == -1;
      }
    })",
                   "k", {"at_file", "raw", "values", "_ZN5inner5typedE"});
  constexpr int threads = 100, blocks = 9;
  std::vector<int> out(threads * blocks);
  std::vector<unsigned> aligned(blocks);
  run(k, {{blocks, 1, 1}, {threads, 1, 1}, threads * 4}, out.data(), aligned.data());
  for (int b = 0; b < blocks; ++b) {
    CHECK_EQ(aligned[b], 1u);
    for (int t = 0; t < threads; ++t) CHECK_EQ(out[b * threads + t], b * 1000 + threads - 1 - t);
  }
}

CASE(shared_memory_of_blocks_is_separate_and_starts_undefined) {
  auto k = compile(R"(
    __shared__ unsigned at_file;
    extern __shared__ unsigned char d[];
    extern "C" __global__ void k(unsigned* wrong, int shared) {
      __shared__ unsigned tile[64];
      if (threadIdx.x == 0) {
        for (unsigned v : tile) if (v != 0xcdcdcdcdu) *wrong += 1;
        for (int i = 0; i < shared; ++i) if (d[i] != 0xcd) *wrong += 1;
        if (at_file != 0xcdcdcdcdu) *wrong += 1;
      }
      __syncthreads();
      tile[threadIdx.x] = blockIdx.x;
      d[threadIdx.x] = blockIdx.x;
      if (threadIdx.x == 1) at_file = blockIdx.x;
      for (int i = 0; i < 5; ++i) {
        gin::host::yield();
        __syncthreads();
        if (tile[63 - threadIdx.x] != blockIdx.x || d[threadIdx.x] != blockIdx.x || at_file != blockIdx.x) *wrong += 1;
      }
    })",
                   "k", {"d"});
  unsigned wrong = 0;
  run(k, {{12, 1, 1}, {64, 1, 1}, 300}, &wrong, 300);
  run(k, {{3, 1, 1}, {64, 1, 1}, 100000}, &wrong, 100000);
  CHECK_EQ(wrong, 0u);
}

CASE(barriers_that_count) {
  auto k = compile(R"(
    extern "C" __global__ void k(unsigned* wrong) {
      int n = blockDim.x;
      for (int i = 0; i < 20; ++i) {
        if (__syncthreads_count(int(threadIdx.x) < i ? 7 : 0) != min(i, n)) *wrong += 1;
        if (__syncthreads_and(threadIdx.x != 3) != (n <= 3)) *wrong += 1;
        if (__syncthreads_and(1) != 1) *wrong += 1;
        if (__syncthreads_or(threadIdx.x == 3) != (n > 3)) *wrong += 1;
        if (__syncthreads_or(0) != 0) *wrong += 1;
      }
    })");
  unsigned wrong = 0;
  for (uint32_t n : {1u, 2u, 3u, 4u, 33u, 1024u}) run(k, {{2, 1, 1}, {n, 1, 1}}, &wrong);
  CHECK_EQ(wrong, 0u);
}

CASE(shuffles_of_all_types_and_widths) {
  auto k = compile(R"(
    template <class T> __device__ void one(unsigned* wrong) {
      int lane = threadIdx.x % 32;
      auto of = [](int l) { return T(l) * T(3) + T(1); };
      for (int width = 1; width <= 32; width *= 2) {
        int base = lane & ~(width - 1), in = lane & (width - 1);
        for (int d = 0; d < 32; ++d) {
          if (__shfl_sync(~0u, of(lane), d, width) != of(base + d % width)) *wrong += 1;
          if (__shfl_up_sync(~0u, of(lane), d, width) != of(in - d < 0 ? lane : lane - d)) *wrong += 1;
          if (__shfl_down_sync(~0u, of(lane), d, width) != of(in + d >= width ? lane : lane + d)) *wrong += 1;
          int x = lane ^ d;
          if (__shfl_xor_sync(~0u, of(lane), d, width) != of(x >= base + width ? lane : x)) *wrong += 1;
        }
      }
    }
    extern "C" __global__ void k(unsigned* wrong) {
      one<int>(wrong); one<unsigned>(wrong); one<long>(wrong); one<unsigned long>(wrong);
      one<long long>(wrong); one<unsigned long long>(wrong); one<float>(wrong); one<double>(wrong);
    })");
  unsigned wrong = 0;
  run(k, {{1, 1, 1}, {64, 1, 1}}, &wrong);
  CHECK_EQ(wrong, 0u);
}

CASE(votes_matches_and_reductions) {
  auto k = compile(R"(
    extern "C" __global__ void k(unsigned* wrong) {
      unsigned lane = threadIdx.x % 32;
      #define EXPECT(a, b) if ((a) != (b)) { *wrong += 1; printf("line %d: %lld, not %lld\n", __LINE__, (long long)(a), (long long)(b)); }
      EXPECT(__ballot_sync(~0u, lane % 2), 0xaaaaaaaau);
      EXPECT(__any_sync(~0u, lane == 31), 1);
      EXPECT(__any_sync(~0u, 0), 0);
      EXPECT(__all_sync(~0u, lane < 32), 1);
      EXPECT(__all_sync(~0u, lane < 31), 0);
      EXPECT(__match_any_sync(~0u, lane % 4), 0x11111111u << lane % 4);
      EXPECT(__match_any_sync(~0u, double(lane / 16)), lane < 16 ? 0xffffu : 0xffff0000u);
      int same = -1;
      EXPECT(__match_all_sync(~0u, 5ll, &same), ~0u);
      EXPECT(same, 1);
      EXPECT(__match_all_sync(~0u, lane, &same), 0u);
      EXPECT(same, 0);
      EXPECT(__reduce_add_sync(~0u, lane), 496u);
      EXPECT(__reduce_add_sync(~0u, -int(lane)), -496);
      EXPECT(__reduce_min_sync(~0u, int(lane) - 5), -5);
      EXPECT(__reduce_max_sync(~0u, int(lane) - 50), -19);
      EXPECT(__reduce_min_sync(~0u, unsigned(int(lane) - 5)), 0u);
      EXPECT(__reduce_max_sync(~0u, unsigned(int(lane) - 5)), 0xffffffffu);
      EXPECT(__reduce_and_sync(~0u, 0xf0u | lane), 0xf0u);
      EXPECT(__reduce_or_sync(~0u, 1u << lane), ~0u);
      EXPECT(__reduce_xor_sync(~0u, 1u << lane / 2), 0u);
      EXPECT(__activemask(), 1u << lane);
      // halves of a warp, each on its own, at their own pace
      unsigned half = lane < 16 ? 0xffffu : 0xffff0000u;
      for (unsigned i = 0; i < (lane < 16 ? 50u : 10u); ++i) {
        EXPECT(__reduce_add_sync(half, lane + i), (lane < 16 ? 120u : 376u) + 16 * i);
        if (lane % 3 == 0) gin::host::yield();
      }
      __syncwarp();
      // masks that overlap, one after the other
      if (lane < 2) __syncwarp(0x3);
      if (lane == 0 || lane == 2) __syncwarp(0x5);
      if (lane < 3) EXPECT(__ballot_sync(0x7, 1), 7u);
    })");
  unsigned wrong = 0;
  run(k, {{3, 1, 1}, {96, 1, 1}}, &wrong);
  CHECK_EQ(wrong, 0u);
}

CASE(partial_warps_and_ended_lanes_are_not_waited_for) {
  auto k = compile(R"(
    extern "C" __global__ void k(unsigned* wrong) {
      unsigned lane = threadIdx.x % 32, warp = threadIdx.x / 32;
      unsigned lanes = min(32u, blockDim.x - 32 * warp);
      unsigned all = lanes == 32 ? ~0u : (1u << lanes) - 1;
      if (__ballot_sync(~0u, 1) != all) *wrong += 1;
      if (__reduce_add_sync(~0u, 1u) != lanes) *wrong += 1;
      if (lane % 2) return;
      __syncwarp();
      if (__ballot_sync(~0u, 1) != (all & 0x55555555u)) *wrong += 1;
      gin::host::yield();
      if (lane == 0) return;
      if (__ballot_sync(~0u, 1) != (all & 0x55555554u)) *wrong += 1;
    })");
  unsigned wrong = 0;
  for (uint32_t n : {1u, 2u, 31u, 32u, 33u, 95u, 1000u}) run(k, {{2, 1, 1}, {n, 1, 1}}, &wrong);
  CHECK_EQ(wrong, 0u);
}

CASE(atomics) {
  auto k = compile(R"(
    struct Words { int i; unsigned u, inc, dec, and_, or_, xor_; unsigned long long l, cas; float f; double d; int lo, hi; };
    extern "C" __global__ void k(Words* w) {
      int t = blockIdx.x * blockDim.x + threadIdx.x;
      atomicAdd(&w->i, -1); atomicSub(&w->u, 2u); atomicInc(&w->inc, 9u); atomicDec(&w->dec, 9u);
      atomicAnd_system(&w->and_, ~(1u << t % 32)); atomicOr(&w->or_, 1u << t % 32); atomicXor_block(&w->xor_, 1u);
      atomicAdd_system(&w->l, 1ull << 40); atomicAdd(&w->f, 0.5f); atomicAdd(&w->d, 0.25);
      atomicMin(&w->lo, -t); atomicMax(&w->hi, t);
      unsigned long long old = w->cas, seen;
      while ((seen = atomicCAS(&w->cas, old, old + 3)) != old) old = seen;
      if (t == 0) atomicExch(&w->xor_, 5u);
    })");
  struct Words {
    int i;
    unsigned u, inc, dec, and_, or_, xor_;
    unsigned long long l, cas;
    float f;
    double d;
    int lo, hi;
  } w{};
  w.and_ = ~0u;
  run(k, {{4, 1, 1}, {100, 1, 1}}, &w);
  CHECK_EQ(w.i, -400);
  CHECK_EQ(w.u, 0u - 800);
  CHECK_EQ(w.inc, 0u);
  CHECK_EQ(w.dec, 0u);
  CHECK_EQ(w.and_, 0u);
  CHECK_EQ(w.or_, ~0u);
  CHECK_EQ(w.l, 400ull << 40);
  CHECK_EQ(w.cas, 1200ull);
  CHECK_EQ(w.f, 200.0f);
  CHECK_EQ(w.d, 100.0);
  CHECK_EQ(w.lo, -399);
  CHECK_EQ(w.hi, 399);
}

CASE(spinning_on_an_atomic_gives_others_their_turn) {
  auto k = compile(R"(
    #include <cuda/atomic>
    extern "C" __global__ void k(int* flags, unsigned* order) {
      // every thread waits for the one after it, across blocks
      int t = blockIdx.x * blockDim.x + threadIdx.x, n = gridDim.x * blockDim.x;
      if (t + 1 < n) {
        if (t % 2) { while (atomicAdd(&flags[t + 1], 0) == 0) {} }
        else { while (cuda::atomic_ref<int, cuda::thread_scope_device>(flags[t + 1]).load(cuda::memory_order_acquire) == 0) {} }
      }
      order[atomicAdd(&flags[n], 1)] = t;
      cuda::atomic_ref<int, cuda::thread_scope_system>(flags[t]).store(1, cuda::memory_order_release);
    })");
  constexpr int n = 5 * 40;
  std::vector<int> flags(n + 1);
  std::vector<unsigned> order(n);
  run(k, {{5, 1, 1}, {40, 1, 1}}, flags.data(), order.data());
  for (int i = 0; i < n; ++i) CHECK_EQ(order[i], unsigned(n - 1 - i));
}

CASE(arguments_of_all_kinds) {
  auto k = compile(R"(
    enum class Color : short { red, green };
    struct alignas(32) Big { double v[4]; };
    extern "C" __global__ void k(const bool b, char c, unsigned char u, short s, Color e, float f, double d, int4 v,
                                 Big big, double* out, gin::host::Kind kind, unsigned long long l) {
      out[0] = b + c + u + s + int(e) + f + d + v.w + big.v[3] + unsigned(kind) + l;
    })");
  auto p = k->params();
  const Kind expected[] = {Kind::boolean,          char(-1) < char(0) ? Kind::signed_integer : Kind::unsigned_integer,
                           Kind::unsigned_integer, Kind::signed_integer,
                           Kind::signed_integer,   Kind::floating,
                           Kind::floating,         Kind::structure,
                           Kind::structure,        Kind::pointer,
                           Kind::unsigned_integer, Kind::unsigned_integer};
  REQUIRE(p.size() == std::size(expected));
  for (size_t i = 0; i < p.size(); ++i) CHECK(p[i].kind == expected[i]);
  CHECK_EQ(p[7].size, 16u);
  CHECK_EQ(p[8].align, 32u);
  struct Int4 {
    int x, y, z, w;
  } v{1, 2, 3, 4};
  struct Big {
    double v[4];
  } big{{1, 2, 3, 400}};
  double out = 0;
  run(k, {}, true, 'a', static_cast<unsigned char>(200), short(-5), short(1), 0.5f, 0.25, v, big, &out, 7u, 1000ull);
  CHECK_EQ(out, 1 + 97 + 200 - 5 + 1 + 0.75 + 4 + 400 + 7 + 1000);
  CHECK_CONTAINS(error_of([&] { run(k, {}, 1); }), "takes 12 arguments, not 1");
}

CASE(intrinsics_and_vector_types) {
  auto k = compile(R"(
    static_assert(sizeof(int3) == 12 && alignof(int3) == 4 && alignof(int4) == 16 && alignof(float2) == 8 &&
                  sizeof(uchar4) == 4 && alignof(uchar4) == 4 && alignof(longlong2) == 16 && alignof(double4) == 16 &&
                  sizeof(double4) == 32 && alignof(short3) == 2);
    __constant__ int table[4] = {1, 2, 3, 4};
    __device__ int counter;
    extern "C" __global__ void __launch_bounds__(32, 1) k(unsigned* wrong) {
      #define EXPECT(a, b) if ((a) != (b)) { *wrong += 1; printf("line %d\n", __LINE__); }
      EXPECT(__popc(0xf0f0u), 8); EXPECT(__popcll(~0ull), 64); EXPECT(__ffs(8), 4); EXPECT(__ffsll(0), 0);
      EXPECT(__clz(1), 31); EXPECT(__clz(0), 32); EXPECT(__clzll(-1), 0); EXPECT(__brev(1u), 0x80000000u);
      EXPECT(__brevll(2ull), 1ull << 62); EXPECT(__byte_perm(0x33221100u, 0x77665544u, 0x7250u), 0x77225500u);
      EXPECT(__funnelshift_l(0x80000000u, 1u, 1), 3u); EXPECT(__funnelshift_r(0u, 1u, 1), 0x80000000u);
      EXPECT(__umulhi(~0u, 2u), 1u); EXPECT(__mulhi(-1, 2), -1); EXPECT(__umul64hi(~0ull, 4ull), 3ull);
      EXPECT(__float_as_int(1.0f), 0x3f800000); EXPECT(__int_as_float(0x40000000), 2.0f);
      EXPECT(__double_as_longlong(0.0), 0ll); EXPECT(__float2int_rn(2.5f), 2); EXPECT(__float2int_ru(2.1f), 3);
      EXPECT(rsqrtf(4.0f), 0.5f); EXPECT(__fmaf_rn(2.f, 3.f, 1.f), 7.f); EXPECT(__expf(0.0f), 1.0f);
      EXPECT(min(3u, 4), 3u); EXPECT(max(-1, 1), 1); EXPECT(min(2.0f, 1.0f), 1.0f); EXPECT(max(1ll, 2ull), 2ull);
      EXPECT(sizeof(min(1, 2)), 4u); EXPECT(fabsf(-1.0f), 1.0f); EXPECT(abs(-2.5f), 2.5f);
      int4 v = make_int4(1, 2, 3, 4), w{};
      __stwt(&w, v); EXPECT(__ldcg(&w).z, 3); EXPECT(__ldg(&table[2]), 3); __stcg(&counter, 5); EXPECT(__ldcv(&counter), 5);
      long long a = clock64(); unsigned long long g = __globaltimer();
      __nanosleep(20000);
      EXPECT(clock64() > a, true); EXPECT(__globaltimer() >= g + 20000, true); EXPECT(clock() != 0, true);
      __threadfence(); __threadfence_block(); __threadfence_system();
      assert(counter == 5);
      EXPECT(gin::host::library() == wrong, true);
    })");
  unsigned wrong = 0;
  run(k, {{1, 1, 1}, {1, 1, 1}, 0, &wrong}, &wrong);
  CHECK_EQ(wrong, 0u);
}

CASE(cooperative_groups) {
  auto k = compile(R"(
    #include <cooperative_groups.h>
    #include <cooperative_groups/reduce.h>
    namespace cg = cooperative_groups;
    extern "C" __global__ void k(unsigned* wrong) {
      auto block = cg::this_thread_block();
      auto warp = cg::tiled_partition<32>(block);
      auto eight = cg::tiled_partition<8>(warp);
      unsigned rank = threadIdx.x + blockDim.x * threadIdx.y;
      if (block.thread_rank() != rank || block.size() != blockDim.x * blockDim.y) *wrong += 1;
      if (warp.thread_rank() != rank % 32 || eight.size() != 8 || eight.meta_group_rank() != rank / 8 % 4) *wrong += 1;
      if (warp.meta_group_size() != block.size() / 32) *wrong += 1;
      unsigned first = rank - rank % 8;
      if (eight.shfl(rank, 3) != first + 3) *wrong += 1;
      if (eight.shfl_down(rank, 2) != (rank % 8 < 6 ? rank + 2 : rank)) *wrong += 1;
      if (eight.ballot(rank % 2) != 0xaa || !eight.any(rank % 8 == 7) || eight.all(rank % 8 == 7)) *wrong += 1;
      if (cg::reduce(warp, rank % 32, cg::plus<unsigned>()) != 496) *wrong += 1;
      if (cg::reduce(eight, int(rank), cg::greater<int>()) != int(first) + 7) *wrong += 1;
      for (unsigned i = 0; i < eight.meta_group_rank(); ++i) eight.sync();
      cg::sync(warp);
      block.sync();
    })");
  unsigned wrong = 0;
  run(k, {{2, 1, 1}, {16, 8, 1}}, &wrong);
  CHECK_EQ(wrong, 0u);
}

CASE(more_threads_than_are_resident) {
  auto k = compile(R"(
    extern "C" __global__ void k(unsigned long long* sum) {
      __shared__ unsigned long long s;
      if (threadIdx.x == 0) s = 0;
      __syncthreads();
      atomicAdd(&s, 1ull);
      __syncthreads();
      if (threadIdx.x == 0) atomicAdd(sum, s);
    })");
  unsigned long long sum = 0;
  run(k, {{300, 1, 1}, {1024, 1, 1}}, &sum);
  CHECK_EQ(sum, 300ull * 1024);
}

CHECK_MAIN
