#include "graph/tour.h"

#include <algorithm>
#include <limits>
#include <numeric>
#include <stdexcept>

#include "testing/networks.h"
#include "testing/testing.h"

using namespace coppice;
using namespace coppice::testing;

namespace {

constexpr double kNone = std::numeric_limits<double>::infinity();

double length(const std::vector<std::int32_t>& tour, const std::vector<double>& cost) {
  double sum = 0;
  for (std::size_t i = 0; i < tour.size(); ++i) sum += cost[tour[i] * tour.size() + tour[(i + 1) % tour.size()]];
  return sum;
}

}  // namespace

TEST(a_tour_goes_the_cheap_way_round) {
  CHECK(cheapest_tour(3, std::vector<double>{9, 5, 1, 1, 9, 5, 5, 1, 9}) == (std::vector<std::int32_t>{0, 2, 1}));
  CHECK(cheapest_tour(2, std::vector<double>{0, 3, 4, 0}) == (std::vector<std::int32_t>{0, 1}));
}

TEST(there_is_no_tour_where_a_point_is_not_left) {
  CHECK(cheapest_tour(3, std::vector<double>{9, 5, 1, kNone, kNone, kNone, 5, 1, 9}).empty());
  CHECK(cheapest_tour(2, std::vector<double>{0, kNone, 4, 0}).empty());
}

TEST(no_order_of_the_points_is_cheaper) {
  Dice dice(5);
  for (int round = 0; round < 60; ++round) {
    const std::int32_t points = 2 + dice(6);
    std::vector<double> cost(static_cast<std::size_t>(points) * points);
    for (double& each : cost) each = dice(5) ? dice(20) : kNone;
    std::vector<std::int32_t> order(static_cast<std::size_t>(points));
    std::iota(order.begin(), order.end(), 0);
    double least = kNone;
    do least = std::min(least, length(order, cost));
    while (std::next_permutation(order.begin() + 1, order.end()));
    const auto tour = cheapest_tour(points, cost);
    CHECK_EQ(tour.empty() ? kNone : length(tour, cost), least);
    if (!tour.empty()) CHECK_EQ(tour.front(), 0);
  }
}

TEST(costs_that_do_not_fit_are_refused) {
  CHECK_THROWS(std::invalid_argument, cheapest_tour(1, std::vector<double>{0}));
  CHECK_THROWS(std::invalid_argument, cheapest_tour(17, std::vector<double>(289)));
  CHECK_THROWS(std::invalid_argument, cheapest_tour(2, std::vector<double>{0, 1, 2}));
  CHECK_THROWS(std::invalid_argument, cheapest_tour(2, std::vector<double>{0, 1, kNone - kNone, 0}));
}
