// Numbers in network order (big-endian) at any place of a packet.
#pragma once

#include <bit>
#include <concepts>
#include <cstdint>
#include <cstring>

namespace coppice::aggregation {

template <std::unsigned_integral T>
T swapped(T value) {
  if constexpr (std::endian::native == std::endian::big || sizeof(T) == 1) return value;
  if constexpr (sizeof(T) == 2) return __builtin_bswap16(value);
  if constexpr (sizeof(T) == 4) return __builtin_bswap32(value);
  if constexpr (sizeof(T) == 8) return __builtin_bswap64(value);
}

template <std::unsigned_integral T>
T load(const std::uint8_t* at) {
  T value;
  std::memcpy(&value, at, sizeof value);
  return swapped(value);
}

template <std::unsigned_integral T>
void store(std::uint8_t* at, T value) {
  value = swapped(value);
  std::memcpy(at, &value, sizeof value);
}

}  // namespace coppice::aggregation
