// Floating-point sums in the integer pipeline of a switch: per value a register of exponents and one of signed mantissas.
//
// A value of p significant bits (float32 24, float16 11, bfloat16 8) enters as mantissa m = +-(1.fraction) 2^(p-1+guard)
// and its biased exponent e (1 for subnormals). The sum (E, M) is not normalised, as long as it is added to:
//   full:         e <= E: M += m >> (E-e)         e > E: M = (M >> (e-E)) + m, E = e
//   approximate:  e <= E: M += m >> (E-e)         0 < e-E <= headroom: M += m << (e-E), E stays
//                                                 e-E > headroom: M = m, E = e (the sum so far is lost: an overwrite)
// Approximate is what pipelines can do that shift values of the packet alone. Reading normalises, and rounds.
// Source: FPISA (NSDI'22), sections 3 and 4. Ours: a sum of 0 takes the exponent of what comes, in both modes.
//
// Shifts to the right round towards minus infinity, so full sums, before they are read, are too small by less than n-1
// units in the last place of the largest |x| (units / 2^guard): sum of x - (n-1) u < M 2^E <= sum of x. Which bits are
// lost depends on the order of arrival: so do the last bits of a sum.
// The mantissa register has 32 bits: headroom bits = 31 - p - guard are free, and the sum of more than 2^headroom values
// can leave it. |M| >= 2^31 is an overflow: the value reads as NaN from then on. Infinities and NaN are not numbers for
// the adder: they mark the value, and it reads as what IEEE 754 gives (an infinity, or NaN of both signs or any NaN).
//
// Cost: adding is one pass of a loop that the compiler turns into vector code where lanes shift apart (AVX2, NEON).
#pragma once

#include <cstddef>
#include <cstdint>

namespace coppice::numerics {

enum class FloatFormat : std::uint8_t { float32, float16, bfloat16 };

struct FpisaForm {
  FloatFormat format = FloatFormat::float32;
  bool full = true;
  int guard = 0;     // bits below the last place of a value, at most 31 - p
  int headroom = 7;  // of approximate: how far a larger value may be shifted, at most 31 - p - guard
};

/// p of a format.
int significant_bits(FloatFormat format);

struct FpisaCounts {
  std::int64_t overflowed = 0;   // sums that left the register
  std::int64_t overwritten = 0;  // sums other than 0 that were lost to a larger value
  std::int64_t not_finite = 0;   // infinities and NaN that were added
};

/// exponents[i], mantissas[i] = an empty sum.
void fpisa_clear(std::int32_t* exponents, std::int32_t* mantissas, std::size_t n);

/// Adds values (4 bytes each of float32, else 2) to n sums. Throws std::invalid_argument for a form that there is not.
FpisaCounts fpisa_add(const FpisaForm& form, std::int32_t* exponents, std::int32_t* mantissas, const void* values, std::size_t n);

/// Reads n sums as values of the format: to the nearest, ties to even, or cut towards zero. Sums beyond the format read
/// as infinities, cut ones as its largest values.
void fpisa_read(const FpisaForm& form, const std::int32_t* exponents, const std::int32_t* mantissas, void* to, std::size_t n,
                bool nearest);

}  // namespace coppice::numerics
