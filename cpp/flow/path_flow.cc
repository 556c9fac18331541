#include "flow/path_flow.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <queue>
#include <stdexcept>

namespace coppice {

static constexpr double kFar = std::numeric_limits<double>::infinity();
static constexpr double kLeast = -30;         // smaller exponents are as good as this one
static constexpr double kMost = 30;           // above the largest load at the start of a source, lengths rise no further
static constexpr double kNegligible = 1e-9;   // of a demand: such a flow is moved whole
static constexpr double kSimilar = 1e-4;      // paths whose lengths differ by less stay
static constexpr int kNewtonSteps = 8;

PathFlow::PathFlow(Digraph graph, std::span<const Amount> capacity, std::span<const Vertex> sources,
                   std::span<const Amount> demand)
    : graph_(std::move(graph)),
      capacity_(capacity.begin(), capacity.end()),
      sources_(sources.begin(), sources.end()),
      demand_(demand.begin(), demand.end()),
      routes_(sources.size()),
      load_(capacity.size(), 0),
      length_(capacity.size(), 0),
      mark_(capacity.size(), 0) {
  auto vertices = static_cast<std::size_t>(graph_.num_vertices());
  if (capacity.size() != static_cast<std::size_t>(graph_.num_arcs()) || demand.size() != sources.size() * vertices)
    throw std::invalid_argument("a flow needs a capacity per arc and a demand per source and vertex");
  if (std::any_of(capacity.begin(), capacity.end(), [](Amount c) { return c <= 0; }))
    throw std::invalid_argument("a flow needs capacities above 0");
  if (std::any_of(sources.begin(), sources.end(), [&](Vertex v) { return v < 0 || v >= graph_.num_vertices(); }))
    throw std::invalid_argument("a flow needs sources that are vertices");
  for (std::size_t e = 0; e < capacity_.size(); ++e) length_[e] = 1 / capacity_[e];
}

double PathFlow::worst() const {
  double result = 0;
  for (std::size_t e = 0; e < load_.size(); ++e) result = std::max(result, load_[e] / capacity_[e]);
  return result;
}

std::vector<double> PathFlow::lengths(double steepness) const {
  std::vector<double> result(load_.size());
  double top = worst(), largest = 0;
  for (std::size_t e = 0; e < load_.size(); ++e) {
    double over = top > 0 ? steepness * (load_[e] / capacity_[e] / top - 1) : 0;
    result[e] = std::exp(std::max(over, kLeast)) / capacity_[e];
    largest = std::max(largest, result[e]);
  }
  for (double& w : result) w /= largest;
  return result;
}

void PathFlow::relength(Arc e, double scale) {
  length_[e] = std::exp(std::clamp(scale * (load_[e] / capacity_[e] - top_), kLeast, kMost)) / capacity_[e];
}

void PathFlow::search(Vertex source, std::span<const double> length, std::vector<double>& distance,
                      std::vector<Arc>& last) const {
  distance.assign(graph_.num_vertices(), kFar);
  last.assign(graph_.num_vertices(), -1);
  using Item = std::pair<double, Vertex>;
  std::priority_queue<Item, std::vector<Item>, std::greater<>> queue;
  distance[source] = 0;
  queue.emplace(0.0, source);
  while (!queue.empty()) {
    auto [reached, v] = queue.top();
    queue.pop();
    if (reached > distance[v]) continue;
    for (Arc e : graph_.out(v)) {
      Vertex u = graph_.head(e);
      double through = reached + length[e];
      if (through >= distance[u]) continue;
      distance[u] = through;
      last[u] = e;
      queue.emplace(through, u);
    }
  }
}

double PathFlow::bound(std::span<const double> length, const StopFlag& stop) const {
  std::vector<double> distance;
  std::vector<Arc> last;
  double work = 0, room = 0;
  for (std::size_t i = 0; i < sources_.size(); ++i) {
    poll(stop);
    search(sources_[i], length, distance, last);
    const Amount* wanted = &demand_[i * graph_.num_vertices()];
    for (Vertex v = 0; v < graph_.num_vertices(); ++v)
      if (wanted[v] > 0 && v != sources_[i]) work += static_cast<double>(wanted[v]) * distance[v];
  }
  for (std::size_t e = 0; e < capacity_.size(); ++e) room += length[e] * capacity_[e];
  return work / room;
}

void PathFlow::sweep(double steepness, const StopFlag& stop) {
  for (std::size_t i = 0; i < sources_.size(); ++i) {
    poll(stop);
    top_ = worst();
    double scale = top_ > 0 ? steepness / top_ : 0;
    for (Arc e = 0; e < graph_.num_arcs(); ++e) relength(e, scale);
    improve(i, scale);
  }
}

// Moves flow of one source towards shortest paths; lengths that its own moves change are kept up.
void PathFlow::improve(std::size_t source, double scale) {
  Routes& old = routes_[source];
  Routes fresh;
  std::vector<double> distance;
  std::vector<Arc> last, best;
  search(sources_[source], length_, distance, last);
  const Amount* wanted = &demand_[source * graph_.num_vertices()];
  std::size_t next = 0;
  for (Vertex target = 0; target < graph_.num_vertices(); ++target) {
    if (wanted[target] <= 0 || target == sources_[source]) continue;
    if (distance[target] == kFar) throw std::invalid_argument("a flow needs a path for every demand");
    std::size_t first = next;
    while (next < old.paths.size() && old.paths[next].target == target) ++next;
    best.clear();
    for (Vertex v = target; v != sources_[source]; v = graph_.tail(last[v])) best.push_back(last[v]);
    std::reverse(best.begin(), best.end());
    auto arcs = [&](const Path& path) { return std::span<const Arc>(&old.pool[path.first], path.last - path.first); };
    auto length_of = [&](std::span<const Arc> path) {
      double sum = 0;
      for (Arc e : path) sum += length_[e];
      return sum;
    };
    // The shortest path may be one that is used already, or lengths have moved since the search.
    double shortest = length_of(best), gained = 0;
    std::size_t chosen = next;
    for (std::size_t i = first; i < next; ++i) {
      double here = length_of(arcs(old.paths[i]));
      if (here <= shortest * (1 + kSimilar)) shortest = here, chosen = i;
    }
    std::span<const Arc> to = chosen < next ? arcs(old.paths[chosen]) : std::span<const Arc>(best);
    auto total = static_cast<double>(wanted[target]);
    if (first == next) {
      gained = total;
      for (Arc e : to) {
        load_[e] += total;
        relength(e, scale);
      }
    }
    for (std::size_t i = first; i < next; ++i) {
      Path& path = old.paths[i];
      if (i == chosen || length_of(arcs(path)) <= length_of(to) * (1 + kSimilar)) continue;
      double moved = 0;
      shift(arcs(path), to, path.amount, scale, moved);
      path.amount -= moved;
      gained += moved;
      if (path.amount <= kNegligible * total) gained += path.amount, path.amount = 0;
    }
    auto keep = [&](std::span<const Arc> path, double amount) {
      auto begin = static_cast<std::int32_t>(fresh.pool.size());
      fresh.pool.insert(fresh.pool.end(), path.begin(), path.end());
      fresh.paths.push_back({target, amount, begin, static_cast<std::int32_t>(fresh.pool.size())});
    };
    for (std::size_t i = first; i < next; ++i) {
      double amount = old.paths[i].amount + (i == chosen ? gained : 0);
      if (amount > 0) keep(arcs(old.paths[i]), amount);
    }
    if (chosen == next && gained > 0) keep(best, gained);
  }
  old = std::move(fresh);
}

// Moves flow from one path to another, at most `most`, until both are equally long: the derivative of the soft maximum
// along the move is their difference in length.
void PathFlow::shift(std::span<const Arc> from, std::span<const Arc> to, double most, double scale, double& moved) {
  for (Arc e : from) mark_[e] = -1;
  for (Arc e : to) mark_[e] += 1;  // 0: on both
  auto slope = [&](double amount, double& curvature) {
    double sum = 0;
    curvature = 0;
    auto add = [&](Arc e, double sign) {
      double w = std::exp(std::clamp(scale * ((load_[e] + sign * amount) / capacity_[e] - top_), kLeast, kMost)) / capacity_[e];
      sum += sign * w;
      curvature += w * scale / capacity_[e];
    };
    for (Arc e : to)
      if (mark_[e] > 0) add(e, 1);
    for (Arc e : from)
      if (mark_[e] < 0) add(e, -1);
    return sum;
  };
  double low = 0, high = most, at = most, curvature = 0;
  if (slope(most, curvature) > 0) {
    at = 0;
    for (int step = 0; step < kNewtonSteps; ++step) {
      double value = slope(at, curvature);
      (value < 0 ? low : high) = at;
      double wanted = curvature > 0 ? at - value / curvature : high;
      at = wanted > low && wanted < high ? wanted : (low + high) / 2;
      if (high - low <= 1e-3 * most) break;
    }
    at = low > 0 ? low : at;
  }
  moved = at;
  for (Arc e : to)
    if (mark_[e] > 0) load_[e] += at, relength(e, scale);
  for (Arc e : from)
    if (mark_[e] < 0) load_[e] = std::max(load_[e] - at, 0.0), relength(e, scale);
  for (Arc e : from) mark_[e] = 0;
  for (Arc e : to) mark_[e] = 0;
}

FlowPaths PathFlow::paths() const {
  FlowPaths result;
  result.start.push_back(0);
  for (std::size_t i = 0; i < sources_.size(); ++i) {
    for (const Path& path : routes_[i].paths) {
      result.source.push_back(static_cast<std::int32_t>(i));
      result.target.push_back(path.target);
      result.part.push_back(path.amount / static_cast<double>(demand_[i * graph_.num_vertices() + path.target]));
      result.arc.insert(result.arc.end(), routes_[i].pool.begin() + path.first, routes_[i].pool.begin() + path.last);
      result.start.push_back(static_cast<std::int64_t>(result.arc.size()));
    }
  }
  return result;
}

}  // namespace coppice
