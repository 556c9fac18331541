// Counts what a packing really is: trees that span, joined paths, loads. Shares nothing with the packer.
#pragma once

#include <sstream>
#include <string>
#include <vector>

#include "packing/packing.h"
#include "testing/networks.h"

namespace coppice::testing {

/// Whether `set` contains a terminal and less enters it than `network.roots` asks for.
inline bool really_violated(const Network& network, const std::vector<Vertex>& set) {
  std::vector<std::uint8_t> inside(network.num_vertices(), 0);
  for (Vertex v : set) inside[v] = 1;
  bool counts = false;
  Amount value = 0;
  for (Vertex v = 0; v < network.num_vertices(); ++v)
    if (inside[v]) counts |= network.terminal[v] != 0, value += network.roots[v];
  for (Arc e = 0; e < network.num_arcs(); ++e)
    if (inside[network.head[e]] && !inside[network.tail[e]]) value += network.capacity[e];
  return counts && value < network.num_trees();
}

/// Whether the arcs are a spanning tree from `root`: path after path, each from a terminal that is reached (or the
/// root) through switches only, each simple, to a terminal that is not reached yet. Empty: they are.
inline std::string tree_fault(const Network& network, Vertex root, std::span<const Arc> arcs) {
  std::vector<std::uint8_t> reached(network.num_vertices(), 0), on_path(network.num_vertices(), 0);
  reached[root] = 1;
  std::vector<Vertex> path;  // of the edge that has begun
  for (Arc e : arcs) {
    if (e < 0 || e >= network.num_arcs()) return "an arc that does not exist";
    Vertex from = network.tail[e], to = network.head[e];
    if (path.empty()) {
      if (!network.terminal[from]) return "an edge starts at a switch";
      if (!reached[from]) return "an edge starts at a terminal that is not in the tree yet";
      path.push_back(from);
      on_path[from] = 1;
    } else if (path.back() != from) {
      return "a path is not joined";
    }
    if (on_path[to]) return "a path meets itself";
    path.push_back(to);
    on_path[to] = 1;
    if (!network.terminal[to]) continue;
    if (reached[to]) return "a terminal is reached twice";
    reached[to] = 1;
    for (Vertex v : path) on_path[v] = 0;
    path.clear();
  }
  if (!path.empty()) return "the last path ends at a switch";
  for (Vertex v = 0; v < network.num_vertices(); ++v)
    if (network.terminal[v] && !reached[v]) return "terminal " + std::to_string(v) + " is not reached";
  return {};
}

/// What is wrong with the trees and all their images; empty where nothing is.
inline std::string packing_fault(const SymmetricNetwork& symmetric, const Packing& packing) {
  const Network& network = symmetric.network;
  std::ostringstream fault;
  std::size_t trees = packing.root.size();
  if (!packing.complete || !packing.violated.empty()) return "not complete";
  if (packing.multiplicity.size() != trees || packing.start.size() != trees + 1 || packing.start.front() != 0 ||
      packing.start.back() != static_cast<std::int64_t>(packing.arcs.size()))
    return "columns do not fit";
  std::vector<Amount> rooted(network.num_vertices(), 0), load(network.num_arcs(), 0);
  for (std::size_t t = 0; t < trees; ++t) {
    std::span<const Arc> arcs(packing.arcs.data() + packing.start[t], packing.arcs.data() + packing.start[t + 1]);
    if (packing.multiplicity[t] <= 0) fault << "tree " << t << " is taken " << packing.multiplicity[t] << " times; ";
    if (std::string what = tree_fault(network, packing.root[t], arcs); !what.empty())
      fault << "tree " << t << ": " << what << "; ";
    for (std::size_t g = 0; g < symmetric.vertex_image.size(); ++g) {
      rooted[symmetric.vertex_image[g][packing.root[t]]] += packing.multiplicity[t];
      for (Arc e : arcs) load[symmetric.arc_image[g][e]] += packing.multiplicity[t];
    }
  }
  for (Vertex v = 0; v < network.num_vertices(); ++v)
    if (rooted[v] != network.roots[v])
      fault << rooted[v] << " trees at " << v << " instead of " << network.roots[v] << "; ";
  for (Arc e = 0; e < network.num_arcs(); ++e)
    if (load[e] > network.capacity[e])
      fault << "arc " << e << " carries " << load[e] << " of " << network.capacity[e] << "; ";
  return fault.str();
}

/// The same for a packing without a group.
inline std::string packing_fault(const Network& network, const Packing& packing) {
  return packing_fault(without_symmetry(network), packing);
}

inline Packing pack(const Network& network, const PackingOptions& options = {}, const StopFlag& stop = {}) {
  Digraph graph = network.graph();
  return pack_trees(graph, network.terminal, network.roots, network.capacity, GroupAction::trivial(graph), options, stop);
}

inline Packing pack(const SymmetricNetwork& symmetric, const PackingOptions& options = {}) {
  const Network& network = symmetric.network;
  return pack_trees(network.graph(), network.terminal, network.roots, network.capacity, symmetric.action, options);
}

}  // namespace coppice::testing
