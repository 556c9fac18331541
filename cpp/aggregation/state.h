// What a node writes when it saves its state: numbers as they lie in memory, one after the other.
#pragma once

#include <cstdint>
#include <cstring>
#include <type_traits>
#include <vector>

namespace coppice::aggregation {

template <class T>
  requires std::is_arithmetic_v<T> || std::is_enum_v<T>
void append(std::vector<std::uint8_t>& state, T value) {
  const std::size_t at = state.size();
  state.resize(at + sizeof value);
  std::memcpy(state.data() + at, &value, sizeof value);
}

template <class T>
  requires std::is_arithmetic_v<T>
void append(std::vector<std::uint8_t>& state, const T* values, std::size_t count) {
  const std::size_t at = state.size();
  state.resize(at + count * sizeof(T));
  if (count != 0) std::memcpy(state.data() + at, values, count * sizeof(T));
}

}  // namespace coppice::aggregation
