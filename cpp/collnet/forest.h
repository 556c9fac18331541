// The trees between nodes along which the plugin reduces and broadcasts, and what part of the data each carries.
//
// A file of COPPICE_COLLNET_FOREST (written by `coppice export PLAN --to nccl-collnet`):
//
//   coppice-collnet 1
//   nodes 4
//   tree 3 -1 0 0 1        share of the data, then the parent of node 0, 1, 2 ..; -1 for the root
//   tree 1 1 -1 1 2
//
// Lines that begin with # and empty ones are skipped. Shares are whole numbers; tree t carries share / sum of shares.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace coppice::collnet {

struct Tree {
  std::uint64_t share = 1;
  int root = 0;
  std::vector<int> parent;  // of each node, -1 for the root
};

struct Forest {
  int nodes = 0;
  std::vector<Tree> trees;
};

/// Reads a file's text; throws Failure(kInvalidArgument) that names the line.
Forest parse_forest(const std::string& text, const std::string& file);

/// Binary trees of equal shares, each the one before with all nodes moved on by one, so that all nodes carry the same
/// load, 2 (n - 1) / n of an all-reduce's bytes out and in, the least possible; 16 trees at most.
Forest balanced_forest(int nodes);

/// Equal for equal forests, so that nodes notice when they have read different files.
std::uint64_t fingerprint(const Forest& forest);

/// How one node sees a tree.
struct View {
  std::vector<int> neighbours;  // rising
  std::vector<int> toward;      // toward[r]: position among the neighbours on the way to node r; -1 for the node itself
};
View view_of(const Tree& tree, int node);

/// A part of an operation's data that one tree reduces to a root, broadcasts from it, or both.
struct Segment {
  int tree = 0;
  int root = 0;
  std::size_t begin = 0;  // byte in the whole array
  std::size_t bytes = 0;
};

/// The parts of an all-reduce of `bytes`, cut between elements. Short arrays go along one tree, by turns.
std::vector<Segment> all_reduce_segments(const Forest& forest, std::size_t bytes, std::size_t element,
                                         std::uint64_t sequence);

/// The parts of a window of an all-gather or a reduce-scatter: block r of `block_bytes` has its root at node r. Its trees
/// are those that have this root in the forest, where there are any, else all, turned to it.
std::vector<Segment> block_segments(const Forest& forest, std::size_t block_bytes, std::size_t window_begin,
                                    std::size_t window_bytes, std::size_t element, std::uint64_t sequence);

}  // namespace coppice::collnet
