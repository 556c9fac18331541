// 128-bit integers, and the limit below which 64-bit sums of amounts stay.
//
// Amounts are 64-bit integers. Where a computation adds them up, it checks once, in 128 bits, that the sums stay within
// 2^62: then the difference of any two of them fits 64 bits, and the product of any two fits 128 bits.
#pragma once

#include <cstdint>
#include <stdexcept>
#include <string>
#include <utility>

namespace coppice {

__extension__ typedef __int128 Wide;
__extension__ typedef unsigned __int128 UnsignedWide;

inline constexpr Wide kSumLimit = Wide{1} << 62;

/// Throws std::overflow_error(what) unless `value` is below 2^62.
inline void require_below_limit(Wide value, const char* what) {
  if (value >= kSumLimit) throw std::overflow_error(what);
}

/// The greatest common divisor of numbers >= 0.
constexpr Wide gcd(Wide a, Wide b) {
  while (b) a %= b, std::swap(a, b);
  return a;
}

/// Whether a / b < c / d, for denominators >= 0 and terms up to 2^62 in size.
constexpr bool is_less(Wide a, Wide b, Wide c, Wide d) { return a * d < c * b; }

/// In decimal digits, as std::to_string writes smaller integers.
inline std::string to_decimal(Wide value) {
  const bool is_negative = value < 0;
  std::string digits;
  do {
    const int digit = static_cast<int>(value % 10);
    digits.insert(digits.begin(), static_cast<char>('0' + (is_negative ? -digit : digit)));
    value /= 10;
  } while (value != 0);
  return is_negative ? "-" + digits : digits;
}

}  // namespace coppice
