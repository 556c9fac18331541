#include "cuts/bound.h"

#include <algorithm>
#include <numeric>

namespace coppice {

namespace {

struct Ratio {
  Wide numerator, denominator;
  bool operator<(const Ratio& other) const { return is_less(numerator, denominator, other.numerator, other.denominator); }
};

class Newton {
 public:
  Newton(const Digraph& graph, std::span<const std::uint8_t> terminal, std::span<const Amount> weight,
         std::span<const Amount> capacity, const StopFlag& stop)
      : graph_(graph), terminal_(terminal), weight_(weight), capacity_(capacity), stop_(stop), inside_(graph.num_vertices(), 0) {
    total_weight_ = std::accumulate(weight.begin(), weight.end(), Wide{0});
    total_capacity_ = std::accumulate(capacity.begin(), capacity.end(), Wide{0});
    require_below_limit(std::max(total_weight_, total_capacity_),
                        "the sums of all weights and of all capacities must stay below 2^62: round them");
  }

  CutBound solve() {
    for (Vertex v = 0; v < graph_.num_vertices(); ++v)
      if (terminal_[v]) consider({v});
    if (best_.numerator > 0 && best_.denominator > 0) {
      while (best_.denominator > 0 && improve()) {
      }
    }
    return {best_.numerator, best_.denominator, std::move(witness_), rounds_};
  }

 private:
  // Takes the ratio of X if it is the largest so far.
  void consider(std::vector<Vertex> set) {
    for (Vertex v : set) inside_[v] = 1;
    Wide weight = 0, entering = 0;
    for (Vertex v : set) {
      weight += weight_[v];
      for (Arc e : graph_.in(v))
        if (!inside_[graph_.tail(e)]) entering += capacity_[e];
    }
    for (Vertex v : set) inside_[v] = 0;
    Ratio ratio{total_weight_ - weight, entering};
    if (ratio.numerator == 0) return;  // X holds all the data: nothing has to enter
    Wide common = gcd(ratio.numerator, ratio.denominator);
    ratio.numerator /= common, ratio.denominator /= common;
    bool unreachable = best_.denominator == 0;
    if (unreachable || (ratio.denominator > 0 && !(best_ < ratio))) return;
    best_ = ratio;
    witness_ = std::move(set);
  }

  // One check at the current ratio; true if it found a larger one.
  bool improve() {
    ++rounds_;
    Wide p = best_.numerator, q = best_.denominator;
    bool narrow = p * total_capacity_ + q * total_weight_ < kSumLimit;
    auto sets = narrow ? violated<Amount>(p, q) : violated<Wide>(p, q);
    for (auto& set : sets) consider(std::move(set));
    return !sets.empty();
  }

  template <class Int>
  std::vector<std::vector<Vertex>> violated(Wide p, Wide q) {
    std::vector<Int> capacity(capacity_.size()), supply(weight_.size());
    for (std::size_t e = 0; e < capacity.size(); ++e) capacity[e] = static_cast<Int>(p * capacity_[e]);
    for (std::size_t v = 0; v < supply.size(); ++v) supply[v] = static_cast<Int>(q * weight_[v]);
    FeasibilityCheck<Int> check(graph_, terminal_);
    // A few violated sets are enough for a better ratio; certifying the rest would be wasted.
    return check.violated(capacity, supply, static_cast<Int>(q * total_weight_), 4, stop_);
  }

  const Digraph& graph_;
  std::span<const std::uint8_t> terminal_;
  std::span<const Amount> weight_, capacity_;
  const StopFlag& stop_;
  std::vector<std::uint8_t> inside_;
  Wide total_weight_ = 0, total_capacity_ = 0;
  Ratio best_{0, 1};
  std::vector<Vertex> witness_;
  int rounds_ = 0;
};

}  // namespace

CutBound cut_bound(const Digraph& graph, std::span<const std::uint8_t> terminal, std::span<const Amount> weight,
                   std::span<const Amount> capacity, const StopFlag& stop) {
  return Newton(graph, terminal, weight, capacity, stop).solve();
}

}  // namespace coppice
