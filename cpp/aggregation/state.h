// What nodes need for their saved states and deadlines.
#pragma once

#include <cstdint>
#include <vector>

#include "aggregation/node.h"

namespace coppice::aggregation {

// Appends a number, little-endian.
template <class T>
inline void put(std::vector<std::uint8_t>& state, T value) {
  const auto bits = static_cast<std::uint64_t>(value);
  for (std::size_t byte = 0; byte < sizeof(T); ++byte) state.push_back(static_cast<std::uint8_t>(bits >> (8 * byte)));
}

// The time so long after another, never at the latest.
inline Time after(Time start, Time wait) { return wait > kNever - start ? kNever : start + wait; }

}  // namespace coppice::aggregation
