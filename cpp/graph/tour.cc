#include "graph/tour.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <limits>
#include <stdexcept>

namespace coppice {

std::vector<std::int32_t> cheapest_tour(std::int32_t points, std::span<const double> cost) {
  if (points < 2 || points > kMostTourPoints) throw std::invalid_argument("a tour must have 2 to 16 points");
  const auto n = static_cast<std::size_t>(points), last = n - 1;
  if (cost.size() != n * n) throw std::invalid_argument("cost must have an entry per pair of points");
  if (std::ranges::any_of(cost, [](double each) { return std::isnan(each); }))
    throw std::invalid_argument("costs must be numbers");
  constexpr double kNone = std::numeric_limits<double>::infinity();
  constexpr std::size_t kWidth = kMostTourPoints;  // rows of a known length are added up side by side
  using Row = std::array<double, kWidth>;
  std::vector<Row> step(n);
  for (std::size_t i = 0; i < n; ++i) {
    step[i].fill(kNone);
    std::ranges::copy(cost.subspan(i * n, n), step[i].begin());
  }
  const std::size_t subsets = std::size_t{1} << last, whole = subsets - 1;
  Row none;
  none.fill(kNone);
  std::vector<Row> least(subsets, none);
  for (std::size_t j = 0; j < last; ++j) least[std::size_t{1} << j][j] = step[last][j];
  for (std::size_t subset = 1; subset < whole; ++subset) {
    Row onward = none;
    for (std::size_t members = subset; members; members &= members - 1) {
      const auto i = static_cast<std::size_t>(std::countr_zero(members));
      const double reached = least[subset][i];
      for (std::size_t j = 0; j < kWidth; ++j) {
        const double through = reached + step[i][j];
        onward[j] = through < onward[j] ? through : onward[j];
      }
    }
    for (std::size_t others = whole ^ subset; others; others &= others - 1) {
      const auto j = static_cast<std::size_t>(std::countr_zero(others));
      double& known = least[subset | std::size_t{1} << j][j];
      known = std::min(known, onward[j]);
    }
  }
  // From the end back to the begin: which point came before.
  std::vector<std::int32_t> tour;
  for (std::size_t subset = whole, next = last; subset;) {
    std::size_t before = 0;
    for (std::size_t i = 1; i < last; ++i)
      if (least[subset][i] + step[i][next] < least[subset][before] + step[before][next])
        before = i;
    if (least[subset][before] + step[before][next] == kNone) return {};
    tour.push_back(static_cast<std::int32_t>(before));
    subset ^= std::size_t{1} << before;
    next = before;
  }
  tour.push_back(points - 1);
  std::ranges::reverse(tour);
  std::ranges::rotate(tour, std::ranges::find(tour, 0));
  return tour;
}

}  // namespace coppice
