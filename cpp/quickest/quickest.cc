#include "quickest/quickest.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <optional>
#include <queue>
#include <stdexcept>

namespace coppice {
namespace {

constexpr double kInfinite = std::numeric_limits<double>::infinity();
constexpr std::int64_t kFar = std::numeric_limits<std::int64_t>::max();

/// Dinic's maximum flow with capacities in floating point; what is below `grain` counts as nothing.
class FloatFlow {
 public:
  FloatFlow(std::int32_t vertices, double grain) : first_(vertices, -1), grain_(grain) {}

  void add(std::int32_t from, std::int32_t to, double capacity) {
    push_arc(from, to, capacity);
    push_arc(to, from, 0);
  }

  double run(std::int32_t source, std::int32_t sink, const StopFlag& stop) {
    double flow = 0;
    while (levels(source, sink)) {
      if (stop && stop()) throw Cancelled();
      place_ = first_;
      flow += block(source, sink);
    }
    return flow;
  }

  /// After `run`: whether more could still come from the source.
  bool reached(std::int32_t v) const { return level_[v] >= 0; }

 private:
  void push_arc(std::int32_t from, std::int32_t to, double capacity) {
    to_.push_back(to);
    left_.push_back(capacity);
    next_.push_back(first_[from]);
    first_[from] = static_cast<std::int32_t>(to_.size()) - 1;
  }

  bool levels(std::int32_t source, std::int32_t sink) {
    level_.assign(first_.size(), -1);
    level_[source] = 0;
    queue_.assign(1, source);
    for (std::size_t at = 0; at < queue_.size(); ++at) {
      const std::int32_t v = queue_[at];
      for (std::int32_t e = first_[v]; e >= 0; e = next_[e])
        if (left_[e] > grain_ && level_[to_[e]] < 0) level_[to_[e]] = level_[v] + 1, queue_.push_back(to_[e]);
    }
    return level_[sink] >= 0;
  }

  /// A blocking flow, path by path; the depth of a path is no recursion, since labels make it long.
  double block(std::int32_t source, std::int32_t sink) {
    double total = 0;
    path_.clear();
    std::int32_t v = source;
    for (;;) {
      if (v == sink) {
        double most = kInfinite;
        for (const std::int32_t e : path_) most = std::min(most, left_[e]);
        std::size_t full = path_.size();
        for (std::size_t i = path_.size(); i-- > 0;) {
          left_[path_[i]] -= most, left_[path_[i] ^ 1] += most;
          if (left_[path_[i]] <= grain_) full = i;
        }
        total += most;
        v = to_[path_[full] ^ 1];
        path_.resize(full);
        continue;
      }
      std::int32_t& e = place_[v];
      while (e >= 0 && !(left_[e] > grain_ && level_[to_[e]] == level_[v] + 1)) e = next_[e];
      if (e >= 0) {
        path_.push_back(e);
        v = to_[e];
      } else if (v == source) {
        return total;
      } else {
        level_[v] = -2;  // leads nowhere
        v = to_[path_.back() ^ 1];
        path_.pop_back();
      }
    }
  }

  std::vector<std::int32_t> first_, next_, to_, place_, level_, queue_, path_;
  std::vector<double> left_;
  double grain_;
};

/// Units from each vertex to the sink.
std::vector<std::int64_t> distances_to(const TimedNetwork& network, Vertex sink) {
  std::vector<std::int64_t> found(network.graph.num_vertices(), kFar);
  using Entry = std::pair<std::int64_t, Vertex>;
  std::priority_queue<Entry, std::vector<Entry>, std::greater<>> heap;
  found[sink] = 0;
  heap.push({0, sink});
  while (!heap.empty()) {
    const auto [so_far, v] = heap.top();
    heap.pop();
    if (so_far > found[v]) continue;
    for (const Arc e : network.graph.in(v)) {
      const std::int64_t longer = so_far + network.latency[e];
      if (Vertex u = network.graph.tail(e); longer < found[u]) found[u] = longer, heap.push({longer, u});
    }
  }
  return found;
}

/// The only vertex with a supply, or none.
std::optional<Vertex> only_source(std::span<const double> supply, Vertex sink) {
  std::optional<Vertex> found;
  for (Vertex v = 0; v < static_cast<Vertex>(supply.size()); ++v) {
    if (v == sink || supply[v] == 0) continue;
    if (found) return std::nullopt;
    found = v;
  }
  return found;
}

/// Whether one source can send so much to the sink by `time`. A flow that is repeated for as long as its paths allow
/// sends time * value - cost; the best one is built along shortest residual paths (Ford and Fulkerson, 1958). False
/// also where so many paths do not tell.
bool arrives_by(const TimedNetwork& network, Vertex source, Vertex sink, double amount, double time) {
  constexpr int kMostPaths = 4096;
  const Vertex n = network.graph.num_vertices();
  std::vector<double> sent(network.rate.size(), 0);
  std::vector<std::int64_t> potential(n, 0), distance(n);
  std::vector<std::int32_t> via(n);  // arc e as 2 e, against its direction as 2 e + 1
  using Entry = std::pair<std::int64_t, Vertex>;
  double arrived = 0;
  for (int paths = 0; paths < kMostPaths; ++paths) {
    std::fill(distance.begin(), distance.end(), kFar);
    std::priority_queue<Entry, std::vector<Entry>, std::greater<>> heap;
    const auto reach = [&](Vertex from, Vertex to, std::int64_t cost, std::int32_t arc) {
      const std::int64_t longer = distance[from] + cost + potential[from] - potential[to];
      if (longer < distance[to]) distance[to] = longer, via[to] = arc, heap.push({longer, to});
    };
    distance[source] = 0;
    heap.push({0, source});
    while (!heap.empty()) {
      const auto [so_far, v] = heap.top();
      heap.pop();
      if (so_far > distance[v]) continue;
      for (const Arc e : network.graph.out(v))
        if (sent[e] < network.rate[e]) reach(v, network.graph.head(e), network.latency[e], 2 * e);
      for (const Arc e : network.graph.in(v))
        if (sent[e] > 0) reach(v, network.graph.tail(e), -network.latency[e], 2 * e + 1);
    }
    if (distance[sink] == kFar) return false;
    // Capped at the sink's distance, which keeps all reduced costs at 0 or more.
    for (Vertex v = 0; v < n; ++v) potential[v] += std::min(distance[v], distance[sink]);
    const auto length = static_cast<double>(potential[sink] - potential[source]);
    if (length >= time) return false;
    double most = kInfinite;
    for (Vertex v = sink; v != source;) {
      const Arc e = via[v] / 2;
      const bool back = via[v] % 2;
      most = std::min(most, back ? sent[e] : network.rate[e] - sent[e]);
      v = back ? network.graph.head(e) : network.graph.tail(e);
    }
    for (Vertex v = sink; v != source;) {
      const Arc e = via[v] / 2;
      const bool back = via[v] % 2;
      // What is full or empty is so exactly, or rounding would find the same path again.
      if (back) {
        sent[e] = most == sent[e] ? 0 : sent[e] - most;
      } else {
        sent[e] = most == network.rate[e] - sent[e] ? network.rate[e] : sent[e] + most;
      }
      v = back ? network.graph.head(e) : network.graph.tail(e);
    }
    arrived += most * (time - length);
    if (arrived >= amount) return true;
  }
  return false;
}

/// Sums and differences of latencies within 0 .. limit, those of fewest terms first; second: whether these are all.
std::pair<std::vector<std::int64_t>, bool> offsets_of(std::span<const std::int64_t> latency, std::int64_t limit,
                                                      std::size_t most) {
  std::vector<std::int64_t> steps(latency.begin(), latency.end());
  std::sort(steps.begin(), steps.end());
  steps.erase(std::unique(steps.begin(), steps.end()), steps.end());
  std::vector<std::int64_t> found{0}, front{0};
  while (!front.empty()) {
    std::vector<std::int64_t> after;
    for (const std::int64_t at : front)
      for (const std::int64_t step : steps)
        for (const std::int64_t next : {at + step, at - step})
          if (next >= 0 && next <= limit) after.push_back(next);
    std::sort(after.begin(), after.end());
    after.erase(std::unique(after.begin(), after.end()), after.end());
    front.clear();
    std::set_difference(after.begin(), after.end(), found.begin(), found.end(), std::back_inserter(front));
    if (found.size() + front.size() > most) {
      front.resize(most - std::min(most, found.size()));
      found.insert(found.end(), front.begin(), front.end());
      std::sort(found.begin(), found.end());
      return {found, false};
    }
    found.insert(found.end(), front.begin(), front.end());
    std::sort(found.begin(), found.end());
  }
  return {found, true};
}

/// One time of a labelling, and how it moves with T.
struct Label {
  double time;
  std::int64_t offset;
  std::uint8_t from_end;
};

class Search {
 public:
  Search(const TimedNetwork& network, std::span<const double> supply, Vertex sink, std::vector<std::int64_t> offsets)
      : network_(network), supply_(supply), sink_(sink), offsets_(std::move(offsets)) {
    for (Vertex v = 0; v < network.graph.num_vertices(); ++v)
      if (v != sink) total_ += supply[v];
  }

  /// The labelling that violates (*) most at this time, or none.
  bool violated(double time, Labelling& worst, const StopFlag& stop) const {
    const double same = same_at(time);
    const std::vector<Label> labels = labels_at(time);
    const Vertex n = network_.graph.num_vertices();
    const auto k = static_cast<std::int32_t>(labels.size()) - 1;  // labels 0 .. k, the last one at T
    if (k < 1) return total_ > 0 && (worst = at_once(), true);
    // Vertex (x, i), i = 1 .. k: x between label i - 1 and label i. On the side of the sources: p(x) < label i.
    const auto at = [&](Vertex x, std::int32_t i) { return x == sink_ ? 1 : 2 + (x - (x > sink_)) * k + (i - 1); };
    FloatFlow flow(2 + (n - 1) * k, 1e-13 * total_);
    for (Vertex x = 0; x < n; ++x) {
      if (x == sink_) continue;
      if (supply_[x] > 0) flow.add(0, at(x, 1), supply_[x]);
      for (std::int32_t i = 1; i < k; ++i) flow.add(at(x, i), at(x, i + 1), kInfinite);
    }
    for (Arc e = 0; e < network_.graph.num_arcs(); ++e) {
      const Vertex x = network_.graph.tail(e), y = network_.graph.head(e);
      if (x == sink_) continue;
      const auto late = static_cast<double>(network_.latency[e]);
      // What enters at t in [label i - 1, label i) comes out before label j.
      double from = labels[0].time;
      std::int32_t i = 1, j = 1;
      while (i <= k && from + late < time) {
        while (j < k && labels[j].time <= from + late + same) ++j;
        const double until = std::min(labels[i].time, labels[j].time - late);
        if (until > from + same) flow.add(at(x, i), at(y, j), network_.rate[e] * (until - from));
        from = std::max(until, from + same);
        while (i <= k && labels[i].time <= from + same) ++i;
      }
    }
    const double most = flow.run(0, 1, stop);
    if (most >= total_ * (1 - 1e-9)) return false;
    worst.offset.assign(n, 0);
    worst.from_end.assign(n, 1);
    for (Vertex x = 0; x < n; ++x) {
      if (x == sink_) continue;
      std::int32_t i = 0;
      while (i < k && !flow.reached(at(x, i + 1))) ++i;
      worst.offset[x] = labels[i].offset, worst.from_end[x] = labels[i].from_end;
    }
    return true;
  }

  /// The time from which on a labelling holds: the last at which (*) is an equality. Not above `time` by rounding only.
  double until(const Labelling& labelling, double time) const {
    double needed = 0;
    for (Vertex x = 0; x < network_.graph.num_vertices(); ++x)
      if (x != sink_ && labelling.offset[x] == 0 && !labelling.from_end[x]) needed += supply_[x];
    // Arcs whose windows grow: rate * max(0, T - begin). Those between vertices of one kind stand; shrinking ones are
    // counted at `time`, where they are widest.
    std::vector<std::pair<double, double>> opening;  // begin, rate
    for (Arc e = 0; e < network_.graph.num_arcs(); ++e) {
      const Vertex x = network_.graph.tail(e), y = network_.graph.head(e);
      const auto a = static_cast<double>(network_.latency[e]);
      const auto px = static_cast<double>(labelling.offset[x]), py = static_cast<double>(labelling.offset[y]);
      if (labelling.from_end[y] && !labelling.from_end[x]) {
        opening.push_back({px + py + a, network_.rate[e]});
      } else if (labelling.from_end[x] && labelling.from_end[y]) {
        needed -= network_.rate[e] * std::max(0.0, px - py - a);
      } else if (!labelling.from_end[x] && !labelling.from_end[y]) {
        needed -= network_.rate[e] * std::max(0.0, py - px - a);
      } else {
        needed -= network_.rate[e] * std::max(0.0, py - (time - px) - a);
      }
    }
    std::sort(opening.begin(), opening.end());
    double rate = 0, begun = 0;  // sum of rates, and of rate * begin, of what has opened
    for (std::size_t i = 0; i < opening.size(); ++i) {
      rate += opening[i].second, begun += opening[i].second * opening[i].first;
      const double root = (needed + begun) / rate;
      if (i + 1 == opening.size() || root <= opening[i + 1].first) return root;
    }
    return time;
  }

  double total() const { return total_; }

 private:
  /// Times closer than this are one; latencies are whole units.
  static double same_at(double time) { return std::max(1e-6, 1e-12 * time); }

  std::vector<Label> labels_at(double time) const {
    const double same = same_at(time);
    std::vector<Label> labels;
    for (const std::int64_t offset : offsets_) {
      const auto each = static_cast<double>(offset);
      if (each > time) continue;
      labels.push_back({each, offset, 0});
      labels.push_back({time - each, offset, 1});
    }
    std::sort(labels.begin(), labels.end(), [&](const Label& a, const Label& b) {
      if (a.time != b.time) return a.time < b.time;
      return a.from_end < b.from_end;
    });
    // Of labels at one time the one is kept whose end is nearer, and of these the one nearest to it.
    std::vector<Label> kept;
    for (const Label& each : labels) {
      if (kept.empty() || each.time > kept.back().time + same) {
        kept.push_back(each);
      } else if (each.time > time / 2 ? each.from_end : kept.back().from_end && !each.from_end) {
        kept.back() = each;
      }
    }
    return kept;
  }

  Labelling at_once() const {
    const Vertex n = network_.graph.num_vertices();
    Labelling found{std::vector<std::int64_t>(n, 0), std::vector<std::uint8_t>(n, 0)};
    found.from_end[sink_] = 1;
    return found;
  }

  const TimedNetwork& network_;
  std::span<const double> supply_;
  Vertex sink_;
  std::vector<std::int64_t> offsets_;
  double total_ = 0;
};

void check(const TimedNetwork& network, std::span<const double> supply, Vertex sink) {
  const auto arcs = static_cast<std::size_t>(network.graph.num_arcs());
  if (network.rate.size() != arcs || network.latency.size() != arcs)
    throw std::invalid_argument("a rate and a latency are needed for each arc");
  if (supply.size() != static_cast<std::size_t>(network.graph.num_vertices()))
    throw std::invalid_argument("a supply is needed for each vertex");
  if (sink < 0 || sink >= network.graph.num_vertices()) throw std::invalid_argument("the sink is no vertex");
  for (const double each : network.rate)
    if (!(each > 0) || !std::isfinite(each)) throw std::invalid_argument("rates must be finite and above 0");
  for (const std::int64_t each : network.latency)
    if (each < 0 || each >= std::int64_t{1} << 40) throw std::invalid_argument("latencies must be 0 .. 2^40 - 1 units");
  for (const double each : supply)
    if (!(each >= 0) || !std::isfinite(each)) throw std::invalid_argument("supplies must be finite and 0 or more");
}

}  // namespace

Quickest quickest_to(const TimedNetwork& network, std::span<const double> supply, Vertex sink, double least,
                     std::size_t most_offsets, const StopFlag& stop) {
  check(network, supply, sink);
  const std::vector<std::int64_t> distance = distances_to(network, sink);
  std::int64_t farthest = 0;
  for (Vertex v = 0; v < network.graph.num_vertices(); ++v) {
    if (v == sink || supply[v] == 0) continue;
    if (distance[v] == kFar) throw std::invalid_argument("a supply cannot reach the sink");
    farthest = std::max(farthest, distance[v]);
  }
  const std::int64_t slowest = network.latency.empty() ? 0 : *std::max_element(network.latency.begin(), network.latency.end());
  const std::int64_t longest = slowest * std::max<std::int64_t>(0, network.graph.num_vertices() - 1);
  Quickest found{.time = std::max(least, static_cast<double>(farthest)), .labelling = {}, .since = 0, .complete = true, .steps = 0};
  if (const auto source = only_source(supply, sink))
    if (arrives_by(network, *source, sink, supply[*source], found.time)) return found;
  // Offsets near the ends mostly do; those of all residual paths are looked at from the time that these lead to.
  for (const std::int64_t limit : {std::min(2 * farthest, longest), longest}) {
    auto [offsets, all] = offsets_of(network.latency, limit, most_offsets);
    if (!all) {  // distances to the sink are what cuts near it need most
      for (const std::int64_t each : distance)
        if (each <= 2 * farthest) offsets.push_back(each);
      std::sort(offsets.begin(), offsets.end());
      offsets.erase(std::unique(offsets.begin(), offsets.end()), offsets.end());
    }
    const Search search(network, supply, sink, std::move(offsets));
    for (Labelling worst;;) {
      ++found.steps;
      if (!search.violated(found.time, worst, stop)) break;
      const double later = search.until(worst, found.time);
      if (!(later > found.time * (1 + 1e-12))) break;
      found.since = found.time, found.time = later;
      found.labelling = worst;
    }
    found.complete = all;
    if (!all || limit == longest) break;
  }
  return found;
}

}  // namespace coppice
