#include "collnet/forest.h"

#include <algorithm>
#include <sstream>

#include "collnet/sockets.h"

namespace coppice::collnet {

namespace {

constexpr std::size_t kShort = 16 << 10;  // bytes up to which one tree is quicker than a share for each
constexpr int kMostTrees = 1024;
constexpr int kMostNodes = 1 << 16;
constexpr std::uint64_t kMostShare = std::uint64_t{1} << 32;

[[noreturn]] void refuse(const std::string& file, int line, const std::string& why) {
  throw Failure(kInvalidArgument, file + ":" + std::to_string(line) + ": " + why);
}

/// Checks that every node reaches the root, and notes the root.
void close_tree(Tree& tree, const std::string& file, int line) {
  int nodes = static_cast<int>(tree.parent.size());
  std::vector<int> depth(nodes, -1);
  tree.root = -1;
  for (int node = 0; node < nodes; node++) {
    if (tree.parent[node] >= nodes || tree.parent[node] < -1)
      refuse(file, line, "expected parents of -1 to " + std::to_string(nodes - 1) + ", found " + std::to_string(tree.parent[node]));
    if (tree.parent[node] != -1) continue;
    if (tree.root != -1) refuse(file, line, "expected one root (-1), found several");
    tree.root = node;
  }
  if (tree.root == -1) refuse(file, line, "expected one root (-1), found none");
  for (int node = 0; node < nodes; node++) {
    int at = node;
    for (int step = 0; at != tree.root; step++) {
      if (step == nodes) refuse(file, line, "expected a tree, but node " + std::to_string(node) + " does not reach its root");
      at = tree.parent[at];
    }
  }
}

/// Parts of a range along some trees, in proportion to their shares.
void divide(const Forest& forest, const std::vector<int>& trees, int root, std::size_t begin, std::size_t bytes,
            std::size_t element, std::uint64_t sequence, std::vector<Segment>& into) {
  if (bytes == 0) return;
  auto root_of = [&](int tree) { return root >= 0 ? root : forest.trees[tree].root; };
  if (bytes <= kShort) {
    int tree = trees[sequence % trees.size()];
    into.push_back({tree, root_of(tree), begin, bytes});
    return;
  }
  unsigned __int128 total = 0, before = 0;
  for (int tree : trees) total += forest.trees[tree].share;
  std::size_t elements = bytes / element, from = 0;
  for (int tree : trees) {
    before += forest.trees[tree].share;
    auto to = static_cast<std::size_t>(before * elements / total);
    if (to > from) into.push_back({tree, root_of(tree), begin + from * element, (to - from) * element});
    from = to;
  }
}

}  // namespace

Forest parse_forest(const std::string& text, const std::string& file) {
  Forest made;
  std::istringstream lines(text);
  std::string line;
  bool headed = false;
  for (int number = 1; std::getline(lines, line); number++) {
    std::istringstream words(line);
    std::string word, rest;
    if (!(words >> word) || word[0] == '#') continue;
    if (!headed) {
      int version = 0;
      if (word != "coppice-collnet" || !(words >> version)) refuse(file, number, "expected coppice-collnet 1");
      if (version != 1) refuse(file, number, "expected version 1, found " + std::to_string(version));
      headed = true;
    } else if (word == "nodes" && made.nodes == 0) {
      if (!(words >> made.nodes) || made.nodes < 1 || made.nodes > kMostNodes)
        refuse(file, number, "expected a number of nodes of 1 to " + std::to_string(kMostNodes));
    } else if (word == "tree" && made.nodes > 0) {
      Tree tree;
      long long share = 0;
      if (!(words >> share) || share < 1 || static_cast<std::uint64_t>(share) > kMostShare)
        refuse(file, number, "expected a share of 1 to " + std::to_string(kMostShare));
      tree.share = static_cast<std::uint64_t>(share);
      tree.parent.resize(static_cast<std::size_t>(made.nodes));
      for (int& parent : tree.parent)
        if (!(words >> parent)) refuse(file, number, "expected the parents of " + std::to_string(made.nodes) + " nodes");
      close_tree(tree, file, number);
      if (made.trees.size() == kMostTrees) refuse(file, number, "expected at most " + std::to_string(kMostTrees) + " trees");
      made.trees.push_back(std::move(tree));
    } else {
      refuse(file, number, "expected nodes, then lines of tree, found " + word.substr(0, 20));
    }
    if (words >> rest) refuse(file, number, "expected no more words, found " + rest.substr(0, 20));
  }
  if (made.trees.empty()) throw Failure(kInvalidArgument, file + ": expected a tree at least, found none");
  return made;
}

Forest balanced_forest(int nodes) {
  Forest made;
  made.nodes = nodes;
  int trees = std::min(nodes, 16);
  for (int tree = 0; tree < trees; tree++) {
    int shift = static_cast<int>(static_cast<long long>(tree) * nodes / trees);
    Tree next;
    next.root = shift;
    next.parent.assign(static_cast<std::size_t>(nodes), -1);
    for (int place = 1; place < nodes; place++)
      next.parent[(place + shift) % nodes] = ((place - 1) / 2 + shift) % nodes;
    made.trees.push_back(std::move(next));
  }
  return made;
}

std::uint64_t fingerprint(const Forest& forest) {
  std::uint64_t value = 0xcbf29ce484222325u;
  auto add = [&](std::uint64_t word) {
    for (int byte = 0; byte < 8; byte++) value = (value ^ (word >> 8 * byte & 0xff)) * 0x100000001b3u;
  };
  add(static_cast<std::uint64_t>(forest.nodes));
  for (const Tree& tree : forest.trees) {
    add(tree.share);
    for (int parent : tree.parent) add(static_cast<std::uint64_t>(static_cast<std::int64_t>(parent)));
  }
  return value;
}

View view_of(const Tree& tree, int node) {
  int nodes = static_cast<int>(tree.parent.size());
  std::vector<std::vector<int>> next(static_cast<std::size_t>(nodes));
  for (int child = 0; child < nodes; child++) {
    if (tree.parent[child] < 0) continue;
    next[child].push_back(tree.parent[child]);
    next[tree.parent[child]].push_back(child);
  }
  View made;
  made.neighbours = next[node];
  std::sort(made.neighbours.begin(), made.neighbours.end());
  made.toward.assign(static_cast<std::size_t>(nodes), -1);
  for (int place = 0; place < static_cast<int>(made.neighbours.size()); place++) {
    std::vector<int> open{made.neighbours[place]};
    while (!open.empty()) {
      int at = open.back();
      open.pop_back();
      made.toward[at] = place;
      for (int other : next[at])
        if (other != node && made.toward[other] == -1) open.push_back(other);
    }
  }
  return made;
}

std::vector<Segment> all_reduce_segments(const Forest& forest, std::size_t bytes, std::size_t element,
                                         std::uint64_t sequence) {
  std::vector<int> all(forest.trees.size());
  for (std::size_t tree = 0; tree < all.size(); tree++) all[tree] = static_cast<int>(tree);
  std::vector<Segment> made;
  divide(forest, all, -1, 0, bytes, element, sequence, made);
  return made;
}

std::vector<Segment> block_segments(const Forest& forest, std::size_t block_bytes, std::size_t window_begin,
                                    std::size_t window_bytes, std::size_t element, std::uint64_t sequence) {
  std::vector<Segment> made;
  std::size_t window_end = window_begin + window_bytes;
  for (int root = 0; root < forest.nodes; root++) {
    std::size_t block = static_cast<std::size_t>(root) * block_bytes;
    std::size_t begin = std::max(block, window_begin), end = std::min(block + block_bytes, window_end);
    if (begin >= end) continue;
    std::vector<int> own, all;
    for (int tree = 0; tree < static_cast<int>(forest.trees.size()); tree++) {
      all.push_back(tree);
      if (forest.trees[tree].root == root) own.push_back(tree);
    }
    divide(forest, own.empty() ? all : own, root, begin, end - begin, element, sequence, made);
  }
  return made;
}

}  // namespace coppice::collnet
