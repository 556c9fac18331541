#include "rehanging/rehanging.h"

#include <stdexcept>
#include <vector>

#include "testing/testing.h"

using namespace coppice;

namespace {

/// Ranks 0, 1 and 2, each with links to and from the switches 3 and 4; a tree 0 -> 1 -> 2 over switch 3.
struct TwoSwitches {
  TwoSwitches() {
    for (Vertex a : {0, 1, 2})
      for (Vertex b : {3, 4}) src.insert(src.end(), {a, b}), dst.insert(dst.end(), {b, a});
    cost.assign(src.size(), 1.0);
  }

  void remove(Vertex a, Vertex b) {
    for (std::size_t e = 0; e < src.size(); ++e)
      if (src[e] == a && dst[e] == b) {
        src.erase(src.begin() + static_cast<std::ptrdiff_t>(e));
        dst.erase(dst.begin() + static_cast<std::ptrdiff_t>(e));
        cost.pop_back();
        return;
      }
  }

  Damage damage() const { return {{5, src, dst, rank, cost}, {root, weight, phase, start, from, to, path, path_start, nodes}}; }

  std::vector<Vertex> src, dst;
  std::vector<std::int32_t> rank{0, 1, 2, -1, -1};
  std::vector<double> cost;
  std::vector<Vertex> root{0};
  std::vector<Amount> weight{4};
  std::vector<std::int8_t> phase{0};
  std::vector<std::int64_t> start{0, 2};
  std::vector<Vertex> from{0, 1}, to{1, 2};
  std::vector<std::int32_t> path{0, 1};
  std::vector<std::int64_t> path_start{0, 3, 6};
  std::vector<Vertex> nodes{0, 3, 1, 1, 3, 2};
};

Limits limits(const TwoSwitches& network, Amount each, std::int64_t scale = 1, std::int32_t tallest = -1) {
  return {scale, std::vector<Amount>(network.src.size(), each), true, tallest};
}

}  // namespace

TEST(a_broken_hop_is_hung_elsewhere) {
  TwoSwitches network;
  network.remove(3, 2);
  Damage damage = network.damage();
  CHECK((damage.broken == std::vector<std::int64_t>{1}));
  Rehanging attempt(damage, limits(network, 8));
  CHECK(attempt.run());
  CHECK_EQ(attempt.num_moved(), 1u);
  MadeForest made = attempt.forest();
  CHECK((made.edge_dst == std::vector<Vertex>{1, 2}));
  CHECK((made.path_nodes == std::vector<Vertex>{0, 3, 1, 0, 4, 2}));  // lower than below rank 1
  CHECK((made.tree_weight == std::vector<Amount>{4}));
}

TEST(what_does_not_fit_is_split) {
  TwoSwitches network;
  network.remove(0, 4);
  Damage damage = network.damage();
  Rehanging tight(damage, limits(network, 3));
  CHECK(!tight.run());  // only one link leads out of the root
  TwoSwitches whole;
  Damage sound = whole.damage();
  Rehanging attempt(sound, limits(whole, 3));
  CHECK(attempt.run());
  CHECK_EQ(attempt.num_split(), 1u);
  MadeForest made = attempt.forest();
  CHECK_EQ(made.tree_weight[0] + made.tree_weight[1], 4);
  for (Amount load : attempt.load()) CHECK(load >= 0 && load <= 3);
}

TEST(what_cannot_be_hung_low_is_grown_anew) {
  TwoSwitches network;
  network.remove(3, 2);
  network.remove(0, 4);
  Damage damage = network.damage();
  for (std::int32_t tallest : {1, 2}) {  // rank 2 is reached below rank 1 only
    Rehanging attempt(damage, limits(network, 8, 1, tallest));
    CHECK(attempt.run());
    MadeForest made = attempt.forest();
    CHECK((made.edge_src == std::vector<Vertex>{0, 1}));
    CHECK((made.path_nodes == std::vector<Vertex>{0, 3, 1, 1, 4, 2}));
  }
}

TEST(columns_that_do_not_fit_are_refused) {
  TwoSwitches network;
  network.path[0] = 2;
  CHECK_THROWS(std::invalid_argument, network.damage());
  network.path[0] = 0;
  network.weight[0] = Amount{1} << 61;
  CHECK_THROWS(std::overflow_error, network.damage());
  network.weight[0] = 4;
  Damage damage = network.damage();
  Rehanging attempt(damage, limits(network, 3));
  CHECK_THROWS(Cancelled, attempt.run([] { return true; }));
}
