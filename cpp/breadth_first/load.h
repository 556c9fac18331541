// The load of the busiest arc in a step of breadth-first broadcast.
#pragma once

#include <numeric>

#include "core/wide.h"
#include "graph/digraph.h"

namespace coppice {

/// Sources per unit of capacity that the busiest arc brings in a step, in lowest terms.
struct Load {
  Amount numerator, denominator;
  Load(Amount p, Amount q) : numerator(p / std::gcd(p, q)), denominator(q / std::gcd(p, q)) {}
  bool operator<(const Load& other) const {
    return is_less(numerator, denominator, other.numerator, other.denominator);
  }
};

}  // namespace coppice
