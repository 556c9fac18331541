#include "collnet/forest.h"

#include <algorithm>
#include <string>

#include "collnet/sockets.h"
#include "testing/testing.h"

using namespace coppice::collnet;

namespace {

std::string refusal(const std::string& text) {
  try {
    parse_forest(text, "f");
  } catch (const Failure& failure) {
    return failure.what();
  }
  return "";
}

/// Whether segments cover [begin, end) once, cut between elements.
bool cover(std::vector<Segment> segments, std::size_t begin, std::size_t end, std::size_t element) {
  std::sort(segments.begin(), segments.end(), [](const Segment& a, const Segment& b) { return a.begin < b.begin; });
  for (const Segment& segment : segments) {
    if (segment.begin != begin || segment.bytes == 0 || segment.bytes % element) return false;
    begin += segment.bytes;
  }
  return begin == end;
}

}  // namespace

TEST(forest_reads_files) {
  Forest made = parse_forest("# by hand\ncoppice-collnet 1\nnodes 4\n\ntree 3 -1 0 0 1\ntree 1 1 -1 1 2\n", "f");
  CHECK_EQ(made.nodes, 4);
  CHECK_EQ(made.trees.size(), std::size_t{2});
  CHECK_EQ(made.trees[0].share, std::uint64_t{3});
  CHECK_EQ(made.trees[1].root, 1);
  CHECK(fingerprint(made) != fingerprint(balanced_forest(4)));
}

TEST(forest_refuses_with_the_line) {
  const std::string head = "coppice-collnet 1\nnodes 3\n";
  CHECK(refusal("").find("expected a tree") != std::string::npos);
  CHECK(refusal("nodes 3\n").find("f:1: expected coppice-collnet") == 0);
  CHECK(refusal("coppice-collnet 2\n").find("f:1: expected version 1") == 0);
  CHECK(refusal("coppice-collnet 1\nnodes 0\n").find("f:2:") == 0);
  CHECK(refusal(head + "tree 0 -1 0 0\n").find("share") != std::string::npos);
  CHECK(refusal(head + "tree 1 -1 0\n").find("parents of 3") != std::string::npos);
  CHECK(refusal(head + "tree 1 -1 0 0 0\n").find("no more words") != std::string::npos);
  CHECK(refusal(head + "tree 1 -1 -1 0\n").find("several") != std::string::npos);
  CHECK(refusal(head + "tree 1 1 2 0\n").find("none") != std::string::npos);
  CHECK(refusal(head + "tree 1 -1 2 1\n").find("does not reach") != std::string::npos);
  CHECK(refusal(head + "tree 1 -1 0 3\n").find("f:3: expected parents") == 0);
  CHECK(refusal(head + "wood 1 -1 0 0\n").find("found wood") != std::string::npos);
}

TEST(forest_balanced_loads_all_nodes_alike) {
  for (int nodes : {1, 2, 3, 8, 16}) {
    Forest made = balanced_forest(nodes);
    CHECK_EQ(made.trees.size(), static_cast<std::size_t>(nodes));
    std::vector<int> edges(static_cast<std::size_t>(nodes), 0);
    for (const Tree& tree : made.trees)
      for (int node = 0; node < nodes; node++)
        if (tree.parent[node] >= 0) edges[node]++, edges[tree.parent[node]]++;
    for (int count : edges) CHECK_EQ(count, 2 * (nodes - 1));
  }
  CHECK_EQ(balanced_forest(40).trees.size(), std::size_t{16});
}

TEST(forest_views_agree_on_the_way) {
  Forest made = balanced_forest(7);
  for (const Tree& tree : made.trees)
    for (int from = 0; from < 7; from++)
      for (int to = 0; to < 7; to++) {
        int at = from, steps = 0;
        while (at != to && steps < 7) {
          View view = view_of(tree, at);
          at = view.neighbours[static_cast<std::size_t>(view.toward[to])];
          steps++;
        }
        CHECK_EQ(at, to);
      }
}

TEST(forest_segments_cover_everything) {
  for (int nodes : {2, 3, 7})
    for (std::size_t elements : {0, 1, 5, 4096, 100001}) {
      Forest made = balanced_forest(nodes);
      for (std::size_t element : {1, 2, 8}) {
        CHECK(cover(all_reduce_segments(made, elements * element, element, 3), 0, elements * element, element));
        std::size_t block = elements * element, all = block * static_cast<std::size_t>(nodes);
        std::size_t begin = all / element / 3 * element, end = all / element / 5 * 4 * element;
        if (begin > end) continue;
        auto window = block_segments(made, block, begin, end - begin, element, 1);
        CHECK(cover(window, begin, end, element));
        for (const Segment& segment : window) CHECK_EQ(segment.begin / block, static_cast<std::size_t>(segment.root));
      }
    }
  Forest one = parse_forest("coppice-collnet 1\nnodes 2\ntree 3 -1 0\ntree 1 1 -1\n", "f");
  auto shares = all_reduce_segments(one, 4 << 20, 4, 0);
  CHECK_EQ(shares[0].bytes, std::size_t{3 << 20});
  CHECK_EQ(shares[1].root, 1);
  Forest lone = parse_forest("coppice-collnet 1\nnodes 2\ntree 1 -1 0\n", "f");
  CHECK_EQ(block_segments(lone, 100, 100, 100, 4, 0)[0].root, 1);  // turned to the block's node
}

TEST(sockets_choose_interfaces) {
  CHECK(chosen("eth0", "eth"));
  CHECK(!chosen("eth0", "=eth"));
  CHECK(chosen("eth1", "=eth0,eth1"));
  CHECK(!chosen("eth1", "^eth"));
  CHECK(chosen("ib0", "^eth,docker"));
  CHECK(!chosen("eth1", "^=eth1"));
  CHECK(chosen("eth10", "^=eth1"));
}
