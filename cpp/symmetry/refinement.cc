#include "symmetry/refinement.h"

#include <algorithm>
#include <numeric>

#include "core/hash.h"

namespace coppice {

static constexpr std::uint64_t kForward = 0x9e3779b97f4a7c15, kBackward = 0xc2b2ae3d27d4eb4f;
static constexpr std::uint64_t kSymmetry = 0x165667b19e3779f9;

Refinement::Refinement(const ColouredGraph& graph, std::span<const VertexMap> symmetries, int copies)
    : graph_(graph),
      symmetries_(symmetries),
      num_vertices_(graph.graph.num_vertices()),
      num_items_(num_vertices_ * copies),
      copies_(copies),
      items_(num_items_),
      position_(num_items_),
      cell_(num_items_),
      size_(num_items_, 0),
      touched_(num_items_, 0),
      count_(num_items_, 0),
      queued_(num_items_, 0) {
  for (const VertexMap& symmetry : symmetries) {
    VertexMap& inverse = inverses_.emplace_back(num_vertices_);
    for (Vertex v = 0; v < num_vertices_; ++v) inverse[symmetry[v]] = v;
  }
}

void Refinement::start(std::span<const std::int32_t> colour, bool equitable) {
  for (std::int32_t cell : queue_) queued_[cell] = 0;
  queue_.clear();
  std::iota(items_.begin(), items_.end(), 0);
  auto colour_of = [&](Vertex item) { return colour[item < num_vertices_ ? item : item - num_vertices_]; };
  std::stable_sort(items_.begin(), items_.end(), [&](Vertex a, Vertex b) { return colour_of(a) < colour_of(b); });
  for (std::int32_t first = 0, last; first < num_items_; first = last) {
    for (last = first; last < num_items_ && colour_of(items_[last]) == colour_of(items_[first]); ++last) {
      position_[items_[last]] = last;
      cell_[items_[last]] = first;
    }
    size_[first] = last - first;
    if (!equitable) enqueue(first);
  }
}

void Refinement::individualise(std::span<const Vertex> items) {
  std::int32_t cell = cell_[items.front()], size = static_cast<std::int32_t>(items.size());
  if (size == size_[cell]) return;
  std::int32_t first = cell + size_[cell] - size;
  for (std::int32_t i = 0; i < size; ++i) move(items[i], first + i);
  for (std::int32_t i = 0; i < size; ++i) cell_[items[i]] = first;
  size_[cell] -= size;
  size_[first] = size;
  enqueue(first);
  if (queued_[cell] || size_[cell] < size) enqueue(cell);
}

bool Refinement::refine(Budget& budget) {
  std::vector<Vertex> splitter;
  for (std::size_t done = 0; done < queue_.size(); ++done) {
    std::int32_t cell = queue_[done];
    queued_[cell] = 0;
    splitter.assign(items_.begin() + cell, items_.begin() + cell + size_[cell]);
    std::int64_t steps = 1;
    for (Vertex item : splitter) {
      Vertex v = item < num_vertices_ ? item : item - num_vertices_;
      std::size_t links = graph_.graph.out(v).size() + graph_.graph.in(v).size();
      steps += static_cast<std::int64_t>(links + 2 * symmetries_.size());
      count_links(item);
    }
    budget.spend(steps);
    bool equal = true;
    std::sort(touched_cells_.begin(), touched_cells_.end());
    for (std::int32_t touched : touched_cells_) equal = split(touched) && equal;
    touched_cells_.clear();
    if (!equal) return false;
  }
  queue_.clear();
  return true;
}

std::vector<std::int32_t> Refinement::cells(int copy) const {
  auto first = cell_.begin() + static_cast<std::ptrdiff_t>(copy) * num_vertices_;
  return {first, first + num_vertices_};
}

void Refinement::count_links(Vertex item) {
  Vertex base = item < num_vertices_ ? 0 : num_vertices_, v = item - base;
  const Digraph& g = graph_.graph;
  for (Arc e : g.out(v)) touch(g.head(e) + base, mixed(kForward + static_cast<std::uint64_t>(graph_.label[e])));
  for (Arc e : g.in(v)) touch(g.tail(e) + base, mixed(kBackward + static_cast<std::uint64_t>(graph_.label[e])));
  for (std::size_t i = 0; i < symmetries_.size(); ++i) {
    touch(symmetries_[i][v] + base, mixed(kSymmetry + 2 * i));
    touch(inverses_[i][v] + base, mixed(kSymmetry + 2 * i + 1));
  }
}

void Refinement::touch(Vertex item, std::uint64_t weight) {
  std::int32_t cell = cell_[item];
  if (size_[cell] == 1) return;
  if (count_[item] == 0) {
    if (touched_[cell]++ == 0) touched_cells_.push_back(cell);
    move(item, cell + size_[cell] - touched_[cell]);
  }
  count_[item] += weight;
  if (count_[item] == 0) count_[item] = 1;  // 0 means untouched
}

void Refinement::move(Vertex item, std::int32_t position) {
  Vertex other = items_[position];
  std::swap(items_[position_[item]], items_[position]);
  std::swap(position_[item], position_[other]);
}

// Splits a cell by the counts of its touched items; false where a piece holds unequally many items of two copies.
bool Refinement::split(std::int32_t cell) {
  std::int32_t end = cell + size_[cell], first = end - touched_[cell];
  touched_[cell] = 0;
  std::sort(items_.begin() + first, items_.begin() + end, [&](Vertex a, Vertex b) {
    return count_[a] != count_[b] ? count_[a] < count_[b] : a < b;
  });
  std::vector<std::int32_t> pieces{cell};  // first positions, then the end
  for (std::int32_t i = first; i < end; ++i) {
    position_[items_[i]] = i;
    if (i > cell && (i == first || count_[items_[i]] != count_[items_[i - 1]])) pieces.push_back(i);
  }
  pieces.push_back(end);
  for (std::int32_t i = first; i < end; ++i) count_[items_[i]] = 0;
  if (pieces.size() == 2) return true;
  bool equal = true;
  std::int32_t largest = cell;
  for (std::size_t i = 0; i + 1 < pieces.size(); ++i) {
    size_[pieces[i]] = pieces[i + 1] - pieces[i];
    if (size_[pieces[i]] > size_[largest]) largest = pieces[i];
    if (i > 0)
      for (std::int32_t p = pieces[i]; p < pieces[i + 1]; ++p) cell_[items_[p]] = pieces[i];
    if (copies_ == 2) equal = equal && balanced(pieces[i], pieces[i + 1]);
  }
  bool all = queued_[cell];
  for (std::size_t i = 0; i + 1 < pieces.size(); ++i)
    if (all || pieces[i] != largest) enqueue(pieces[i]);
  return equal;
}

void Refinement::enqueue(std::int32_t cell) {
  if (queued_[cell]) return;
  queued_[cell] = 1;
  queue_.push_back(cell);
}

bool Refinement::balanced(std::int32_t first, std::int32_t last) const {
  std::int32_t difference = 0;
  for (std::int32_t i = first; i < last; ++i) difference += items_[i] < num_vertices_ ? 1 : -1;
  return difference == 0;
}

}  // namespace coppice
