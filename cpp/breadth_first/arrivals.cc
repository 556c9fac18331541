#include "breadth_first/arrivals.h"

#include <algorithm>
#include <numeric>
#include <stdexcept>
#include <string>

namespace coppice {

const std::int32_t* Distances::towards(Vertex to) {
  if (to < 0 || to >= graph_.num_vertices())
    throw std::invalid_argument("targets must be vertices, found " + std::to_string(to));
  if (hops_[to].empty()) search(to, hops_[to]);
  return hops_[to].data();
}

void Distances::search(Vertex to, std::vector<std::int32_t>& hops) {
  hops.assign(graph_.num_vertices(), -1);
  std::size_t head = 0, tail = 0;
  queue_[tail++] = to;
  hops[to] = 0;
  while (head < tail) {
    Vertex v = queue_[head++];
    for (Arc e : graph_.in(v)) {
      Vertex w = graph_.tail(e);
      if (hops[w] >= 0) continue;
      hops[w] = hops[v] + 1;
      queue_[tail++] = w;
    }
  }
}

void Arrivals::look_at(Vertex target) {
  const std::int32_t* hops = distances_.towards(target);
  links.assign(graph_.in(target).begin(), graph_.in(target).end());
  link_capacity.clear();
  for (Arc e : links) link_capacity.push_back(capacity_[e]);
  words_ = (links.size() + kBits - 1) / kBits;
  const std::size_t n = graph_.num_vertices();
  eligible_.assign(n * words_, 0);
  for (std::size_t i = 0; i < links.size(); ++i) {
    const std::int32_t* before = distances_.towards(graph_.tail(links[i]));
    for (std::size_t v = 0; v < n; ++v)
      if (before[v] + 1 == hops[v]) eligible_[v * words_ + i / kBits] |= Word{1} << (i % kBits);
  }
  sources.clear();
  for (Vertex v = 0; v < graph_.num_vertices(); ++v) {
    if (hops[v] < 0)
      throw std::invalid_argument("vertex " + std::to_string(target) + " must be reached by all, not by " +
                                  std::to_string(v));
    if (v != target) sources.push_back(v);
  }
  sort_sources(hops);
  steps.clear();
  for (std::size_t first = 0, last; first < sources.size(); first = last) {
    for (last = first + 1; last < sources.size() && alike(hops, sources[first], sources[last]);) ++last;
    std::size_t step = hops[sources[first]];
    if (steps.size() < step) steps.emplace_back();
    steps[step - 1].push_back({first, last});
  }
  for (auto& groups : steps)  // what has few ways goes first
    std::ranges::stable_sort(groups, {}, [&](const Group& group) { return ways(group); });
}

bool Arrivals::alike(const std::int32_t* hops, Vertex a, Vertex b) const {
  return hops[a] == hops[b] && std::equal(eligible(a), eligible(a) + words_, eligible(b));
}

/// Sorts sources by distance, then by set of links, then by number. Sets of a few links are counted instead.
void Arrivals::sort_sources(const std::int32_t* hops) {
  std::int32_t farthest = 0;
  for (Vertex v : sources) farthest = std::max(farthest, hops[v]);
  const std::size_t shift = links.size();
  if (shift < 16 && (static_cast<std::size_t>(farthest) + 1) << shift <= kBins * sources.size()) {
    auto bin = [&](Vertex v) { return (static_cast<std::size_t>(hops[v]) << shift | eligible_[v]) + 1; };
    place_.assign(((static_cast<std::size_t>(farthest) + 1) << shift) + 1, 0);
    for (Vertex v : sources) ++place_[bin(v)];
    std::partial_sum(place_.begin(), place_.end(), place_.begin());
    sorted_.resize(sources.size());
    for (Vertex v : sources) sorted_[place_[bin(v) - 1]++] = v;
    sources.swap(sorted_);
    return;
  }
  std::ranges::sort(sources, [&](Vertex a, Vertex b) {
    if (hops[a] != hops[b]) return hops[a] < hops[b];
    for (std::size_t i = 0; i < words_; ++i)
      if (eligible(a)[i] != eligible(b)[i]) return eligible(a)[i] < eligible(b)[i];
    return a < b;
  });
}

int Arrivals::ways(const Group& group) const {
  const Word* set = eligible(sources[group.first]);
  return std::accumulate(set, set + words_, 0, [](int sum, Word word) { return sum + __builtin_popcountll(word); });
}

}  // namespace coppice
