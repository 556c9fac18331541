// A 128-bit hash of bytes and numbers, by which the search of exploration.h tells states apart.
#pragma once

#include "aggregation/node.h"
#include "core/hash.h"

namespace coppice::aggregation {

struct StateKey {
  std::uint64_t low = 0, high = 0;
  bool operator==(const StateKey&) const = default;
  void take(std::uint64_t word) {
    low = mixed(low, word);
    high = mixed(high ^ 0xD1B54A32D192ED03u, word * 0x9E3779B97F4A7C15u + 1);
  }
  void take(const StateKey& key) { take(key.low), take(key.high); }
  void take(Bytes bytes) {
    take(bytes.size());
    std::uint64_t word = 0;
    for (std::size_t i = 0; i < bytes.size(); ++i) {
      word |= std::uint64_t{bytes[i]} << (8 * (i % 8));
      if (i % 8 == 7 || i + 1 == bytes.size()) take(word), word = 0;
    }
  }
};

struct StateKeyHash {
  std::size_t operator()(const StateKey& key) const { return static_cast<std::size_t>(key.low); }
};

}  // namespace coppice::aggregation
