#include "verification/forest_walk.h"

#include <functional>
#include <vector>

#include "testing/testing.h"

using namespace coppice;

namespace {

/// Ranks 0, 1 and 2 on a star around switch 3; a broadcast tree 0 -> 1 -> 2 and a reduce tree to 0 along 2 -> 1 -> 0.
struct Star {
  std::vector<Vertex> src{0, 1, 2, 3, 3, 3}, dst{3, 3, 3, 0, 1, 2};
  std::vector<std::int32_t> rank{0, 1, 2, -1};
  std::vector<Vertex> root{0, 0};
  std::vector<Amount> weight{5, 7};
  std::vector<std::int8_t> phase{0, 1};
  std::vector<std::int64_t> start{0, 2, 4};
  std::vector<Vertex> from{0, 1, 2, 1}, to{1, 2, 1, 0};
  std::vector<std::int32_t> path{0, 1, 2, 3};
  std::vector<std::int64_t> path_start{0, 3, 6, 9, 12};
  std::vector<Vertex> nodes{0, 3, 1, 1, 3, 2, 2, 3, 1, 1, 3, 0};

  std::optional<WalkedForest> walk() const {
    return walk_forest({4, src, dst, rank, root, weight, phase, start, from, to, path, path_start, nodes});
  }
};

bool passes(const std::function<void(Star&)>& change) {
  Star star;
  change(star);
  return star.walk().has_value();
}

}  // namespace

TEST(a_forest_is_counted) {
  auto found = Star{}.walk();
  CHECK(found.has_value());
  CHECK((found->load == std::vector<Amount>{5, 12, 7, 7, 12, 5}));
  CHECK((found->height == std::vector<std::int32_t>{2, 2}));
}

TEST(every_rule_of_trees_is_looked_at) {
  CHECK(passes([](Star&) {}));
  CHECK(!passes([](Star& s) { s.root[0] = 3; }));                       // a switch
  CHECK(!passes([](Star& s) { s.root[0] = 1; }));                       // a rank that is entered
  CHECK(!passes([](Star& s) { s.weight[1] = 0; }));
  CHECK(!passes([](Star& s) { s.weight[1] = Amount{1} << 61; }));       // loads could overflow
  CHECK(!passes([](Star& s) { s.phase[0] = 2; }));
  CHECK(!passes([](Star& s) { s.phase[0] = 1; }));                      // the order is of a broadcast
  CHECK(!passes([](Star& s) { s.start[1] = 1; }));                      // too few edges
  CHECK(!passes([](Star& s) { s.start.back() = 3; }));
  CHECK(!passes([](Star& s) { std::swap(s.from[0], s.from[1]), std::swap(s.to[0], s.to[1]), std::swap(s.path[0], s.path[1]); }));
  CHECK(!passes([](Star& s) { s.from[1] = 0; }));                       // not where its path begins
  CHECK(!passes([](Star& s) { s.to[1] = 1; }));                         // not where its path ends
  CHECK(!passes([](Star& s) { s.from[1] = 0, s.to[1] = 1, s.path[1] = 0; }));  // entered twice, another one never
  CHECK(!passes([](Star& s) { s.path[0] = -1; }));
  CHECK(!passes([](Star& s) { s.path[0] = 4; }));
  CHECK(!passes([](Star& s) { s.path.pop_back(); }));
}

TEST(every_rule_of_paths_is_looked_at) {
  CHECK(!passes([](Star& s) { s.nodes[1] = 2; }));                      // no link from 0 to 2, and a rank
  CHECK(!passes([](Star& s) { s.src.push_back(0), s.dst.push_back(2), s.src.push_back(2), s.dst.push_back(1), s.nodes[1] = 2; }));
  CHECK(!passes([](Star& s) { s.nodes[1] = 9; }));
  CHECK(!passes([](Star& s) { s.nodes[1] = -1; }));
  CHECK(!passes([](Star& s) { s.path_start[1] = 1; }));                 // a path of one node
  CHECK(!passes([](Star& s) { s.path_start.back() = 11; }));
  CHECK(!passes([](Star& s) { s.src[0] = 1, s.dst[0] = 0; }));          // the link from 0 is gone
}
