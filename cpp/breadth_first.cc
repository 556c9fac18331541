#include "breadth_first.h"

#include <algorithm>
#include <limits>
#include <numeric>
#include <stdexcept>
#include <string>

namespace coppice {

namespace {

using Word = std::uint64_t;
constexpr std::int32_t kBits = 64;

/// Distances to all targets and to the tails of the arcs that enter them.
class Distances {
 public:
  Distances(const Digraph& graph, std::span<const Vertex> targets, const StopFlag& stop)
      : num_vertices_(graph.num_vertices()), row_(num_vertices_, -1) {
    std::vector<Vertex> needed;
    auto need = [&](Vertex v) {
      if (row_[v] >= 0) return;
      row_[v] = static_cast<std::int32_t>(needed.size());
      needed.push_back(v);
    };
    for (Vertex u : targets) {
      if (u < 0 || u >= graph.num_vertices()) throw std::invalid_argument("targets must be vertices, found " + std::to_string(u));
      need(u);
      for (Arc e : graph.in(u)) need(graph.tail(e));
    }
    hops_.assign(needed.size() * num_vertices_, -1);
    std::vector<Vertex> queue(num_vertices_);
    for (std::size_t i = 0; i < needed.size(); ++i) {
      if (stop && stop()) throw Cancelled{};
      search(graph, needed[i], hops_.data() + i * num_vertices_, queue);
    }
  }

  /// Hops from each vertex to `to`, -1 where no path leads there.
  const std::int32_t* towards(Vertex to) const { return hops_.data() + static_cast<std::size_t>(row_[to]) * num_vertices_; }

 private:
  static void search(const Digraph& graph, Vertex to, std::int32_t* hops, std::vector<Vertex>& queue) {
    std::size_t head = 0, tail = 0;
    queue[tail++] = to;
    hops[to] = 0;
    while (head < tail) {
      Vertex v = queue[head++];
      for (Arc e : graph.in(v)) {
        Vertex w = graph.tail(e);
        if (hops[w] >= 0) continue;
        hops[w] = hops[v] + 1;
        queue[tail++] = w;
      }
    }
  }

  std::size_t num_vertices_;
  std::vector<std::int32_t> row_;   // row_[v] of hops_, -1 where not needed
  std::vector<std::int32_t> hops_;  // hops_[row * num_vertices_ + v]
};

/// The sources of one target, by step and by the set of arcs that may bring them.
class Arrivals {
 public:
  struct Group {
    std::size_t first, last;  // the sources sources[first .. last)
    Amount size() const { return static_cast<Amount>(last - first); }
  };

  Arrivals(const Digraph& graph, std::span<const Amount> capacity, const Distances& distances)
      : graph_(graph), capacity_(capacity), distances_(distances) {}

  void look_at(Vertex target) {
    const std::int32_t* hops = distances_.towards(target);
    links.assign(graph_.in(target).begin(), graph_.in(target).end());
    link_capacity.clear();
    for (Arc e : links) link_capacity.push_back(capacity_[e]);
    words = (links.size() + kBits - 1) / kBits;
    const std::size_t n = graph_.num_vertices();
    eligible_.assign(n * words, 0);
    for (std::size_t i = 0; i < links.size(); ++i) {
      const std::int32_t* before = distances_.towards(graph_.tail(links[i]));
      for (std::size_t v = 0; v < n; ++v)
        if (before[v] + 1 == hops[v]) eligible_[v * words + i / kBits] |= Word{1} << (i % kBits);
    }
    sources.clear();
    for (Vertex v = 0; v < graph_.num_vertices(); ++v) {
      if (hops[v] < 0)
        throw std::invalid_argument("vertex " + std::to_string(target) + " must be reached by all, not by " + std::to_string(v));
      if (v != target) sources.push_back(v);
    }
    auto order = [&](Vertex a, Vertex b) {
      if (hops[a] != hops[b]) return hops[a] < hops[b];
      for (std::size_t i = 0; i < words; ++i)
        if (eligible(a)[i] != eligible(b)[i]) return eligible(a)[i] < eligible(b)[i];
      return a < b;
    };
    std::ranges::sort(sources, order);
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

  const Word* eligible(Vertex source) const { return eligible_.data() + source * words; }
  bool may_use(const Group& group, std::size_t link) const {
    return eligible(sources[group.first])[link / kBits] >> (link % kBits) & 1;
  }

  std::vector<Arc> links;             // arcs into the target
  std::vector<Amount> link_capacity;  // of each of them
  std::size_t words = 0;              // words of a set of links
  std::vector<Vertex> sources;        // all other vertices, group by group
  std::vector<std::vector<Group>> steps;  // steps[t - 1]: groups at distance t

 private:
  bool alike(const std::int32_t* hops, Vertex a, Vertex b) const {
    return hops[a] == hops[b] && std::equal(eligible(a), eligible(a) + words, eligible(b));
  }
  int ways(const Group& group) const {
    const Word* set = eligible(sources[group.first]);
    return std::accumulate(set, set + words, 0, [](int sum, Word word) { return sum + __builtin_popcountll(word); });
  }

  const Digraph& graph_;
  std::span<const Amount> capacity_;
  const Distances& distances_;
  std::vector<Word> eligible_;  // eligible_[v * words ..]: links that may bring source v
};

/// A flow from the groups of one step to the links of the target.
class Assignment {
 public:
  explicit Assignment(const Arrivals& arrivals) : arrivals_(arrivals) {}

  /// Sends `unit` from every source to the links, each of which takes up to its room. False where that is impossible;
  /// then `wanting` sources have no way but links of capacity `capacity` in all, whose room does not suffice.
  bool route(const std::vector<Arrivals::Group>& groups, Amount unit, std::span<const Amount> room) {
    const std::size_t num_links = arrivals_.links.size();
    left_.assign(room.begin(), room.end());
    flow_.assign(groups.size() * num_links, 0);
    for (std::size_t g = 0; g < groups.size(); ++g) {
      Amount supply = groups[g].size() * unit;
      for (std::size_t link = 0; link < num_links && supply > 0; ++link) {
        if (!left_[link] || !arrivals_.may_use(groups[g], link)) continue;
        Amount amount = std::min(supply, left_[link]);
        flow_[g * num_links + link] += amount;
        left_[link] -= amount;
        supply -= amount;
      }
      while (supply > 0) {
        Amount moved = augment(groups, g, supply);
        if (!moved) return note_shortage(groups);
        supply -= moved;
      }
    }
    return true;
  }

  Amount flow(std::size_t group, std::size_t link) const { return flow_[group * arrivals_.links.size() + link]; }

  Amount wanting = 0;
  Amount capacity = 0;

 private:
  /// Makes room for up to `limit` of group g by moving others; 0 where no link with room can be reached.
  Amount augment(const std::vector<Arrivals::Group>& groups, std::size_t g, Amount limit) {
    const std::size_t num_links = arrivals_.links.size();
    group_of_.assign(num_links, -1);
    link_of_.assign(groups.size(), -1);
    link_of_[g] = static_cast<std::int32_t>(num_links);
    queue_.clear();
    auto offer = [&](std::size_t group) {
      for (std::size_t link = 0; link < num_links; ++link) {
        if (group_of_[link] >= 0 || !arrivals_.may_use(groups[group], link)) continue;
        group_of_[link] = static_cast<std::int32_t>(group);
        queue_.push_back(link);
      }
    };
    offer(g);
    for (std::size_t head = 0; head < queue_.size(); ++head) {
      std::size_t link = queue_[head];
      if (left_[link] > 0) return shift(g, link, std::min(limit, left_[link]));
      for (std::size_t group = 0; group < groups.size(); ++group) {
        if (link_of_[group] >= 0 || !flow_[group * num_links + link]) continue;
        link_of_[group] = static_cast<std::int32_t>(link);
        offer(group);
      }
    }
    return 0;
  }

  Amount shift(std::size_t g, std::size_t link, Amount amount) {
    const std::size_t num_links = arrivals_.links.size();
    for (std::size_t group = group_of_[link]; group != g;) {
      std::size_t from = link_of_[group];
      amount = std::min(amount, flow_[group * num_links + from]);
      group = group_of_[from];
    }
    left_[link] -= amount;
    for (std::size_t group = group_of_[link];; group = group_of_[link]) {
      flow_[group * num_links + link] += amount;
      if (group == g) return amount;
      link = link_of_[group];
      flow_[group * num_links + link] -= amount;
    }
  }

  /// The links that the search reached are full, and all that fills them has no other way.
  bool note_shortage(const std::vector<Arrivals::Group>& groups) {
    wanting = capacity = 0;
    for (std::size_t link = 0; link < group_of_.size(); ++link)
      if (group_of_[link] >= 0) capacity += arrivals_.link_capacity[link];
    for (std::size_t group = 0; group < groups.size(); ++group) {
      bool confined = true;
      for (std::size_t link = 0; link < group_of_.size() && confined; ++link)
        confined = group_of_[link] >= 0 || !arrivals_.may_use(groups[group], link);
      if (confined) wanting += groups[group].size();
    }
    return false;
  }

  const Arrivals& arrivals_;
  std::vector<Amount> left_;            // room left on each link
  std::vector<Amount> flow_;            // flow_[group * links + link]
  std::vector<std::int32_t> group_of_;  // group_of_[link]: group that found the link in the search, or -1
  std::vector<std::int32_t> link_of_;   // link_of_[group]: link that led to the group, or -1
  std::vector<std::size_t> queue_;
};

struct Ratio {
  Amount numerator, denominator;
  Ratio(Amount p, Amount q) : numerator(p / std::gcd(p, q)), denominator(q / std::gcd(p, q)) {}
  bool operator<(const Ratio& other) const {
    return Wide{numerator} * other.denominator < Wide{other.numerator} * denominator;
  }
};

void check(const Digraph& graph, std::span<const Amount> capacity) {
  if (capacity.size() != static_cast<std::size_t>(graph.num_arcs()))
    throw std::invalid_argument("capacity must have one entry for each arc");
  Wide sum = 0;
  for (Amount c : capacity) {
    if (c <= 0) throw std::invalid_argument("capacities must be positive, found " + std::to_string(c));
    sum += c;
  }
  if (sum * graph.num_vertices() >= Wide{1} << 62)
    throw std::overflow_error("vertices times the sum of the capacities must stay below 2^62");
}

/// Whether the groups of a step get by with load `ratio`; where not, the assignment says what they need at least.
bool attains(const Arrivals& arrivals, Assignment& assignment, std::size_t step, const Ratio& ratio,
             std::vector<Amount>& room) {
  room.clear();
  for (Amount c : arrivals.link_capacity) room.push_back(ratio.numerator * c);
  return assignment.route(arrivals.steps[step], ratio.denominator, room);
}

}  // namespace

StepLoads balanced_loads(const Digraph& graph, std::span<const Amount> capacity, std::span<const Vertex> targets,
                         const StopFlag& stop) {
  check(graph, capacity);
  Distances distances(graph, targets, stop);
  Arrivals arrivals(graph, capacity, distances);
  Assignment assignment(arrivals);
  std::vector<Ratio> worst;
  std::vector<Amount> room;
  for (Vertex target : targets) {
    if (stop && stop()) throw Cancelled{};
    arrivals.look_at(target);
    const Amount all = std::reduce(arrivals.link_capacity.begin(), arrivals.link_capacity.end(), Amount{0});
    for (std::size_t step = 0; step < arrivals.steps.size(); ++step) {
      const auto& groups = arrivals.steps[step];
      Amount sources = 0;
      for (const auto& group : groups) sources += group.size();
      const Ratio even(sources, all);
      if (worst.size() == step) worst.push_back(even);
      else if (worst[step] < even) worst[step] = even;
      while (!attains(arrivals, assignment, step, worst[step], room))
        worst[step] = Ratio(assignment.wanting, assignment.capacity);
    }
  }
  StepLoads loads;
  for (const Ratio& ratio : worst) {
    loads.numerator.push_back(ratio.numerator);
    loads.denominator.push_back(ratio.denominator);
  }
  return loads;
}

Deliveries balanced_deliveries(const Digraph& graph, std::span<const Amount> capacity, std::span<const Vertex> targets,
                               const StepLoads& loads, Amount pieces, const StopFlag& stop) {
  check(graph, capacity);
  if (pieces < 1 || pieces > std::numeric_limits<std::int32_t>::max())
    throw std::invalid_argument("pieces must be 1 .. 2^31 - 1, found " + std::to_string(pieces));
  const Amount largest = capacity.empty() ? 1 : *std::ranges::max_element(capacity);
  for (Amount p : loads.numerator)
    if (Wide{p} * pieces * largest >= Wide{1} << 62) throw std::overflow_error("loads times pieces must stay below 2^62");
  Distances distances(graph, targets, stop);
  Arrivals arrivals(graph, capacity, distances);
  Assignment assignment(arrivals);
  Deliveries found;
  std::vector<Amount> room;
  for (Vertex target : targets) {
    if (stop && stop()) throw Cancelled{};
    arrivals.look_at(target);
    if (arrivals.steps.size() > loads.numerator.size() || loads.numerator.size() != loads.denominator.size())
      throw std::invalid_argument("loads must name every step");
    for (std::size_t step = 0; step < arrivals.steps.size(); ++step) {
      const auto& groups = arrivals.steps[step];
      const Amount q = loads.denominator[step];
      room.clear();
      for (Amount c : arrivals.link_capacity) room.push_back((loads.numerator[step] * c * pieces + q - 1) / q);
      if (!assignment.route(groups, pieces, room)) throw std::invalid_argument("loads must be attainable");
      for (std::size_t g = 0; g < groups.size(); ++g) {
        std::size_t place = groups[g].first;
        Amount begun = 0;  // pieces of the source at `place` that have a link
        for (std::size_t link = 0; link < arrivals.links.size(); ++link)
          for (Amount amount = assignment.flow(g, link); amount > 0;) {
            Amount run = std::min(amount, pieces - begun);
            found.step.push_back(static_cast<std::int32_t>(step + 1));
            found.source.push_back(arrivals.sources[place]);
            found.arc.push_back(arrivals.links[link]);
            found.first.push_back(static_cast<std::int32_t>(begun));
            found.count.push_back(static_cast<std::int32_t>(run));
            amount -= run;
            begun += run;
            if (begun == pieces) ++place, begun = 0;
          }
      }
    }
  }
  return found;
}

}  // namespace coppice
