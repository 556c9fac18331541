#include "splitting/batches.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "cuts/feasibility.h"
#include "packing/packing.h"

namespace coppice {

namespace {

class BatchPacker {
 public:
  BatchPacker(const Digraph& graph, std::span<const std::uint8_t> terminal, std::span<const Amount> roots,
              std::span<const Amount> capacity, const StopFlag& stop)
      : graph_(graph), terminal_(terminal), stop_(stop), capacity_(capacity.begin(), capacity.end()), untouched_(roots.begin(), roots.end()) {
    place_.assign(graph.num_vertices(), -1);
    for (Vertex v = 0; v < graph.num_vertices(); ++v)
      if (terminal[v]) place_[v] = num_terminals_++;
    forbidden_.assign(static_cast<std::size_t>(graph.num_arcs()) * num_terminals_, 0);
    for (Amount r : untouched_) others_ += r;
  }

  Batches run() {
    for (Vertex root = 0; root < graph_.num_vertices(); ++root) {
      if (untouched_[root] == 0) continue;
      waiting_.push_back({root, std::exchange(untouched_[root], 0), {root}, {}});
      while (!waiting_.empty()) {
        Batch batch = std::move(waiting_.back());
        waiting_.pop_back();
        network_.reset();
        others_ -= batch.weight;
        grow(batch);
        result_.batches.push_back(std::move(batch));
      }
    }
    return std::move(result_);
  }

 private:
  void grow(Batch& batch) {
    std::vector<std::uint8_t> reached(graph_.num_vertices(), 0);
    reached[batch.root] = 1;
    for (Vertex v : batch.reached) reached[v] = 1;
    std::vector<Arc> wide;
    for (std::size_t i = 0; i < batch.reached.size(); ++i) {
      const Vertex x = batch.reached[i];
      wide.assign(graph_.out(x).begin(), graph_.out(x).end());
      std::ranges::stable_sort(wide, std::greater<>(), [&](Arc e) { return capacity_[e]; });
      for (Arc e : wide) {
        const Vertex y = graph_.head(e);
        if (reached[y] || capacity_[e] == 0 || is_forbidden(e, batch)) continue;
        const Amount amount = joinable(e, batch);
        if (amount == 0) continue;
        if (amount < batch.weight) {
          waiting_.push_back(batch);
          waiting_.back().weight -= amount;
          others_ += waiting_.back().weight;
          batch.weight = amount;
          network_.reset();
        }
        reached[y] = 1;
        batch.reached.push_back(y);
        batch.arcs.push_back(e);
        capacity_[e] -= amount;
      }
    }
    if (static_cast<std::int32_t>(batch.reached.size()) < num_terminals_) throw NoPacking{};
  }

  std::uint8_t& forbidden(Arc e, Vertex reached) {
    return forbidden_[static_cast<std::size_t>(e) * num_terminals_ + place_[reached]];
  }

  bool is_forbidden(Arc e, const Batch& batch) {
    return std::ranges::any_of(batch.reached, [&](Vertex v) { return forbidden(e, v) != 0; });
  }

  // The terminals, and a source for each batch that waits with an arc to each terminal that it has reached.
  struct WithSources {
    explicit WithSources(const BatchPacker& packer) {
      std::vector<Vertex> tail, head;
      const Digraph& graph = packer.graph_;
      for (Arc e = 0; e < graph.num_arcs(); ++e) tail.push_back(graph.tail(e)), head.push_back(graph.head(e));
      capacity.resize(tail.size());
      supply = packer.untouched_;
      for (const Batch& batch : packer.waiting_) {
        for (Vertex v : batch.reached) {
          tail.push_back(static_cast<Vertex>(supply.size())), head.push_back(v);
          capacity.push_back(batch.weight);
        }
        supply.push_back(batch.weight);
      }
      const auto size = static_cast<Vertex>(supply.size());
      graph_with = Digraph(size, tail, head);
      std::vector<std::uint8_t> terminal(packer.terminal_.begin(), packer.terminal_.end());
      terminal.resize(supply.size(), 0);
      check.emplace(graph_with, terminal);
    }

    Digraph graph_with;
    std::vector<Amount> capacity, supply;
    std::optional<FeasibilityCheck<Amount>> check;
  };

  // For how many trees of the batch arc e can be taken so that all batches can still be completed.
  Amount joinable(Arc e, const Batch& batch) {
    poll(stop_);
    if (!network_) network_.emplace(*this);
    std::copy(capacity_.begin(), capacity_.end(), network_->capacity.begin());
    const Amount wanted = std::min(batch.weight, capacity_[e]), demand = others_ + wanted;
    const Vertex x = graph_.tail(e);
    const Amount fed = std::exchange(network_->supply[x], demand);  // no set that holds x falls short
    ++result_.flows;
    const std::vector<Vertex> set = network_->check->violated_at(graph_.head(e), network_->capacity, network_->supply, demand);
    network_->supply[x] = fed;
    if (set.empty()) return wanted;
    return wanted - learn(set, demand);
  }

  // Makes the marks of a set that is about to be tight; returns what it lacks.
  Amount learn(const std::vector<Vertex>& set, Amount demand) {
    const Digraph& graph = network_->graph_with;
    std::vector<std::uint8_t> inside(graph.num_vertices(), 0);
    for (Vertex v : set) inside[v] = 1;
    Amount value = 0;
    for (Vertex v : set) {
      value += network_->supply[v];
      for (Arc e : graph.in(v)) {
        if (inside[graph.tail(e)]) continue;
        value += network_->capacity[e];
        if (e >= graph_.num_arcs()) continue;
        for (Vertex r : set)
          if (r < graph_.num_vertices() && terminal_[r]) forbidden(e, r) = 1;
      }
    }
    return demand - value;
  }

  const Digraph& graph_;
  std::span<const std::uint8_t> terminal_;
  const StopFlag& stop_;
  std::vector<Amount> capacity_;         // that is left
  std::vector<Amount> untouched_;        // per vertex: trees of which nothing but the root is there
  std::vector<Batch> waiting_;
  Amount others_ = 0;                    // trees of all batches but the one that grows, finished ones left out
  std::int32_t num_terminals_ = 0;
  std::vector<std::int32_t> place_;      // per vertex: its number among the terminals
  std::vector<std::uint8_t> forbidden_;  // per arc and terminal
  std::optional<WithSources> network_;   // of waiting_ as it is
  Batches result_;
};

}  // namespace

Batches pack_batches(const Digraph& graph, std::span<const std::uint8_t> terminal, std::span<const Amount> roots,
                     std::span<const Amount> capacity, const StopFlag& stop) {
  return BatchPacker(graph, terminal, roots, capacity, stop).run();
}

}  // namespace coppice
