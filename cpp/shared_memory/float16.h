// float16 and bfloat16 as their bits: conversion from and to float32, one by one and by arrays.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace coppice::shm {

struct Float16 { std::uint16_t bits; };
struct BFloat16 { std::uint16_t bits; };

inline float widen(BFloat16 x) { return std::bit_cast<float>(static_cast<std::uint32_t>(x.bits) << 16); }

inline BFloat16 narrow_bfloat16(float x) {
  std::uint32_t bits = std::bit_cast<std::uint32_t>(x);
  std::uint32_t rounded = (bits + 0x7fff + (bits >> 16 & 1)) >> 16;
  std::uint32_t quiet_nan = bits >> 16 | 0x40;
  return {static_cast<std::uint16_t>((bits & 0x7fffffff) > 0x7f800000 ? quiet_nan : rounded)};
}

inline float widen(Float16 x) {
  std::uint32_t magnitude = static_cast<std::uint32_t>(x.bits & 0x7fff) << 13;
  std::uint32_t sign = static_cast<std::uint32_t>(x.bits & 0x8000) << 16;
  // The exponent's bias moves by 112; for infinities and NaN by as much again. A subnormal is what its bits add to 2^-14.
  std::uint32_t normal = magnitude + 0x38000000 + (magnitude >= 0x0f800000 ? 0x38000000 : 0);
  float subnormal = std::bit_cast<float>(magnitude + 0x38800000) - 0x1p-14f;
  std::uint32_t value = magnitude < 0x00800000 ? std::bit_cast<std::uint32_t>(subnormal) : normal;
  return std::bit_cast<float>(value | sign);
}

inline Float16 narrow_float16(float x) {
  std::uint32_t bits = std::bit_cast<std::uint32_t>(x);
  std::uint32_t sign = bits >> 16 & 0x8000, magnitude = bits & 0x7fffffff;
  // Below 2^-14, adding 1/2 lets the float adder round to the spacing of subnormal halves, 2^-24.
  std::uint32_t subnormal = std::bit_cast<std::uint32_t>(std::bit_cast<float>(magnitude) + 0.5f) - 0x3f000000;
  std::uint32_t normal = (magnitude - 0x38000000 + 0xfff + (magnitude >> 13 & 1)) >> 13;
  std::uint32_t special = magnitude > 0x7f800000 ? 0x7e00 | (magnitude >> 13 & 0x3ff) : 0x7c00;
  std::uint32_t value = magnitude < 0x38800000 ? subnormal : normal;
  value = magnitude >= 0x477ff000 ? special : value;  // 65520 and more round to infinity
  return {static_cast<std::uint16_t>(value | sign)};
}

inline void widen(float* to, const BFloat16* from, std::size_t n) {
  for (std::size_t i = 0; i < n; ++i) to[i] = widen(from[i]);
}

inline void narrow(BFloat16* to, const float* from, std::size_t n) {
  for (std::size_t i = 0; i < n; ++i) to[i] = narrow_bfloat16(from[i]);
}

#if defined(__x86_64__)
inline bool has_float16_instructions() {
  static const bool has = __builtin_cpu_supports("avx") && __builtin_cpu_supports("f16c");
  return has;
}

/// Returns: how many of the elements were converted.
__attribute__((target("avx,f16c"))) inline std::size_t widen_by_instruction(float* to, const Float16* from, std::size_t n) {
  std::size_t i = 0;
  for (; i + 8 <= n; i += 8) {
    _mm256_storeu_ps(to + i, _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from + i))));
  }
  return i;
}

__attribute__((target("avx,f16c"))) inline std::size_t narrow_by_instruction(Float16* to, const float* from, std::size_t n) {
  std::size_t i = 0;
  for (; i + 8 <= n; i += 8) {
    __m128i halves = _mm256_cvtps_ph(_mm256_loadu_ps(from + i), _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
    _mm_storeu_si128(reinterpret_cast<__m128i*>(to + i), halves);
  }
  return i;
}
#endif

inline void widen(float* to, const Float16* from, std::size_t n) {
  std::size_t i = 0;
#if defined(__x86_64__)
  if (has_float16_instructions()) i = widen_by_instruction(to, from, n);
#endif
  for (; i < n; ++i) to[i] = widen(from[i]);
}

inline void narrow(Float16* to, const float* from, std::size_t n) {
  std::size_t i = 0;
#if defined(__x86_64__)
  if (has_float16_instructions()) i = narrow_by_instruction(to, from, n);
#endif
  for (; i < n; ++i) to[i] = narrow_float16(from[i]);
}

}  // namespace coppice::shm
