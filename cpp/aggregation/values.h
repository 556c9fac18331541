// Loads, stores and sums of packets' values, int32 in network order.
#pragma once

#include "aggregation/bytes.h"

namespace coppice::aggregation {

inline void load_values(const std::uint8_t* from, std::int32_t* to, std::size_t n) {
  for (std::size_t i = 0; i < n; ++i) to[i] = static_cast<std::int32_t>(load<std::uint32_t>(from + 4 * i));
}

inline void store_values(const std::int32_t* from, std::uint8_t* to, std::size_t n) {
  for (std::size_t i = 0; i < n; ++i) store(to + 4 * i, static_cast<std::uint32_t>(from[i]));
}

// Wraps around, as the adders of switches do.
inline void add_values(const std::uint8_t* from, std::int32_t* to, std::size_t n) {
  for (std::size_t i = 0; i < n; ++i) {
    to[i] = static_cast<std::int32_t>(static_cast<std::uint32_t>(to[i]) + load<std::uint32_t>(from + 4 * i));
  }
}

}  // namespace coppice::aggregation
