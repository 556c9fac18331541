// Writer of a node's state as bytes, by which the model checker tells states apart.
#pragma once

#include <cstdint>
#include <cstring>
#include <type_traits>
#include <vector>

#include "aggregation/node.h"

namespace coppice::aggregation {

// Numbers as they lie in memory, one after the other. What is read back by nobody needs no format: equal bytes have to
// mean equal states, so rows whose length does not follow from what stands before them are written with it.
class StateWriter {
 public:
  explicit StateWriter(std::vector<std::uint8_t>& bytes) : bytes_(bytes) {}
  template <class T>
    requires std::is_arithmetic_v<T> || std::is_enum_v<T>
  StateWriter& operator<<(T value) {
    return put(&value, 1);
  }
  // A row with its length.
  template <class T>
  StateWriter& operator<<(const std::vector<T>& values) {
    return (*this << values.size()).put(values.data(), values.size());
  }
  StateWriter& operator<<(Bytes bytes) { return (*this << bytes.size()).put(bytes.data(), bytes.size()); }
  // How long until `at`; -1 for never.
  StateWriter& until(Time at, Time now) { return *this << (at == kNever ? Time{-1} : at - now); }
  // A row without.
  template <class T>
    requires std::is_arithmetic_v<T> || std::is_enum_v<T>
  StateWriter& put(const T* values, std::size_t count) {
    const std::size_t at = bytes_.size(), size = count * sizeof(T);
    bytes_.resize(at + size);
    if (size != 0) std::memcpy(bytes_.data() + at, values, size);
    return *this;
  }

 private:
  std::vector<std::uint8_t>& bytes_;
};

// Everything that decides what a node does next.
inline std::vector<std::uint8_t> state_of(const Node& node, Time now) {
  std::vector<std::uint8_t> bytes;
  StateWriter state(bytes);
  node.save(now, state);
  return bytes;
}

}  // namespace coppice::aggregation
