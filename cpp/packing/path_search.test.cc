#include "packing/path_search.h"

#include "testing/testing.h"
#include "testing/networks.h"

using namespace coppice;
using namespace coppice::testing;

namespace {

struct Searching {
  explicit Searching(Network given)
      : network(std::move(given)),
        graph(network.graph()),
        action(GroupAction::trivial(graph)),
        cuts(graph, action),
        residual(network.capacity),
        tree(graph, action, network.terminal, cuts, residual),
        search(graph, network.terminal, cuts) {}

  /// Whether some simple path works, by trying them all.
  bool exists() {
    for (Vertex x : tree.reached_list()) {
      std::vector<Arc> path;
      std::vector<std::uint8_t> on_path(network.num_vertices(), 0);
      if (exists_from(x, path, on_path)) return true;
    }
    return false;
  }

  Network network;
  Digraph graph;
  GroupAction action;
  CutFamily cuts;
  std::vector<Amount> residual;
  TreeGrower tree;
  PathSearch search;

 private:
  bool exists_from(Vertex v, std::vector<Arc>& path, std::vector<std::uint8_t>& on_path) {
    on_path[v] = 1;
    for (Arc e : graph.out(v)) {
      Vertex to = graph.head(e);
      if (on_path[to] || tree.reached(to)) continue;
      path.push_back(e);
      bool lands = network.terminal[to];
      if (tree.has_room(path) && cuts.allows(path, lands ? to : -1) && (lands || exists_from(to, path, on_path))) return true;
      path.pop_back();
    }
    on_path[v] = 0;
    return false;
  }
};

}  // namespace

TEST(paths_are_found_exactly_where_there_are_any) {
  Dice dice(21);
  int found = 0, none = 0;
  for (int trial = 0; trial < 3000; ++trial) {
    RandomNetwork shape;
    shape.terminals = 2 + dice(4), shape.switches = 1 + dice(6), shape.cycles = dice(6);
    Network network = random_network(shape, dice);
    for (Amount& c : network.capacity) c = dice(3);
    Searching s(network);
    for (int i = dice(9); i > 0; --i) {
      std::vector<Vertex> set;
      bool counts = false;
      for (Vertex v = 0; v < network.num_vertices(); ++v)
        if (dice(2)) set.push_back(v), counts |= network.terminal[v] != 0;
      if (counts) s.cuts.add(set, dice(3));
    }
    s.tree.start(0, 1 + dice(2));
    for (;;) {
      std::vector<Arc> path = s.search.find(s.tree, {}).value();
      if (s.tree.spans()) break;
      CHECK_EQ(!path.empty(), s.exists());
      ++(path.empty() ? none : found);
      if (path.empty()) break;
      CHECK(s.tree.reached(network.tail[path.front()]) && !s.tree.reached(network.head[path.back()]));
      for (std::size_t i = 0; i + 1 < path.size(); ++i) {
        CHECK_EQ(network.head[path[i]], network.tail[path[i + 1]]);
        CHECK(!network.terminal[network.head[path[i]]]);
      }
      CHECK(s.tree.has_room(path) && s.cuts.allows(path, network.head[path.back()]));
      s.tree.extend(path);
    }
  }
  CHECK(found > 1000 && none > 500);
}

TEST(a_longer_way_that_spares_a_cut_is_kept) {
  // u is met first by way of v, which enters the set {v, far}; from u the set is entered again, and once is all it bears.
  Network network;
  Vertex root = network.add(true), far = network.add(true);
  Vertex s = network.add(false), t = network.add(false), u = network.add(false), v = network.add(false);
  network.arc(root, v, 1), network.arc(v, u, 1);                          // enters the set and leaves it
  network.arc(root, s, 1), network.arc(s, t, 1), network.arc(t, u, 1);  // does not
  network.arc(u, far, 1);
  Searching search(network);
  search.cuts.add({v, far}, 0);
  search.tree.start(root, 1);
  CHECK((search.search.find(search.tree, {}).value() == std::vector<Arc>{2, 3, 4, 5}));
}

TEST(a_mesh_of_switches_without_a_way_out_is_left_soon) {
  Network network;
  Vertex root = network.add(true), far = network.add(true), first = network.num_vertices();
  for (int i = 0; i < 40; ++i) network.add(false);
  for (Vertex a = first; a < first + 40; ++a)
    for (Vertex b = first; b < a; ++b) network.link(a, b, 1);
  network.arc(root, first, 1), network.arc(far, first, 1);
  Searching s(network);
  s.cuts.add({far, first, first + 1, first + 2}, 1);
  s.tree.start(root, 1);
  int polls = 0;
  CHECK(s.search.find(s.tree, [&] { return ++polls > 100000; }).value().empty());
  CHECK_THROWS(Cancelled, s.search.find(s.tree, [] { return true; }));
}
