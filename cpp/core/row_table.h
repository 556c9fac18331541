// Numbers distinct rows of whole numbers, each once, in the order of first use.
//
// Large packings repeat few paths many times. A hash table with open addressing over the flat list of rows finds one
// again.
//
// Cost: expected O(length of the row) for each. Overflow: there may be less than 2^31 distinct rows, which is checked
// where one is numbered.
#pragma once

#include <algorithm>
#include <cstdint>
#include <limits>
#include <span>
#include <stdexcept>
#include <vector>

#include "core/hash.h"

namespace coppice {

class RowTable {
 public:
  RowTable() : slots_(1024, -1) {}

  /// Throws std::overflow_error where the rows cannot be numbered.
  std::int32_t number(std::span<const std::int32_t> row) {
    if (2 * start_.size() > slots_.size()) grow();
    const std::size_t slot = find(row);
    if (slots_[slot] < 0) {
      const std::size_t index = start_.size() - 1;
      if (index > std::numeric_limits<std::int32_t>::max())
        throw std::overflow_error("there must be less than 2^31 distinct paths");
      slots_[slot] = static_cast<std::int32_t>(index);
      values_.insert(values_.end(), row.begin(), row.end());
      start_.push_back(static_cast<std::int64_t>(values_.size()));
    }
    return slots_[slot];
  }

  std::span<const std::int32_t> operator[](std::int32_t row) const {
    return {values_.data() + start_[row], values_.data() + start_[row + 1]};
  }

  /// Row r is values()[start()[r] .. start()[r + 1]).
  std::vector<std::int64_t>& start() { return start_; }
  std::vector<std::int32_t>& values() { return values_; }

 private:
  // The slot of this row, or the free one where it belongs.
  std::size_t find(std::span<const std::int32_t> row) const {
    const std::uint64_t hash = hash_of(row);
    std::size_t slot = (hash ^ hash >> 29) & (slots_.size() - 1);
    while (slots_[slot] >= 0 && !std::ranges::equal((*this)[slots_[slot]], row)) slot = (slot + 1) & (slots_.size() - 1);
    return slot;
  }

  void grow() {
    slots_.assign(2 * slots_.size(), -1);
    for (std::size_t row = 0; row + 1 < start_.size(); ++row)
      slots_[find((*this)[static_cast<std::int32_t>(row)])] = static_cast<std::int32_t>(row);
  }

  std::vector<std::int64_t> start_{0};
  std::vector<std::int32_t> values_;
  std::vector<std::int32_t> slots_;  // row number or -1; a power of two of them, at least half free
};

}  // namespace coppice
