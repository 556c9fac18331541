#include "symmetry/symmetry.h"

#include <algorithm>
#include <map>
#include <random>
#include <stdexcept>

#include "testing/testing.h"

using namespace coppice;

namespace {

struct PresetNetwork {
  std::vector<Vertex> tail, head;
  std::vector<std::int32_t> label, colour;
  std::vector<std::uint8_t> compute;

  Vertex add(bool is_compute) {
    colour.push_back(is_compute ? 0 : 1);
    compute.push_back(is_compute);
    return static_cast<Vertex>(colour.size()) - 1;
  }
  void link(Vertex a, Vertex b, std::int32_t rate) {
    tail.insert(tail.end(), {a, b});
    head.insert(head.end(), {b, a});
    label.insert(label.end(), {rate, rate});
  }
  Digraph graph() const { return Digraph(static_cast<Vertex>(colour.size()), tail, head); }
};

PresetNetwork preset_torus(const std::vector<int>& dims, const std::vector<int>& rates) {
  PresetNetwork network;
  int n = 1;
  for (int d : dims) n *= d;
  for (int v = 0; v < n; ++v) network.add(true);
  for (int v = 0; v < n; ++v) {
    int stride = 1;
    for (std::size_t k = 0; k < dims.size(); stride *= dims[k++]) {
      int at = v / stride % dims[k];
      if (dims[k] == 2 && at == 1) continue;
      network.link(v, v + ((at + 1) % dims[k] - at) * stride, rates[k]);
    }
  }
  return network;
}

PresetNetwork boxes(int num_boxes, int gpus, int planes) {
  PresetNetwork network;
  for (int p = 0; p < planes; ++p) network.add(false);
  for (int b = 0; b < num_boxes; ++b) {
    Vertex local = network.add(false);
    for (int g = 0; g < gpus; ++g) {
      Vertex gpu = network.add(true), nic = network.add(false);
      network.link(gpu, local, 300);
      network.link(gpu, nic, 25);
      network.link(nic, g % planes, 25);
    }
  }
  return network;
}

/// Finds the symmetry and checks from the definitions that it is what it claims to be.
Symmetry certified(const PresetNetwork& network) {
  Digraph graph = network.graph();
  Symmetry s = find_symmetry(graph, network.colour, network.label, network.compute);
  Vertex n = graph.num_vertices();
  std::map<std::pair<Vertex, Vertex>, Arc> arcs;
  for (Arc e = 0; e < graph.num_arcs(); ++e) arcs[{graph.tail(e), graph.head(e)}] = e;
  std::vector<VertexMap> elements(1, VertexMap(n));  // by index
  for (Vertex v = 0; v < n; ++v) elements[0][v] = v;
  for (std::size_t i = 0; i < s.generators.size(); ++i) {
    const VertexMap& g = s.generators[i];
    for (Vertex v = 0; v < n; ++v) {
      CHECK_EQ(network.colour[v], network.colour[g[v]]);
      CHECK_EQ(s.node_orbit[v], s.node_orbit[g[v]]);
      for (const VertexMap& h : s.generators) CHECK_EQ(g[h[v]], h[g[v]]);
    }
    for (auto [ends, e] : arcs) {
      auto image = arcs.find({g[ends.first], g[ends.second]});
      CHECK(image != arcs.end() && network.label[image->second] == network.label[e]);
      if (image != arcs.end()) CHECK_EQ(s.link_orbit[image->second], s.link_orbit[e]);
    }
    std::size_t block = elements.size();
    for (std::size_t c = block; c < block * static_cast<std::size_t>(s.orders[i]); ++c) {
      elements.push_back(elements[c - block]);
      for (Vertex& v : elements.back()) v = g[v];
    }
    for (std::size_t c = 0; c < block; ++c)
      for (Vertex v = 0; v < n; ++v) CHECK_EQ(g[elements[elements.size() - block + c][v]], elements[c][v]);
  }
  for (std::size_t c = 1; c < elements.size(); ++c)
    for (Vertex v = 0; v < n; ++v) CHECK(!network.compute[v] || elements[c][v] != v);
  std::map<std::int32_t, Vertex> first;
  for (Vertex v = 0; v < n; ++v) {
    first.emplace(s.node_orbit[v], v);
    CHECK_EQ(elements[static_cast<std::size_t>(s.node_element[v])][first[s.node_orbit[v]]], v);
  }
  std::map<std::int32_t, std::int64_t> size;
  for (std::int32_t orbit : s.link_orbit) ++size[orbit];
  for (Arc e = 0; e < graph.num_arcs(); ++e) {
    CHECK_EQ(s.link_orbit_size[e], size[s.link_orbit[e]]);
    CHECK_EQ(static_cast<std::int64_t>(elements.size()) % size[s.link_orbit[e]], 0);
  }
  return s;
}

std::int64_t order_of(const Symmetry& symmetry) {
  std::int64_t order = 1;
  for (std::int64_t n : symmetry.orders) order *= n;
  return order;
}

}  // namespace

TEST(tori_are_transitive) {
  std::vector<std::vector<int>> shapes{{8}, {7}, {4, 6}, {4, 4}, {2, 3}, {2, 2, 2, 2}, {3, 3, 3}, {5, 4, 2}};
  for (const auto& dims : shapes) {
    std::int64_t n = 1;
    for (int d : dims) n *= d;
    CHECK_EQ(order_of(certified(preset_torus(dims, std::vector<int>(dims.size(), 1)))), n);
    std::vector<int> rates;
    for (std::size_t k = 0; k < dims.size(); ++k) rates.push_back(static_cast<int>(k) + 1);
    CHECK_EQ(order_of(certified(preset_torus(dims, rates))), n);
  }
}

TEST(boxes_around_hubs_are_transitive) {
  for (int planes : {1, 2, 8}) {
    Symmetry s = certified(boxes(4, 8, planes));
    CHECK_EQ(order_of(s), 32);
    CHECK_EQ(1 + *std::max_element(s.link_orbit.begin(), s.link_orbit.end()), 6);
  }
}

TEST(spines_rotate_with_the_hosts) {
  PresetNetwork network;  // 4 leaves with 4 hosts each, 4 spines
  for (int spine = 0; spine < 4; ++spine) network.add(false);
  for (int leaf = 0; leaf < 4; ++leaf) {
    Vertex at = network.add(false);
    for (Vertex spine = 0; spine < 4; ++spine) network.link(at, spine, 2);
    for (int host = 0; host < 4; ++host) network.link(network.add(true), at, 1);
  }
  Symmetry s = certified(network);
  CHECK_EQ(order_of(s), 16);
  CHECK_EQ(1 + *std::max_element(s.link_orbit.begin(), s.link_orbit.end()), 4);
}

TEST(circulants_and_full_dimensions_are_transitive) {
  for (const std::vector<int>& jumps : std::vector<std::vector<int>>{{1, 2}, {2, 3}, {1, 5}, {1, 4, 6}}) {
    PresetNetwork network;
    for (int v = 0; v < 13; ++v) network.add(true);
    for (int v = 0; v < 13; ++v)
      for (int jump : jumps) network.link(v * 5 % 13, (v + jump) * 5 % 13, 1);
    CHECK_EQ(order_of(certified(network)), 13);
  }
  PresetNetwork network;  // 6 x 10, linked where one coordinate differs; ids scrambled
  for (int v = 0; v < 60; ++v) network.add(true);
  for (int a = 0; a < 60; ++a)
    for (int b = 0; b < a; ++b)
      if ((a % 6 == b % 6) != (a / 6 == b / 6)) network.link(a * 7 % 60, b * 7 % 60, 1);
  CHECK_EQ(order_of(certified(network)), 60);
}

TEST(one_slow_link_leaves_nothing) {
  PresetNetwork network = boxes(4, 8, 2);
  network.label[4] = network.label[5] = 12;
  CHECK_EQ(order_of(certified(network)), 1);
}

TEST(disconnected_copies_are_exchanged) {
  PresetNetwork network;
  for (int copy = 0; copy < 3; ++copy) {
    Vertex a = network.add(true), b = network.add(true), c = network.add(false);
    network.link(a, b, 1);
    network.link(b, c, 2);
  }
  CHECK_EQ(order_of(certified(network)), 3);
}

TEST(random_graphs_with_a_planted_rotation_are_certified) {
  std::mt19937 random(3);
  auto pick = [&](int n) { return static_cast<int>(random() % static_cast<unsigned>(n)); };
  for (int trial = 0; trial < 200; ++trial) {
    int length = 2 + pick(4), cycles = 1 + pick(3), n = length * cycles, switches = pick(3);
    PresetNetwork network;
    for (int v = 0; v < n; ++v) network.add(true);
    for (int v = 0; v < switches; ++v) network.add(false);
    std::map<std::pair<Vertex, Vertex>, std::int32_t> links;
    for (int i = pick(6); i >= 0; --i) {
      Vertex a = pick(n + switches), b = pick(n + switches);
      std::int32_t rate = pick(2);
      if (a == b) continue;
      for (int step = 0; step < length; ++step) {
        auto image = [&](Vertex v) { return v < n ? v / length * length + (v + step) % length : v; };
        links[{image(a), image(b)}] = rate;
      }
    }
    for (auto [ends, rate] : links) {
      network.tail.push_back(ends.first);
      network.head.push_back(ends.second);
      network.label.push_back(rate);
    }
    CHECK(order_of(certified(network)) > 1);
  }
}

TEST(no_compute_vertices_no_links_and_one_vertex_are_fine) {
  PresetNetwork network;
  CHECK_EQ(order_of(certified(network)), 1);
  network.add(true);
  CHECK_EQ(order_of(certified(network)), 1);
  network.add(true);
  CHECK_EQ(order_of(certified(network)), 2);
  PresetNetwork switches;
  switches.link(switches.add(false), switches.add(false), 1);
  CHECK_EQ(order_of(certified(switches)), 1);
}

TEST(malformed_columns_are_refused) {
  PresetNetwork network = preset_torus({3}, {1});
  Digraph graph = network.graph();
  std::vector<std::int32_t> short_label(1, 0), negative(3, -1);
  CHECK_THROWS(std::invalid_argument, find_symmetry(graph, network.colour, short_label, network.compute));
  CHECK_THROWS(std::invalid_argument, find_symmetry(graph, negative, network.label, network.compute));
  network.link(0, 1, 1);
  CHECK_THROWS(std::invalid_argument, find_symmetry(network.graph(), network.colour, network.label, network.compute));
}
