// The exact optimum of a collective that is made of spanning trees, by discrete Newton.
//
// Theory (ForestColl, arXiv 2402.06787, and arXiv 2305.18461). Let w(v) >= 0 be the share of the data that starts at
// v, W = w(V). In time T per unit of share every set X that contains a terminal must take in W - w(X):
//
//     T >= (W - w(X)) / c(in(X)),
//
// and the largest such ratio is attained. Writing T = p/q, all sets allow T iff c(in(X)) * p + q * w(X) >= q * W, which
// is the check of feasibility.h with capacities p * c and supplies q * w. A violated X gives a larger ratio exactly;
// the ratio strictly increases until no set violates it (Dinkelbach, 1967). It takes one to three rounds in practice.
// The last violated X is the bottleneck.
//
// Cost: one check per round, which stops at four violated sets, and O(V + E) to scale and to look at each set.
// Overflow: the sums of weights and of capacities are checked against 2^62 at the start. p and q are a share and a cut,
// so below it as well; the check runs in 64 bits where p c(E) + q W stays below 2^62, and in 128 bits otherwise.
#pragma once

#include <span>
#include <vector>

#include "cuts/feasibility.h"

namespace coppice {

struct CutBound {
  Wide numerator = 0;               // T = numerator / denominator, in lowest terms
  Wide denominator = 1;             // 0: X cannot be reached at all
  std::vector<Vertex> sink_side;    // the set X that attains it; empty where all weight is at the only terminal
  int rounds = 0;
};

/// Args:
///   terminal: Per vertex, whether every tree must reach it.
///   weight: Per vertex, its share of the data, >= 0 with a positive sum.
///   capacity: Per arc, >= 0.
/// Throws std::overflow_error where the sum of the weights or of the capacities reaches 2^62.
CutBound cut_bound(const Digraph& graph, std::span<const std::uint8_t> terminal, std::span<const Amount> weight,
                   std::span<const Amount> capacity, const StopFlag& stop = {});

}  // namespace coppice
