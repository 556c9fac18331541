#include "graph/distances.h"

#include <algorithm>
#include <functional>
#include <stdexcept>
#include <utility>

namespace coppice {

std::vector<Amount> shortest_distances(const Digraph& graph, std::span<const Amount> length, std::span<const Vertex> sources,
                                       const StopFlag& stop) {
  if (length.size() != static_cast<std::size_t>(graph.num_arcs())) throw std::invalid_argument("distances need a length per arc");
  Amount sum = 0;
  for (Amount each : length) {
    if (each < 0) throw std::invalid_argument("distances need lengths of 0 or more");
    if (each >= kUnreached - sum) throw std::overflow_error("lengths are too large in all");
    sum += each;
  }
  auto vertices = static_cast<std::size_t>(graph.num_vertices());
  std::vector<Amount> result(sources.size() * vertices, kUnreached);
  std::vector<std::pair<Amount, Vertex>> heap;
  for (std::size_t i = 0; i < sources.size(); ++i) {
    poll(stop);
    if (sources[i] < 0 || static_cast<std::size_t>(sources[i]) >= vertices) throw std::invalid_argument("distances need sources that are vertices");
    Amount* reach = result.data() + i * vertices;
    reach[sources[i]] = 0;
    heap.assign(1, {0, sources[i]});
    while (!heap.empty()) {
      std::pop_heap(heap.begin(), heap.end(), std::greater<>());
      auto [at, v] = heap.back();
      heap.pop_back();
      if (at > reach[v]) continue;
      for (Arc e : graph.out(v)) {
        Vertex u = graph.head(e);
        if (at + length[e] >= reach[u]) continue;
        reach[u] = at + length[e];
        heap.emplace_back(reach[u], u);
        std::push_heap(heap.begin(), heap.end(), std::greater<>());
      }
    }
  }
  return result;
}

}  // namespace coppice
