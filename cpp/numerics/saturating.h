// Sums of int32 that stick at the ends of their range, and fixed-point numbers whose overflow is read from there.
//
// The ends, INT_MAX and INT_MIN, absorb: an accumulator that has come to one of them stays, and a contribution that is
// one of them takes the accumulator there. So a sum that is none of the ends is exact, in whatever order and over
// however many switches it was added. (A register that only clamps, INT_MAX - 5 = INT_MAX - 5, forgets: of 2^31 - 1, 1
// and -5 it gives a wrong sum that looks right.)
//
// Source: ATP (NSDI'21): factor 10^6, the server takes the ends as overflow and asks for the values in float32.
// Cost: one pass of a loop that the compiler turns into vector code.
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>

namespace coppice::numerics {

inline constexpr double kFixedFactor = 1e6;

/// Whether a number is an end of its range.
inline bool is_end(std::int32_t x) {
  return (x ^ (x >> 31)) == std::numeric_limits<std::int32_t>::max();
}

/// One sum as described above.
inline std::int32_t saturated_sum(std::int32_t a, std::int32_t b) {
  const std::int32_t sum = static_cast<std::int32_t>(static_cast<std::uint32_t>(a) + static_cast<std::uint32_t>(b));
  const std::int32_t end = (a >> 31) ^ std::numeric_limits<std::int32_t>::max();
  const std::int32_t clamped = (~(a ^ b) & (a ^ sum)) < 0 ? end : sum;
  const std::int32_t taken = is_end(b) ? b : clamped;
  return is_end(a) ? a : taken;
}

/// to[i] += from[i]. Returns: how many came to an end by it.
std::size_t add_saturating(std::int32_t* to, const std::int32_t* from, std::size_t n);

/// to[i] += from[i], wrapping around.
void add_wrapping(std::int32_t* to, const std::int32_t* from, std::size_t n);

/// to[i] = round(values[i] * factor), ties to even; an end of the range where |values[i] * factor| >= 2^31 - 1 or the
/// value is NaN. Rounding is exact for whole factors up to 2^29. Returns: how many are ends.
std::size_t to_fixed(const float* values, std::int32_t* to, std::size_t n, double factor = kFixedFactor);

/// to[i] = sums[i] / factor; an infinity where the sum is an end. Returns: how many are ends.
std::size_t from_fixed(const std::int32_t* sums, float* to, std::size_t n, double factor = kFixedFactor);

}  // namespace coppice::numerics
