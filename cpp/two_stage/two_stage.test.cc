#include "two_stage/two_stage.h"

#include <algorithm>
#include <stdexcept>

#include "testing/testing.h"

using namespace coppice;

namespace {

/// Two boxes of two. Member m of box b has links 8 b + 4 m ..: to and from the box's switch (rate `inside`), to and from its
/// rail's switch (rate 1).
BoxNetwork two_by_two(Amount inside) {
  BoxNetwork result;
  result.boxes = result.width = 2;
  result.near_start.push_back(0);
  for (int s = 0; s < 2; ++s)
    for (int i = 0; i < 2; ++i)
      for (int k = 0; k < 2; ++k) {
        if (i != k) result.near.push_back(8 * s + 4 * i), result.near.push_back(8 * s + 4 * k + 1);
        result.near_start.push_back(static_cast<std::int64_t>(result.near.size()));
      }
  result.far_start.push_back(0);
  for (int s = 0; s < 2; ++s)
    for (int t = 0; t < 2; ++t)
      for (int k = 0; k < 2; ++k) {
        if (s != t) result.far.push_back(8 * s + 4 * k + 2), result.far.push_back(8 * t + 4 * k + 3);
        result.far_start.push_back(static_cast<std::int64_t>(result.far.size()));
      }
  for (int member = 0; member < 4; ++member)
    for (Amount rate : {inside, inside, Amount{1}, Amount{1}}) result.capacity.push_back(rate);
  return result;
}

/// All from position 0 to position 2, on the rail of both.
std::vector<Amount> one_block(Amount amount) {
  std::vector<Amount> demand(16, 0);
  demand[2] = amount;
  return demand;
}

Amount total_of(const Parts& parts) {
  Amount sum = 0;
  for (Amount each : parts.amount) sum += each;
  return sum;
}

}  // namespace

TEST(a_balanced_tile_halves_the_load_of_the_one_rail) {
  TwoStage plan(two_by_two(8), one_block(6), 2);
  plan.fill(Deal::kTarget);
  CHECK_EQ(plan.worst(), 12.0);
  plan.fill(Deal::kBalanced);
  CHECK_EQ(plan.worst(), 6.0);
  Parts parts = plan.parts();
  CHECK((parts.way == std::vector<std::int32_t>{0, 1}));
  CHECK((parts.amount == std::vector<Amount>{6, 6}));
}

TEST(every_deal_carries_every_block) {
  std::vector<Amount> demand{9, 3, 5, 7, 0, 9, 1, 0, 4, 2, 9, 6, 8, 8, 1, 9};
  for (Deal deal : {Deal::kBalanced, Deal::kKept, Deal::kEven, Deal::kTarget, Deal::kDirect}) {
    TwoStage plan(two_by_two(8), demand, 3);
    plan.fill(deal);
    Parts parts = plan.parts();
    CHECK_EQ(total_of(parts), Amount{45 * 3});
    plan.sweep(50);
    CHECK_EQ(total_of(plan.parts()), Amount{45 * 3});
  }
}

TEST(a_sweep_takes_back_what_balance_costs_inside_a_box) {
  // A hop inside a box is half as fast as a NIC: 2/3 of the block keep the rail of both ends.
  BoxNetwork network = two_by_two(1);
  for (std::size_t e = 0; e < network.capacity.size(); ++e)
    if (e % 4 >= 2) network.capacity[e] = 2;
  TwoStage plan(network, one_block(3000), 1);
  plan.fill(Deal::kBalanced);
  CHECK_EQ(plan.worst(), 1500.0);
  for (int round = 0; round < 40; ++round) plan.sweep(200);
  CHECK(plan.worst() < 1010 && plan.worst() >= 1000);
}

TEST(two_stages_refuse_what_does_not_fit) {
  CHECK_THROWS(std::invalid_argument, TwoStage(two_by_two(8), std::vector<Amount>(9, 1), 1));
  CHECK_THROWS(std::overflow_error, TwoStage(two_by_two(8), one_block(Amount{1} << 50), 1 << 20));
  BoxNetwork torn = two_by_two(8);
  torn.far[0] = 99;
  CHECK_THROWS(std::invalid_argument, TwoStage(torn, one_block(1), 1));
}
