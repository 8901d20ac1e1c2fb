// CUDA C on the processor, for tests: the language that a kernel's text needs beside C++, so that g++ takes it.
#ifndef RENORM_HOST_CUDA_H
#define RENORM_HOST_CUDA_H

#include <math.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#define __global__
#define __device__
#define __host__
#define __constant__ static
#define __forceinline__ inline __attribute__((always_inline))
#define __launch_bounds__(...)
#define __align__(n) __attribute__((aligned(n)))

#define RENORM_VECTORS(T, name, quad)                                                                    \
  struct name##1 { T x; };                                                                               \
  struct __align__(2 * sizeof(T)) name##2 { T x, y; };                                                   \
  struct name##3 { T x, y, z; };                                                                         \
  struct __align__(quad) name##4 { T x, y, z, w; };                                                      \
  inline name##2 make_##name##2(T x, T y) { return {x, y}; }                                             \
  inline name##3 make_##name##3(T x, T y, T z) { return {x, y, z}; }                                     \
  inline name##4 make_##name##4(T x, T y, T z, T w) { return {x, y, z, w}; }
RENORM_VECTORS(float, float, 16)
RENORM_VECTORS(double, double, 16)
RENORM_VECTORS(int, int, 16)
RENORM_VECTORS(unsigned, uint, 16)
RENORM_VECTORS(short, short, 8)
RENORM_VECTORS(unsigned short, ushort, 8)
RENORM_VECTORS(signed char, char, 4)
RENORM_VECTORS(unsigned char, uchar, 4)
RENORM_VECTORS(long long, longlong, 16)
RENORM_VECTORS(unsigned long long, ulonglong, 16)
using dim3 = uint3;

static uint3 threadIdx, blockIdx;
static dim3 blockDim, gridDim;
static const int warpSize = 32;

#include "host_threads.h"

// ---- bits

template <class To, class From> inline To renorm_bits(From value) {
  static_assert(sizeof(To) == sizeof(From));
  To to;
  memcpy(&to, &value, sizeof to);
  return to;
}
inline float __int_as_float(int x) { return renorm_bits<float>(x); }
inline float __uint_as_float(unsigned x) { return renorm_bits<float>(x); }
inline int __float_as_int(float x) { return renorm_bits<int>(x); }
inline unsigned __float_as_uint(float x) { return renorm_bits<unsigned>(x); }
inline double __longlong_as_double(long long x) { return renorm_bits<double>(x); }
inline long long __double_as_longlong(double x) { return renorm_bits<long long>(x); }
inline int __popc(unsigned x) { return __builtin_popcount(x); }
inline int __popcll(unsigned long long x) { return __builtin_popcountll(x); }
inline int __clz(int x) { return x ? __builtin_clz(unsigned(x)) : 32; }
inline int __ffs(int x) { return __builtin_ffs(x); }

// ---- numbers of 16 bits: memory only, as in the generated text

struct __half { unsigned short bits; };
struct __nv_bfloat16 { unsigned short bits; };
struct __align__(4) __half2 { __half x, y; };
struct __align__(4) __nv_bfloat162 { __nv_bfloat16 x, y; };
using half = __half;
using half2 = __half2;
using nv_bfloat16 = __nv_bfloat16;
using nv_bfloat162 = __nv_bfloat162;

inline float __bfloat162float(__nv_bfloat16 x) { return __uint_as_float(unsigned(x.bits) << 16); }
inline __nv_bfloat16 __float2bfloat16_rn(float x) {
  const unsigned bits = __float_as_uint(x);
  if (x != x) return {0x7fff};
  return {(unsigned short)((bits + 0x7fff + (bits >> 16 & 1)) >> 16)};  // a carry goes on into the exponent
}
inline float __half2float(__half x) {
  const unsigned sign = (x.bits & 0x8000u) << 16, exponent = x.bits >> 10 & 31, fraction = x.bits & 0x3ff;
  if (exponent == 31) return __uint_as_float(sign | 0x7f800000 | fraction << 13);
  if (exponent == 0) return __uint_as_float(sign | __float_as_uint(float(fraction) * 0x1p-24f));
  return __uint_as_float(sign | (exponent + 112) << 23 | fraction << 13);
}
inline __half __float2half_rn(float x) {
  const unsigned all = __float_as_uint(x), sign = all >> 16 & 0x8000, size = all & 0x7fffffff;
  if (x != x) return {0x7fff};
  if (size >= 0x47800000) return {(unsigned short)(sign | 0x7c00)};  // 2**16 and more
  const unsigned exponent = size >> 23;
  if (exponent < 101) return {(unsigned short)sign};  // below half of the smallest
  const bool normal = exponent > 112;
  const unsigned shift = normal ? 13 : 126 - exponent;  // bits that are lost
  const unsigned whole = normal ? size - (112u << 23) : (size & 0x7fffff) | 0x800000;
  const unsigned lost = whole & ((1u << shift) - 1), tie = 1u << (shift - 1);
  unsigned kept = whole >> shift;
  kept += lost > tie || (lost == tie && (kept & 1));
  return {(unsigned short)(sign | kept)};
}
inline __half __float2half(float x) { return __float2half_rn(x); }
inline __nv_bfloat16 __float2bfloat16(float x) { return __float2bfloat16_rn(x); }
inline __half __ushort_as_half(unsigned short x) { return {x}; }
inline unsigned short __half_as_ushort(__half x) { return x.bits; }
inline __nv_bfloat16 __ushort_as_bfloat16(unsigned short x) { return {x}; }
inline unsigned short __bfloat16_as_ushort(__nv_bfloat16 x) { return x.bits; }
inline __half2 __halves2half2(__half x, __half y) { return {x, y}; }
inline __nv_bfloat162 __halves2bfloat162(__nv_bfloat16 x, __nv_bfloat16 y) { return {x, y}; }
inline float2 __half22float2(__half2 v) { return {__half2float(v.x), __half2float(v.y)}; }
inline float2 __bfloat1622float2(__nv_bfloat162 v) { return {__bfloat162float(v.x), __bfloat162float(v.y)}; }
inline __half2 __floats2half2_rn(float x, float y) { return {__float2half_rn(x), __float2half_rn(y)}; }
inline __half2 __float22half2_rn(float2 v) { return __floats2half2_rn(v.x, v.y); }
inline __nv_bfloat162 __floats2bfloat162_rn(float x, float y) {
  return {__float2bfloat16_rn(x), __float2bfloat16_rn(y)};
}
inline __nv_bfloat162 __float22bfloat162_rn(float2 v) { return __floats2bfloat162_rn(v.x, v.y); }

// ---- arithmetic

inline float __fmaf_rn(float a, float b, float c) { return fmaf(a, b, c); }
inline double __fma_rn(double a, double b, double c) { return fma(a, b, c); }
inline float __fmul_rn(float a, float b) { return a * b; }
inline float __fadd_rn(float a, float b) { return a + b; }
inline float __fdiv_rn(float a, float b) { return a / b; }
inline float __fdividef(float a, float b) { return a / b; }
inline float __fsqrt_rn(float x) { return sqrtf(x); }
inline float __frcp_rn(float x) { return 1 / x; }
inline float rsqrtf(float x) { return float(1 / sqrt(double(x))); }
inline double rsqrt(double x) { return 1 / sqrt(x); }
inline float __expf(float x) { return expf(x); }
inline float __logf(float x) { return logf(x); }
inline float __powf(float x, float y) { return powf(x, y); }
inline float __saturatef(float x) { return x > 0 ? x < 1 ? x : 1 : 0; }
#define RENORM_EXTREMES(T)                                  \
  inline T min(T a, T b) { return b < a ? b : a; }          \
  inline T max(T a, T b) { return a < b ? b : a; }
RENORM_EXTREMES(int)
RENORM_EXTREMES(unsigned)
RENORM_EXTREMES(long long)
RENORM_EXTREMES(unsigned long long)
inline float min(float a, float b) { return fminf(a, b); }
inline float max(float a, float b) { return fmaxf(a, b); }
inline double min(double a, double b) { return fmin(a, b); }
inline double max(double a, double b) { return fmax(a, b); }

// ---- memory

template <class T> inline T __ldg(const T* p) { return *p; }
template <class T> inline T __ldcs(const T* p) { return *p; }
template <class T> inline void __stcs(T* p, T value) { *p = value; }
template <class T> inline T renorm_exchange(T* p, T value) {
  const T old = *p;
  *p = value;
  return old;
}
template <class T> struct renorm_same { using type = T; };  // the pointer tells the type, not the value
template <class T> using renorm_value = typename renorm_same<T>::type;
template <class T> inline T atomicAdd(T* p, renorm_value<T> v) { return renorm_exchange<T>(p, *p + v); }
template <class T> inline T atomicMax(T* p, renorm_value<T> v) { return renorm_exchange<T>(p, *p < v ? v : *p); }
template <class T> inline T atomicMin(T* p, renorm_value<T> v) { return renorm_exchange<T>(p, v < *p ? v : *p); }
template <class T> inline T atomicExch(T* p, renorm_value<T> v) { return renorm_exchange<T>(p, v); }
template <class T> inline T atomicCAS(T* p, renorm_value<T> expected, renorm_value<T> v) {
  return renorm_exchange<T>(p, *p == expected ? v : *p);
}
inline void __threadfence() {}
inline void __threadfence_block() {}

// ---- copies that are on their way: made when their thread waits for them, which is as late as may be

inline void __pipeline_memcpy_async(void* to, const void* from, size_t size) {
  if (size != 4 && size != 8 && size != 16) host::fail("a copy of %zu bytes", size);
  if (((uintptr_t)to | (uintptr_t)from) % size) host::fail("a copy of %zu bytes that is not aligned", size);
  host::copy(to, from, size);
}
inline void __pipeline_commit() { host::commit(); }
inline void __pipeline_wait_prior(size_t prior) {
  if (prior) host::fail("a wait for some copies, which is not known");
  host::finish();
}

// ---- threads of a block, lanes of a warp. line: where the call stands

inline void __syncthreads(int line = __builtin_LINE()) { host::wait(host::at_barrier, line); }
inline void __syncwarp(unsigned mask = ~0u, int line = __builtin_LINE()) {
  host::exchange(mask, host::lane(), 0, line);
}

template <class T> inline T __shfl_sync(unsigned mask, T v, int from, int width = 32, int line = __builtin_LINE()) {
  const int first = host::lane() & -width;
  return host::exchange(mask, first + (from & (width - 1)), v, line);
}
template <class T> inline T __shfl_xor_sync(unsigned mask, T v, int by, int width = 32, int line = __builtin_LINE()) {
  const int own = host::lane(), end = (own & -width) + width;
  return host::exchange(mask, (own ^ by) < end ? own ^ by : own, v, line);
}
template <class T> inline T __shfl_down_sync(unsigned mask, T v, int by, int width = 32, int line = __builtin_LINE()) {
  const int own = host::lane(), end = (own & -width) + width;
  return host::exchange(mask, own + by < end ? own + by : own, v, line);
}
template <class T> inline T __shfl_up_sync(unsigned mask, T v, int by, int width = 32, int line = __builtin_LINE()) {
  const int own = host::lane(), first = own & -width;
  return host::exchange(mask, own - by >= first ? own - by : own, v, line);
}

// ---- tensor cores: mma of 16 rows, 8 columns and 16 or 8 terms, as the PTX ISA draws its fragments. Lane (g, t) of 8 x 4
// brings terms 2t, 2t + 1 (a0, b0), 2t + 8 and 2t + 9 (a2, b1) of row g, and of column g; a1, a3 are of row g + 8. Of
// tf32 it brings terms t and t + 4. Its sums are (g, 2t), (g, 2t + 1), (g + 8, 2t) and (g + 8, 2t + 1).

struct renorm_registers { float* c[4]; unsigned a[4], b[2]; };

enum renorm_format { HALF, BRAIN, TF32 };

inline float renorm_dot(unsigned x, unsigned y, renorm_format format) {
  if (format == TF32) {  // the last bits of a register are not multiplied
    if ((x | y) & 0x1fff) host::fail("tensor cores multiply a float32 that was not rounded to tf32");
    return __uint_as_float(x) * __uint_as_float(y);
  }
  const bool half = format == HALF;
  const auto wide = [=](unsigned v) { return half ? __half2float({(unsigned short)v}) : __uint_as_float(v << 16); };
  return wide(x & 0xffff) * wide(y & 0xffff) + wide(x >> 16) * wide(y >> 16);
}

// text: an instruction, and which registers it has, in order
inline void renorm_asm(const char* text, renorm_registers all, int line) {
  const renorm_format format = strstr(text, ".f32.f16.f16.f32 ") ? HALF : strstr(text, ".f32.tf32.tf32.f32 ") ? TF32 : BRAIN;
  const bool k16 = strstr(text, "mma.sync.aligned.m16n8k16.row.col."), k8 = strstr(text, "mma.sync.aligned.m16n8k8.row.col.");
  const bool whole = format == TF32 ? k8 : k16;
  if ((format == TF32 ? !k8 : !k16 && !k8) || (format == BRAIN && !strstr(text, ".f32.bf16.bf16.f32 ")))
    host::fail("an instruction that is not known: %s", text);
  float* c[4];
  unsigned values[6] = {}, sums = 0, count = 0;
  for (const char* p = strchr(text, ':'); (p = strchr(p, '(')); ++p) {
    const int i = p[2] - '0';
    if (p[1] == 'c') c[sums++] = all.c[i];
    else values[count++] = p[1] == 'a' ? all.a[i] : all.b[i];
  }
  if (sums != 4 || count != (whole ? 6 : 3)) host::fail("an instruction with other registers: %s", text);
  const uint4 a = whole ? uint4{values[0], values[1], values[2], values[3]} : uint4{values[0], values[1], 0, 0};
  const uint2 b = whole ? uint2{values[4], values[5]} : uint2{values[2], 0};
  const int g = host::lane() / 4, t = host::lane() % 4;
  uint4 rows[4];
  for (int i = 0; i < 4; ++i) rows[i] = host::exchange(~0u, g * 4 + i, a, line);
  for (int place = 0; place < 2; ++place)
    for (int i = 0; i < 4; ++i) {
      const uint2 column = host::exchange(~0u, (2 * t + place) * 4 + i, b, line);
      *c[place] += renorm_dot(rows[i].x, column.x, format) + renorm_dot(rows[i].z, column.y, format);
      *c[2 + place] += renorm_dot(rows[i].y, column.x, format) + renorm_dot(rows[i].w, column.y, format);
    }
}
#define asm  // volatile
#define volatile(...) renorm_asm(#__VA_ARGS__, {{&c0, &c1, &c2, &c3}, {a0, a1, a2, a3}, {b0, b1}}, __builtin_LINE())

#endif
