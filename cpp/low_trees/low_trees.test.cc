#include "low_trees/low_trees.h"

#include <limits>
#include <stdexcept>
#include <vector>

#include "testing/testing.h"

using namespace coppice;

namespace {

constexpr double kNone = std::numeric_limits<double>::infinity();

/// A line 0 - 1 - 2, with a dear arc from 0 to 2.
const std::vector<double> kLine{kNone, 1, 5, 1, kNone, 1, 5, 1, kNone};
const std::vector<double> kFar{0, 1, 2};

}  // namespace

TEST(a_low_tree_takes_the_cheapest_paths_that_its_height_allows) {
  const LowTree deep = grow_low_tree({3, kLine}, kFar, 0, 2, -1);
  CHECK(deep.sender == std::vector<std::int32_t>({0, 1}));
  CHECK(deep.receiver == std::vector<std::int32_t>({1, 2}));
  const LowTree flat = grow_low_tree({3, kLine}, kFar, 0, 1, 0);
  CHECK(flat.sender == std::vector<std::int32_t>({0, 0}));
  CHECK(flat.receiver == std::vector<std::int32_t>({2, 1}));
}

TEST(a_rank_that_does_not_fit_leaves_no_tree) {
  const std::vector<double> line{kNone, 1, kNone, 1, kNone, 1, kNone, 1, kNone};
  CHECK(grow_low_tree({3, line}, kFar, 0, 1, -1).receiver.empty());
  CHECK(grow_low_tree({1, std::vector<double>{kNone}}, std::vector<double>{0}, 0, 1, -1).receiver.empty());
}

TEST(ranks_are_hung_below_cheaper_ones_within_the_height) {
  const LowTree star{{0, 0}, {1, 2}};
  CHECK(rehung_low_tree({3, kLine}, star, 0, 2).sender == std::vector<std::int32_t>({0, 1}));
  CHECK(rehung_low_tree({3, kLine}, star, 0, 1).sender == std::vector<std::int32_t>({0, 0}));
}

TEST(columns_of_low_trees_have_to_fit_together) {
  CHECK_THROWS(std::invalid_argument, grow_low_tree({2, kLine}, kFar, 0, 1, -1));
  CHECK_THROWS(std::invalid_argument, grow_low_tree({3, kLine}, kFar, 3, 1, -1));
  CHECK_THROWS(std::invalid_argument, grow_low_tree({3, kLine}, kFar, 0, 0, -1));
  CHECK_THROWS(std::invalid_argument, rehung_low_tree({3, kLine}, {{0}, {3}}, 0, 1));
  CHECK_THROWS(std::invalid_argument, rehung_low_tree({3, kLine}, {{1, 2}, {2, 1}}, 0, 2));
}
