#include "splitting/split_off.h"

#include <algorithm>
#include <limits>
#include <numeric>
#include <unordered_map>
#include <utility>

#include "cuts/feasibility.h"

namespace coppice {

namespace {

constexpr std::size_t kMostTight = 4096;  // sets to remember: looking through more would cost more than they save

class Splitter {
 public:
  Splitter(const Digraph& graph, std::span<const std::uint8_t> terminal, std::span<const Amount> roots,
           std::span<const Amount> capacity, const StopFlag& stop)
      : graph_(graph), terminal_(terminal), roots_(roots), stop_(stop), num_terminals_(std::ranges::count_if(terminal, [](auto t) { return t != 0; })) {
    demand_ = std::accumulate(roots.begin(), roots.end(), Amount{0});
    for (Arc e = 0; e < graph.num_arcs(); ++e)
      if (capacity[e] > 0) add(graph.tail(e), graph.head(e), {{e}, capacity[e]});
  }

  SplitNetwork run() {
    for (Vertex w : switches()) {
      remove(w);
      drop_empty();
    }
    return {std::move(arcs_), flows_};
  }

 private:
  // Those with few neighbours first: they give few pairs, and NICs have one neighbour on either side.
  std::vector<Vertex> switches() const {
    std::vector<Vertex> order;
    for (Vertex v = 0; v < graph_.num_vertices(); ++v)
      if (!terminal_[v]) order.push_back(v);
    std::ranges::stable_sort(order, {}, [&](Vertex v) { return graph_.in(v).size() * graph_.out(v).size(); });
    return order;
  }

  static std::int64_t key(Vertex u, Vertex v) { return (static_cast<std::int64_t>(u) << 32) | static_cast<std::int64_t>(v); }

  std::size_t at(Vertex u, Vertex v) {
    const auto [where, fresh] = index_.emplace(key(u, v), arcs_.size());
    if (fresh) arcs_.push_back({u, v, 0, {}});
    return where->second;
  }

  void add(Vertex u, Vertex v, Strand strand) {
    LogicalArc& arc = arcs_[at(u, v)];
    arc.capacity += strand.amount;
    arc.strands.push_back(std::move(strand));
  }

  void remove(Vertex w) {
    std::vector<Vertex> into, out_of;
    for (const LogicalArc& arc : arcs_) {
      if (arc.head == w) into.push_back(arc.tail);
      if (arc.tail == w) out_of.push_back(arc.head);
    }
    std::ranges::sort(into);
    std::ranges::sort(out_of);
    for (bool back : {false, true}) {  // a way back to where it came from only gives capacity up
      for (Vertex u : into) {
        // Each goes on with the neighbour behind it, so that not all of them begin with the same.
        const auto first = static_cast<std::size_t>(std::ranges::upper_bound(out_of, u) - out_of.begin());
        for (std::size_t i = 0; i < out_of.size(); ++i) {
          const Vertex t = out_of[(first + i) % out_of.size()];
          if ((u == t) == back) split(u, w, t);
        }
      }
    }
    for (LogicalArc& arc : arcs_)
      if (arc.head == w || arc.tail == w) arc.capacity = 0;
  }

  void split(Vertex u, Vertex w, Vertex t) {
    const std::size_t first = at(u, w), second = at(w, t);
    Amount amount = std::min(arcs_[first].capacity, arcs_[second].capacity);
    if (amount == 0 || is_forbidden(u, w, t)) return;
    const std::size_t joined = u == t ? first : at(u, t);
    const auto change = [&](Amount by) {
      arcs_[first].capacity -= by, arcs_[second].capacity -= by;
      if (u != t) arcs_[joined].capacity += by;
    };
    change(amount);
    if (const Amount lacking = worst_lack(); lacking > 0) {
      change(-lacking);
      amount -= lacking;
    }
    if (amount > 0) join(first, second, u == t ? nullptr : &arcs_[joined], amount);
  }

  bool is_forbidden(Vertex u, Vertex w, Vertex t) const {
    return std::ranges::any_of(tight_, [&](const auto& set) { return set[u] == set[t] && set[w] != set[u]; });
  }

  // By how much the tentative capacities violate (I); remembers the worst set, which the caller makes tight.
  Amount worst_lack() {
    std::vector<Vertex> tail, head;
    capacity_.clear();
    for (const LogicalArc& arc : arcs_) {
      if (arc.capacity == 0) continue;
      tail.push_back(arc.tail), head.push_back(arc.head), capacity_.push_back(arc.capacity);
    }
    const Digraph now(graph_.num_vertices(), tail, head);
    FeasibilityCheck<Amount> check(now, terminal_);
    flows_ += num_terminals_;
    poll(stop_);
    Amount worst = 0;
    std::vector<std::uint8_t> inside(graph_.num_vertices(), 0), worst_inside;
    for (const auto& set : check.violated(capacity_, roots_, demand_, std::numeric_limits<std::size_t>::max(), stop_)) {
      Amount lack = demand_;
      for (Vertex v : set) inside[v] = 1, lack -= roots_[v];
      for (Vertex v : set)
        for (Arc e : now.in(v))
          if (!inside[now.tail(e)]) lack -= capacity_[e];
      if (lack > worst) worst = lack, worst_inside = inside;
      for (Vertex v : set) inside[v] = 0;
    }
    if (worst > 0 && tight_.size() < kMostTight) tight_.push_back(std::move(worst_inside));
    return worst;
  }

  // Joins `amount` of the strands end to end, or gives it up.
  void join(std::size_t first, std::size_t second, LogicalArc* joined, Amount amount) {
    std::vector<Strand>&left = arcs_[first].strands, &right = arcs_[second].strands;
    while (amount > 0) {
      const Amount used = std::min({amount, left.back().amount, right.back().amount});
      if (joined) {
        Strand strand{without_loops(left.back().path, right.back().path), used};
        const auto same = std::ranges::find(joined->strands, strand.path, &Strand::path);
        if (same == joined->strands.end()) {
          joined->strands.push_back(std::move(strand));
        } else {
          same->amount += used;
        }
      }
      amount -= used;
      for (auto* strands : {&left, &right})
        if ((strands->back().amount -= used) == 0) strands->pop_back();
    }
  }

  // The two paths after each other, without round trips.
  std::vector<Arc> without_loops(const std::vector<Arc>& first, const std::vector<Arc>& second) const {
    std::vector<Arc> path;
    for (const auto* part : {&first, &second}) {
      for (Arc e : *part) {
        const auto seen = std::ranges::find(path, graph_.head(e), [&](Arc a) { return graph_.tail(a); });
        if (seen == path.end()) {
          path.push_back(e);
        } else {
          path.erase(seen, path.end());
        }
      }
    }
    return path;
  }

  void drop_empty() {
    std::erase_if(arcs_, [](const LogicalArc& arc) { return arc.capacity == 0; });
    index_.clear();
    for (std::size_t i = 0; i < arcs_.size(); ++i) index_.emplace(key(arcs_[i].tail, arcs_[i].head), i);
  }

  const Digraph& graph_;
  std::span<const std::uint8_t> terminal_;
  std::span<const Amount> roots_;
  const StopFlag& stop_;
  std::int64_t num_terminals_, flows_ = 0;
  Amount demand_ = 0;
  std::vector<LogicalArc> arcs_;
  std::unordered_map<std::int64_t, std::size_t> index_;  // of the arc between two vertices
  std::vector<std::vector<std::uint8_t>> tight_;         // per set: which vertices it holds
  std::vector<Amount> capacity_;
};

}  // namespace

SplitNetwork split_off_switches(const Digraph& graph, std::span<const std::uint8_t> terminal, std::span<const Amount> roots,
                                std::span<const Amount> capacity, const StopFlag& stop) {
  return Splitter(graph, terminal, roots, capacity, stop).run();
}

}  // namespace coppice
