#include "breadth_first.h"

#include <algorithm>
#include <bit>
#include <limits>
#include <numeric>
#include <optional>
#include <stdexcept>
#include <string>

namespace coppice {

namespace {

using Word = std::uint64_t;
constexpr std::int32_t kBits = 64;
constexpr std::size_t kBins = 4;  // bins of a counting sort per thing sorted

/// Distances to vertices, looked for when they are first asked for.
class Distances {
 public:
  explicit Distances(const Digraph& graph) : graph_(graph), hops_(graph.num_vertices()), queue_(graph.num_vertices()) {}

  /// Hops from each vertex to `to`, -1 where no path leads there.
  const std::int32_t* towards(Vertex to) {
    if (to < 0 || to >= graph_.num_vertices())
      throw std::invalid_argument("targets must be vertices, found " + std::to_string(to));
    if (hops_[to].empty()) search(to, hops_[to]);
    return hops_[to].data();
  }

 private:
  void search(Vertex to, std::vector<std::int32_t>& hops) {
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

  const Digraph& graph_;
  std::vector<std::vector<std::int32_t>> hops_;  // hops_[to][v]; empty where nobody has asked
  std::vector<Vertex> queue_;
};

/// The sources of one target, by step and by the set of arcs that may bring them.
class Arrivals {
 public:
  struct Group {
    std::size_t first, last;  // the sources sources[first .. last)
    Amount size() const { return static_cast<Amount>(last - first); }
  };

  Arrivals(const Digraph& graph, std::span<const Amount> capacity, Distances& distances)
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
  /// Sorts sources by distance, then by set of links, then by number. Sets of a few links are counted instead.
  void sort_sources(const std::int32_t* hops) {
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
      for (std::size_t i = 0; i < words; ++i)
        if (eligible(a)[i] != eligible(b)[i]) return eligible(a)[i] < eligible(b)[i];
      return a < b;
    });
  }
  int ways(const Group& group) const {
    const Word* set = eligible(sources[group.first]);
    return std::accumulate(set, set + words, 0, [](int sum, Word word) { return sum + __builtin_popcountll(word); });
  }

  const Digraph& graph_;
  std::span<const Amount> capacity_;
  Distances& distances_;
  std::vector<Word> eligible_;      // eligible_[v * words ..]: links that may bring source v
  std::vector<std::size_t> place_;  // where the next source of each bin goes
  std::vector<Vertex> sorted_;
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

/// Who reaches whom in which step, for all vertices at once: sets of sources as bits.
class Waves {
 public:
  /// Gives up where the sets would not fit into a modest memory, or some vertex is not reached by all.
  Waves(const Digraph& graph, const StopFlag& stop)
      : graph_(graph), words_((static_cast<std::size_t>(graph.num_vertices()) + kBits - 1) / kBits) {
    const std::size_t n = graph.num_vertices(), all = n * words_;
    std::vector<Word> seen(all, 0);
    for (std::size_t v = 0; v < n; ++v) seen[v * words_ + v / kBits] |= Word{1} << (v % kBits);
    waves_.push_back(seen);
    for (std::size_t left = n * (n - 1); left > 0;) {
      if (stop && stop()) throw Cancelled{};
      if ((waves_.size() + 1) * all > kMostWords) break;
      const std::vector<Word>& last = waves_.back();
      std::vector<Word> next(all, 0);
      std::size_t found = 0;
      for (std::size_t v = 0; v < n; ++v) {
        Word* here = next.data() + v * words_;
        for (Arc e : graph.in(static_cast<Vertex>(v))) {
          const Word* before = last.data() + graph.tail(e) * words_;
          for (std::size_t i = 0; i < words_; ++i) here[i] |= before[i];
        }
        for (std::size_t i = 0; i < words_; ++i) {
          here[i] &= ~seen[v * words_ + i];
          seen[v * words_ + i] |= here[i];
          found += std::popcount(here[i]);
        }
      }
      if (!found) break;
      left -= found;
      complete_ = left == 0;
      waves_.push_back(std::move(next));
    }
  }

  /// Raises `worst` to the loads that the target needs in each step. False where it is left to flows: where the sets
  /// are not known, or too many sets of links would have to be looked at.
  bool settle(Vertex target, std::span<const Amount> capacity, std::vector<Ratio>& worst) {
    const auto links = graph_.in(target);
    if (!complete_ || links.size() > kFewLinks) return false;
    limit_.assign(std::size_t{1} << links.size(), 0);
    for (std::size_t set = 1; set < limit_.size(); ++set) {
      const int last = std::countr_zero(set);
      limit_[set] = limit_[set & (set - 1)] + capacity[links[last]];
    }
    for (std::size_t step = 1; step < waves_.size(); ++step) {
      const Word* here = waves_[step].data() + target * words_;
      if (std::all_of(here, here + words_, [](Word word) { return word == 0; })) break;
      if (worst.size() < step) worst.emplace_back(0, 1);
      before_.clear();
      for (Arc e : links) before_.push_back(waves_[step - 1].data() + graph_.tail(e) * words_);
      if (harmless(here, worst[step - 1])) continue;
      count_sets(here);
      for (std::size_t set = 1; set < limit_.size(); ++set)
        if (Wide{within_[set]} * worst[step - 1].denominator > Wide{worst[step - 1].numerator} * limit_[set])
          worst[step - 1] = Ratio(within_[set], limit_[set]);
    }
    return true;
  }

 private:
  /// Whether each link could take all the sources that it is eligible for.
  bool harmless(const Word* here, const Ratio& load) const {
    for (std::size_t link = 0; link < before_.size(); ++link) {
      Amount brought = 0;
      for (std::size_t i = 0; i < words_; ++i) brought += std::popcount(here[i] & before_[link][i]);
      if (Wide{brought} * load.denominator > Wide{load.numerator} * limit_[std::size_t{1} << link]) return false;
    }
    return true;
  }

  /// Sets within_[W] to the number of sources that have no way but the links W.
  void count_sets(const Word* here) {
    within_.assign(limit_.size(), 0);
    for (std::size_t i = 0; i < words_; ++i)
      for (Word left = here[i]; left; left &= left - 1) {
        const int bit = std::countr_zero(left);
        std::size_t set = 0;
        for (std::size_t link = 0; link < before_.size(); ++link) set |= (before_[link][i] >> bit & 1) << link;
        ++within_[set];
      }
    for (std::size_t link = 0; link < before_.size(); ++link)
      for (std::size_t set = 0; set < within_.size(); ++set)
        if (set >> link & 1) within_[set] += within_[set ^ std::size_t{1} << link];
  }

  static constexpr std::size_t kMostWords = std::size_t{1} << 24;
  static constexpr std::size_t kFewLinks = 10;

  const Digraph& graph_;
  std::size_t words_;                     // words of a set of sources
  std::vector<std::vector<Word>> waves_;  // waves_[t][v * words_ ..]: sources at distance t from v
  bool complete_ = false;
  std::vector<const Word*> before_;  // of each link into the target: the sources that its tail has received last
  std::vector<Amount> limit_;        // capacity of each set of these links
  std::vector<Amount> within_;
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
  Distances distances(graph);
  Arrivals arrivals(graph, capacity, distances);
  Assignment assignment(arrivals);
  std::vector<Ratio> worst;
  std::vector<Amount> room;
  std::optional<Waves> waves;  // pays where many vertices are targets
  if (4 * targets.size() > static_cast<std::size_t>(graph.num_vertices())) waves.emplace(graph, stop);
  for (Vertex target : targets) {
    if (stop && stop()) throw Cancelled{};
    if (waves && target >= 0 && target < graph.num_vertices() && waves->settle(target, capacity, worst)) continue;
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
  Distances distances(graph);
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
