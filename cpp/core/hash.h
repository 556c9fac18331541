// Hashes of integers that are the same on every machine, since results depend on them.
#pragma once

#include <cstdint>
#include <span>

namespace coppice {

/// The output of splitmix64 (Steele, Lea and Flood, 2014) for this state.
constexpr std::uint64_t mixed(std::uint64_t state) {
  state += 0x9E3779B97F4A7C15u;
  state = (state ^ (state >> 30)) * 0xBF58476D1CE4E5B9u;
  state = (state ^ (state >> 27)) * 0x94D049BB133111EBu;
  return state ^ (state >> 31);
}

/// The next state of a chained splitmix64 after it takes in `value`.
constexpr std::uint64_t mixed(std::uint64_t state, std::uint64_t value) { return mixed(state + value); }

/// FNV-1a over whole numbers in place of bytes.
constexpr std::uint64_t hash_of(std::span<const std::int32_t> numbers) {
  std::uint64_t hash = 1469598103934665603u;
  for (std::int32_t number : numbers) hash = (hash ^ static_cast<std::uint64_t>(number)) * 1099511628211u;
  return hash;
}

}  // namespace coppice
