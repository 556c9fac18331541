// The link from one node to another, looked up many times.
//
// Cost: a square table of 32-bit numbers up to kDense nodes, else a binary search among the links that leave the node.
// Overflow: none.
#pragma once

#include <algorithm>
#include <cstdint>
#include <numeric>
#include <span>
#include <vector>

#include "graph/digraph.h"

namespace coppice {

class LinkTable {
 public:
  static constexpr Arc kMissing = -1;

  /// Link e goes from src[e] to dst[e], both in 0 .. num_nodes - 1; no two join the same nodes the same way.
  LinkTable(Vertex num_nodes, std::span<const Vertex> src, std::span<const Vertex> dst) : size_(num_nodes) {
    const auto links = static_cast<Arc>(src.size());
    if (num_nodes <= kDense) {
      table_.assign(static_cast<std::size_t>(num_nodes) * num_nodes, kMissing);
      for (Arc e = 0; e < links; ++e) table_[static_cast<std::size_t>(src[e]) * num_nodes + dst[e]] = e;
      return;
    }
    order_.resize(links);
    std::iota(order_.begin(), order_.end(), 0);
    std::ranges::sort(order_, {}, [&](Arc e) { return std::pair(src[e], dst[e]); });
    start_.assign(static_cast<std::size_t>(num_nodes) + 1, 0);
    for (Arc e : order_) ++start_[src[e] + 1], head_.push_back(dst[e]);
    std::partial_sum(start_.begin(), start_.end(), start_.begin());
  }

  /// The link, kMissing where there is none or a node is not in 0 .. num_nodes - 1.
  Arc operator()(Vertex from, Vertex to) const {
    if (from < 0 || to < 0 || from >= size_ || to >= size_) return kMissing;
    if (!table_.empty()) return table_[static_cast<std::size_t>(from) * size_ + to];
    auto first = head_.begin() + start_[from], last = head_.begin() + start_[from + 1];
    auto found = std::lower_bound(first, last, to);
    return found != last && *found == to ? order_[found - head_.begin()] : kMissing;
  }

 private:
  static constexpr Vertex kDense = 4096;

  Vertex size_;
  std::vector<Arc> table_;    // table_[a * size_ + b], empty for many nodes
  std::vector<Arc> order_;    // links by their ends
  std::vector<Vertex> head_;  // where these lead
  std::vector<Arc> start_;    // those of node v are order_[start_[v] .. start_[v + 1])
};

}  // namespace coppice
