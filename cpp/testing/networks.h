// Networks for tests and benchmarks: random ones from a seed, tori with their translations, and machines.
#pragma once

#include <algorithm>
#include <cstddef>
#include <numeric>
#include <random>
#include <stdexcept>
#include <utility>
#include <vector>

#include "cuts/bound.h"
#include "symmetry/group_action.h"

namespace coppice::testing {

/// A graph with capacities per arc, and per vertex whether it is a terminal and its share of the trees.
struct Network {
  std::vector<Vertex> tail, head;
  std::vector<Amount> capacity, roots;
  std::vector<std::uint8_t> terminal;

  Vertex add(bool is_terminal) {
    terminal.push_back(is_terminal);
    roots.push_back(is_terminal);
    return num_vertices() - 1;
  }
  void arc(Vertex a, Vertex b, Amount rate) { tail.push_back(a), head.push_back(b), capacity.push_back(rate); }
  void link(Vertex a, Vertex b, Amount rate) { arc(a, b, rate), arc(b, a, rate); }

  Vertex num_vertices() const { return static_cast<Vertex>(terminal.size()); }
  Arc num_arcs() const { return static_cast<Arc>(tail.size()); }
  Digraph graph() const { return Digraph(num_vertices(), tail, head); }
  Amount num_trees() const { return std::accumulate(roots.begin(), roots.end(), Amount{0}); }

  void scale(Amount factor) {
    for (Amount& c : capacity) c *= factor;
    for (Amount& r : roots) r *= factor;
  }

  /// Scales roots and capacities to the fewest trees at which the bound is reached exactly.
  /// Returns: Whether it can be reached at all.
  bool scale_to_bound() {
    CutBound bound = cut_bound(graph(), terminal, roots, capacity);
    if (bound.denominator == 0) return false;
    if (bound.numerator == 0) bound.numerator = bound.denominator = 1;  // nothing has to move
    Amount common = 0;
    for (Amount& c : capacity) common = std::gcd(common, c *= static_cast<Amount>(bound.numerator));
    for (Amount& r : roots) common = std::gcd(common, r *= static_cast<Amount>(bound.denominator));
    for (Amount& c : capacity) c /= common;
    for (Amount& r : roots) r /= common;
    return true;
  }
};

/// Numbers 0 .. n - 1, alike on every platform.
class Dice {
 public:
  explicit Dice(std::uint32_t seed) : random_(seed) {}
  int operator()(int n) { return static_cast<int>(random_() % static_cast<std::uint32_t>(n)); }

 private:
  std::mt19937 random_;
};

struct RandomNetwork {
  int terminals = 4;
  int switches = 3;
  int cycles = 6;          // besides one through all vertices
  int series_nodes = 0;    // switches put into the middle of arcs, as NICs are
  Amount largest_rate = 5;
  bool weighted = false;   // shares 0 .. 3 instead of 1
  bool one_root = false;
};

/// A sum of directed cycles, so that as much enters each vertex as leaves it; every vertex is on one. Rates of arcs
/// that several cycles take are added up, or the arcs stay parallel.
inline Network random_network(const RandomNetwork& shape, Dice& dice) {
  Network network;
  for (int v = 0; v < shape.terminals + shape.switches; ++v) network.add(v < shape.terminals);
  std::vector<Vertex> order(network.terminal.size());
  std::iota(order.begin(), order.end(), 0);
  bool merge = dice(2) == 0;
  auto add = [&](Vertex a, Vertex b, Amount rate) {
    for (Arc e = 0; merge && e < network.num_arcs(); ++e)
      if (network.tail[e] == a && network.head[e] == b) return void(network.capacity[e] += rate);
    network.arc(a, b, rate);
  };
  for (int cycle = 0; cycle <= shape.cycles && order.size() > 1; ++cycle) {
    for (std::size_t i = order.size(); i > 1; --i) std::swap(order[i - 1], order[dice(static_cast<int>(i))]);
    auto length = cycle == 0 ? order.size() : 2 + dice(static_cast<int>(std::min<std::size_t>(order.size(), 6)) - 1);
    Amount rate = 1 + dice(static_cast<int>(shape.largest_rate));
    for (std::size_t i = 0; i < length; ++i) add(order[i], order[(i + 1) % length], rate);
  }
  for (int i = 0; i < shape.series_nodes && network.num_arcs() > 0; ++i) {
    Arc e = dice(network.num_arcs());
    Vertex middle = network.add(false), to = network.head[e];
    network.head[e] = middle;
    network.arc(middle, to, network.capacity[e]);
  }
  Vertex first = dice(shape.terminals);
  for (Vertex v = 0; v < network.num_vertices(); ++v) {
    if (!network.terminal[v]) continue;
    if (shape.weighted) network.roots[v] = dice(4);
    if (shape.one_root) network.roots[v] = 0;
  }
  if (shape.weighted || shape.one_root) network.roots[first] = 1 + dice(3);
  return network;
}

/// A network with the images of its arcs under every element of a group, to count what templates use.
struct SymmetricNetwork {
  Network network;
  GroupAction action;
  std::vector<std::vector<Vertex>> vertex_image;  // vertex_image[g][v]
  std::vector<std::vector<Arc>> arc_image;        // arc_image[g][e]
};

inline SymmetricNetwork without_symmetry(Network network) {
  SymmetricNetwork result;
  result.vertex_image.emplace_back(network.num_vertices());
  result.arc_image.emplace_back(network.num_arcs());
  std::iota(result.vertex_image[0].begin(), result.vertex_image[0].end(), 0);
  std::iota(result.arc_image[0].begin(), result.arc_image[0].end(), 0);
  result.action = GroupAction::trivial(network.graph());
  result.network = std::move(network);
  return result;
}

/// Args: map(g, v): image of vertex v under element g, g in mixed radix of `orders`. No two arcs have the same ends.
template <class Map>
SymmetricNetwork symmetric(Network network, const std::vector<Amount>& orders, Map map) {
  SymmetricNetwork result;
  Amount order = 1;
  for (Amount n : orders) order *= n;
  auto arc_between = [&](Vertex a, Vertex b) {
    for (Arc e = 0; e < network.num_arcs(); ++e)
      if (network.tail[e] == a && network.head[e] == b) return e;
    throw std::invalid_argument("a map that sends an arc to none is no automorphism");
  };
  for (Amount g = 0; g < order; ++g) {
    auto& vertices = result.vertex_image.emplace_back();
    auto& arcs = result.arc_image.emplace_back();
    for (Vertex v = 0; v < network.num_vertices(); ++v) vertices.push_back(map(g, v));
    for (Arc e = 0; e < network.num_arcs(); ++e)
      arcs.push_back(arc_between(vertices[network.tail[e]], vertices[network.head[e]]));
  }
  std::vector<std::int32_t> vertex_orbit(network.num_vertices(), -1), arc_orbit(network.num_arcs(), -1);
  std::vector<Amount> element(network.num_vertices(), 0);
  std::int32_t orbits = 0, classes = 0;
  for (Vertex v = 0; v < network.num_vertices(); ++v) {
    if (vertex_orbit[v] >= 0) continue;
    for (Amount g = order; g-- > 0;) vertex_orbit[result.vertex_image[g][v]] = orbits, element[result.vertex_image[g][v]] = g;
    ++orbits;
  }
  for (Arc e = 0; e < network.num_arcs(); ++e) {
    if (arc_orbit[e] >= 0) continue;
    for (Amount g = 0; g < order; ++g) arc_orbit[result.arc_image[g][e]] = classes;
    ++classes;
  }
  result.action = GroupAction::of(orders, vertex_orbit, element, arc_orbit);
  result.network = std::move(network);
  return result;
}

/// A torus without switches and its translations; rates[k] per link along dimension k.
inline SymmetricNetwork torus(const std::vector<Amount>& dims, const std::vector<Amount>& rates) {
  Network network;
  Amount n = 1;
  for (Amount d : dims) n *= d;
  for (Amount v = 0; v < n; ++v) network.add(true);
  Amount stride = 1;
  for (std::size_t k = 0; k < dims.size(); stride *= dims[k++]) {
    for (Amount v = 0; v < n; ++v) {
      Amount at = v / stride % dims[k];
      if (dims[k] == 2 && at == 1) continue;
      network.link(static_cast<Vertex>(v), static_cast<Vertex>(v + ((at + 1) % dims[k] - at) * stride), rates[k]);
    }
  }
  return symmetric(std::move(network), dims, [dims](Amount g, Vertex v) {
    Amount image = 0, place = 1, rest = v;
    for (Amount d : dims) {
      image += (rest % d + g % d) % d * place;
      rest /= d, g /= d, place *= d;
    }
    return static_cast<Vertex>(image);
  });
}

/// Boxes of GPUs around a switch each; GPU i also has a link to plane i mod `planes`, through a NIC of its own if asked.
inline Network boxes(int num_boxes, int gpus, int planes, Amount inside, Amount outside, bool with_nics) {
  Network network;
  for (int p = 0; p < planes; ++p) network.add(false);
  for (int box = 0; box < num_boxes; ++box) {
    Vertex local = network.add(false);
    for (int i = 0; i < gpus; ++i) {
      Vertex gpu = network.add(true), port = with_nics ? network.add(false) : gpu;
      network.link(gpu, local, inside);
      if (with_nics) network.link(gpu, port, outside);
      network.link(port, i % planes, outside);
    }
  }
  return network;
}

/// boxes() with one plane and NICs, under the group that exchanges the boxes and turns the GPUs of all.
inline SymmetricNetwork turning_boxes(int num_boxes, int gpus, Amount inside, Amount outside) {
  auto map = [num_boxes, gpus](Amount g, Vertex v) {
    if (v == 0) return v;
    int size = 1 + 2 * gpus, box = (v - 1) / size, at = (v - 1) % size;
    int image_box = static_cast<int>((box + g % num_boxes) % num_boxes);
    int image_at = at == 0 ? 0 : 1 + static_cast<int>((at - 1 + 2 * (g / num_boxes)) % (2 * gpus));
    return static_cast<Vertex>(1 + image_box * size + image_at);
  };
  return symmetric(boxes(num_boxes, gpus, 1, inside, outside, true), {num_boxes, gpus}, map);
}

/// A tree of switches: a top, leaves below it and GPUs below these. Exchanging leaves and turning the GPUs of all, as
/// many images meet on a link of the top as a leaf has GPUs.
inline SymmetricNetwork turning_leaves(int num_leaves, int gpus, Amount up, Amount down) {
  Network network;
  Vertex top = network.add(false);
  for (int leaf = 0; leaf < num_leaves; ++leaf) {
    Vertex at = network.add(false);
    network.link(at, top, up);
    for (int i = 0; i < gpus; ++i) network.link(network.add(true), at, down);
  }
  return symmetric(std::move(network), {num_leaves, gpus}, [num_leaves, gpus](Amount g, Vertex v) {
    if (v == 0) return v;
    int leaf = (v - 1) / (1 + gpus), at = (v - 1) % (1 + gpus);
    int image_leaf = static_cast<int>((leaf + g % num_leaves) % num_leaves);
    int image_at = at == 0 ? 0 : 1 + static_cast<int>((at - 1 + g / num_leaves) % gpus);
    return static_cast<Vertex>(1 + image_leaf * (1 + gpus) + image_at);
  });
}

/// A ring of switches with a GPU each, turning: a path along the ring takes arcs of one class many times.
inline SymmetricNetwork ring_of_switches(int length, Amount along, Amount down) {
  Network network;
  for (int v = 0; v < 2 * length; ++v) network.add(v < length);
  for (Vertex v = 0; v < length; ++v) {
    network.link(v, length + v, down);
    network.link(length + v, length + (v + 1) % length, along);
  }
  return symmetric(std::move(network), {length}, [length](Amount g, Vertex v) {
    return static_cast<Vertex>(v / length * length + (v + g) % length);
  });
}

/// DGX A100: 8 GPUs on NVSwitch at 300 GB/s each, a NIC of 25 GB/s per GPU on one of two switches.
inline Network dgx_a100(int num_boxes) { return boxes(num_boxes, 8, 2, 300, 25, true); }

/// Boxes of 16 MI250 dies with direct links in units of 50 GB/s, and 16 GB/s from each die to one switch.
inline Network mi250(int num_boxes) {
  struct Bundle {
    int a, b;
    Amount links;
  };
  static constexpr Bundle kBundles[] = {
      {0, 1, 4},  {2, 3, 4},   {4, 5, 4},   {6, 7, 4}, {8, 9, 4}, {10, 11, 4}, {12, 13, 4}, {14, 15, 4},
      {0, 4, 2},  {3, 7, 2},   {8, 12, 2},  {11, 15, 2}, {0, 8, 1}, {1, 5, 1}, {1, 9, 1},   {1, 10, 1},
      {2, 6, 1},  {2, 9, 1},   {2, 10, 1},  {3, 11, 1},  {4, 6, 1}, {5, 6, 1}, {5, 7, 1},   {9, 13, 1},
      {10, 14, 1}, {12, 14, 1}, {13, 14, 1}, {13, 15, 1}};
  Network network;
  Vertex fabric = network.add(false);
  for (int box = 0; box < num_boxes; ++box) {
    Vertex first = network.num_vertices();
    for (int die = 0; die < 16; ++die) network.link(network.add(true), fabric, 16);
    for (const Bundle& bundle : kBundles) network.link(first + bundle.a, first + bundle.b, 50 * bundle.links);
  }
  return network;
}

}  // namespace coppice::testing
