// CUDA's vector types and their make_ functions, with CUDA's sizes and alignments.
#pragma once

// The vector of n elements is aligned to its size up to 16 bytes when n is 1, 2 or 4, and to one element when n is 3.
#define GIN_HOST_VECTOR(name, type, size)                                                \
  struct name##1 { type x; };                                                            \
  struct alignas(2 * size) name##2 { type x, y; };                                       \
  struct name##3 { type x, y, z; };                                                      \
  struct alignas(4 * size > 16 ? 16 : 4 * size) name##4 { type x, y, z, w; };            \
  constexpr name##1 make_##name##1(type x) { return name##1 {x}; }                       \
  constexpr name##2 make_##name##2(type x, type y) { return name##2 {x, y}; }            \
  constexpr name##3 make_##name##3(type x, type y, type z) { return name##3 {x, y, z}; } \
  constexpr name##4 make_##name##4(type x, type y, type z, type w) { return name##4 {x, y, z, w}; }

GIN_HOST_VECTOR(char, signed char, 1)
GIN_HOST_VECTOR(uchar, unsigned char, 1)
GIN_HOST_VECTOR(short, short, 2)
GIN_HOST_VECTOR(ushort, unsigned short, 2)
GIN_HOST_VECTOR(int, int, 4)
GIN_HOST_VECTOR(uint, unsigned int, 4)
GIN_HOST_VECTOR(long, long int, 8)
GIN_HOST_VECTOR(ulong, unsigned long int, 8)
GIN_HOST_VECTOR(longlong, long long int, 8)
GIN_HOST_VECTOR(ulonglong, unsigned long long int, 8)
GIN_HOST_VECTOR(float, float, 4)
GIN_HOST_VECTOR(double, double, 8)

#undef GIN_HOST_VECTOR

struct dim3 {
  unsigned int x, y, z;
  constexpr dim3(unsigned int x = 1, unsigned int y = 1, unsigned int z = 1) : x(x), y(y), z(z) {}
  constexpr dim3(uint3 v) : x(v.x), y(v.y), z(v.z) {}
  constexpr operator uint3() const { return uint3{x, y, z}; }
};
