// Block floating point with exponents that the workers agree on: float32 summed by switches that add int32 only.
//
// The workers of a block first agree on one exponent e, the largest of theirs, so that |x| <= 2^e holds for every value
// of every worker. Each sends q = round(x scale), the switch adds, and the sum reads as (sum of q) / scale, where
//   scale = L / 2^e,  L = floor((2^31 - 1) / workers), for one to three workers with its last two bits cleared.
// Source: SwitchML (NSDI'21), section 3.7, where the scale is (2^31 - 1) / (n 2^e). The scale of whole steps is ours:
// * No wrap. |x scale| <= L, and L is whole, so that |q| <= L after rounding as well, and |sum| <= n L <= 2^31 - 1.
// * One rounding. L has at most 29 bits and x 24: x scale is exact in float64, and q its nearest integer, ties to even.
//   So |(sum of q) / scale - (sum of x)| <= n / (2 scale), with no further term. Read as a float32 the sum is rounded
//   once more: by 2^-24 of itself, or by 2^-150 where it is subnormal (the float64 before it adds 2^-53 of itself).
// * e fits int8: from -126, of zeros and subnormals as well, to 127, which stands for 2^128 so that every finite float32
//   has its place. Blocks with values from 2^126 on have thereby up to one bit less.
// * A sum beyond float32 reads as an infinity, like a sum of float32. Zeros are exact, and positive.
// Infinities and NaN have no exponent: `kNotFinite` tells the worker, who sends nothing and says so.
//
// Cost: one pass each, of loops that the compiler turns into vector code.
#pragma once

#include <cstddef>
#include <cstdint>

namespace coppice::numerics {

inline constexpr int kLeastExponent = -126;    // also of a block without values: it changes no maximum
inline constexpr int kGreatestExponent = 127;  // stands for 2^128
inline constexpr int kNotFinite = 128;         // no exponent: more than any that fits the wire

/// The exponent that a block announces, `kLeastExponent` to `kGreatestExponent`, or `kNotFinite` where a value is
/// infinite or NaN.
int block_exponent(const float* values, std::size_t n);

/// Integers per unit at an agreed exponent (clamped to those that there are), for one worker or more.
double block_scale(int exponent, int workers);

/// Values as integers that `workers` of them can be added without a wrap. Values beyond the exponent, which only a
/// wrong exponent leaves, stick at its end.
void quantise(const float* values, std::int32_t* to, std::size_t n, int exponent, int workers);
/// The same in network order; `to` need not be aligned.
void quantise_big_endian(const float* values, std::uint8_t* to, std::size_t n, int exponent, int workers);

/// Sums of integers as values.
void dequantise(const std::int32_t* sums, float* to, std::size_t n, int exponent, int workers);
void dequantise_big_endian(const std::uint8_t* sums, float* to, std::size_t n, int exponent, int workers);

}  // namespace coppice::numerics
