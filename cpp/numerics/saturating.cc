#include "numerics/saturating.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>

#include "numerics/clones.h"

namespace coppice::numerics {

namespace {
constexpr double kMost = std::numeric_limits<std::int32_t>::max();
constexpr std::size_t kCached = 2048;  // looked at again while it is in the first-level cache

inline std::size_t ends_of(const std::int32_t* x, std::size_t n) {
  std::int32_t ends = 0;
  for (std::size_t i = 0; i < n; ++i) ends += is_end(x[i]) ? 1 : 0;
  return static_cast<std::size_t>(ends);
}
}  // namespace

COPPICE_CLONES
std::size_t add_saturating(std::int32_t* __restrict to, const std::int32_t* __restrict from, std::size_t n) {
  std::size_t stuck = 0;
  for (std::size_t begin = 0; begin < n; begin += kCached) {
    const std::size_t end = std::min(begin + kCached, n);
    stuck -= ends_of(to + begin, end - begin);
    for (std::size_t i = begin; i < end; ++i) to[i] = saturated_sum(to[i], from[i]);
    stuck += ends_of(to + begin, end - begin);
  }
  return stuck;
}

COPPICE_CLONES
void add_wrapping(std::int32_t* __restrict to, const std::int32_t* __restrict from, std::size_t n) {
  for (std::size_t i = 0; i < n; ++i) {
    to[i] = static_cast<std::int32_t>(static_cast<std::uint32_t>(to[i]) + static_cast<std::uint32_t>(from[i]));
  }
}

COPPICE_CLONES
std::size_t to_fixed(const float* __restrict values, std::int32_t* __restrict to, std::size_t n, double factor) {
  std::size_t ends = 0;
  for (std::size_t begin = 0; begin < n; begin += kCached) {
    const std::size_t end = std::min(begin + kCached, n);
    for (std::size_t i = begin; i < end; ++i) {
      const double steps = static_cast<double>(values[i]) * factor;
      // Beside 3/2 2^52 the last place of a float64 is 1: the adder rounds, and the last 32 bits are the integer.
      const auto whole = static_cast<std::uint32_t>(std::bit_cast<std::uint64_t>(steps + 0x1.8p52));
      const std::uint32_t sign = std::bit_cast<std::uint32_t>(values[i]) >> 31;
      const std::uint32_t inside = std::abs(steps) < kMost ? ~0u : 0u;  // not of NaN
      to[i] = static_cast<std::int32_t>((inside & whole) | (~inside & (0x7fffffff + sign)));
    }
    ends += ends_of(to + begin, end - begin);
  }
  return ends;
}

COPPICE_CLONES
std::size_t from_fixed(const std::int32_t* __restrict sums, float* __restrict to, std::size_t n, double factor) {
  constexpr std::uint32_t kInfinity = 0x7f800000;
  std::size_t ends = 0;
  for (std::size_t begin = 0; begin < n; begin += kCached) {
    const std::size_t end = std::min(begin + kCached, n);
    for (std::size_t i = begin; i < end; ++i) {
      const std::uint32_t value = std::bit_cast<std::uint32_t>(static_cast<float>(sums[i] / factor));
      const std::uint32_t sign = static_cast<std::uint32_t>(sums[i]) & 0x80000000;
      const std::uint32_t at_end = is_end(sums[i]) ? ~0u : 0u;  // no branch around the division
      to[i] = std::bit_cast<float>((at_end & (kInfinity | sign)) | (~at_end & value));
    }
    ends += ends_of(sums + begin, end - begin);
  }
  return ends;
}

}  // namespace coppice::numerics
