#include "numerics/block_float.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>

#include "aggregation/bytes.h"
#include "numerics/clones.h"

namespace coppice::numerics {

namespace {

// L of the header.
std::int32_t most_steps(int workers) {
  const std::int32_t most = std::numeric_limits<std::int32_t>::max() / std::max(workers, 1);
  return workers < 4 ? most & ~3 : most;
}

// 2^e >= |x| of the exponent e.
double limit(int exponent) {
  const int clamped = std::clamp(exponent, kLeastExponent, kGreatestExponent);
  return std::ldexp(1.0, clamped == kGreatestExponent ? kGreatestExponent + 1 : clamped);
}

class Quantiser {
 public:
  Quantiser(int exponent, int workers) : scale_(block_scale(exponent, workers)), most_(most_steps(workers)) {}
  std::uint32_t operator()(float value) const {
    double steps = static_cast<double>(value) * scale_;
    steps = steps < most_ ? steps : most_;
    steps = steps > -most_ ? steps : -most_;
    // Beside 3/2 2^52 the last place of a float64 is 1: the adder rounds, and the last 32 bits are the integer.
    return static_cast<std::uint32_t>(std::bit_cast<std::uint64_t>(steps + 0x1.8p52));
  }

 private:
  double scale_, most_;
};

}  // namespace

double block_scale(int exponent, int workers) { return most_steps(workers) / limit(exponent); }

COPPICE_CLONES int block_exponent(const float* values, std::size_t n) {
  std::int32_t most = 0;
  for (std::size_t i = 0; i < n; ++i) most = std::max(most, std::bit_cast<std::int32_t>(values[i]) & 0x7fffffff);
  if (most >= 0x7f800000) return kNotFinite;
  return std::min((most >> 23) - 126, kGreatestExponent);
}

COPPICE_CLONES
void quantise(const float* __restrict values, std::int32_t* __restrict to, std::size_t n, int exponent, int workers) {
  const Quantiser steps(exponent, workers);
  for (std::size_t i = 0; i < n; ++i) to[i] = static_cast<std::int32_t>(steps(values[i]));
}

COPPICE_CLONES
void quantise_big_endian(const float* __restrict values, std::uint8_t* __restrict to, std::size_t n, int exponent,
                         int workers) {
  const Quantiser steps(exponent, workers);
  for (std::size_t i = 0; i < n; ++i) aggregation::store(to + 4 * i, steps(values[i]));
}

COPPICE_CLONES
void dequantise(const std::int32_t* __restrict sums, float* __restrict to, std::size_t n, int exponent, int workers) {
  const double step = 1 / block_scale(exponent, workers);
  for (std::size_t i = 0; i < n; ++i) to[i] = static_cast<float>(sums[i] * step);
}

COPPICE_CLONES
void dequantise_big_endian(const std::uint8_t* __restrict sums, float* __restrict to, std::size_t n, int exponent,
                           int workers) {
  const double step = 1 / block_scale(exponent, workers);
  for (std::size_t i = 0; i < n; ++i) {
    to[i] = static_cast<float>(static_cast<std::int32_t>(aggregation::load<std::uint32_t>(sums + 4 * i)) * step);
  }
}

}  // namespace coppice::numerics
