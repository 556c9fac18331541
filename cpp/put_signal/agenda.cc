#include "put_signal/agenda.h"

#include <algorithm>
#include <functional>
#include <numeric>

namespace coppice::put_signal {

Agenda::Agenda(const Script& script)
    : script_(script), base_(2 * script.num_ranks), operations_(script.num_operations), class_(at(base_) + 2 * at(operations_)) {
  for (const Operation& op : script.operations) source_rank_.push_back(script.call_rank[at(op.call)]);
}

void Agenda::start(Adversary kind, std::uint64_t seed) {
  for (auto& there : classes_) there.clear();
  occupied_ = 0;
  size_ = taken_ = 0;
  next_change_ = -1;
  changes_.clear();
  state_ = seed;
  depth_first_ = kind == Adversary::kNewest;
  deal_out(kind);
}

/// Every action that there is.
template <class Visit>
void Agenda::for_all(Visit&& visit) const {
  for (Action action = 0; action < base_; ++action) visit(action);
  for (std::int32_t number = 0; number < operations_; ++number) {
    const Act act = script_.operations[at(number)].act;
    if (act == Act::kPut || act == Act::kCopy || act == Act::kSum) visit(first_of(number));
    if (act == Act::kPut) visit(landing_of(number));
  }
}

/// Who acts: a stream, or a link where data land; beginnings and ends go with the rank's first stream.
std::int64_t Agenda::thread_of(Action action) const {
  const auto [what, number] = meaning(action);
  if (what == Happening::kBegin || what == Happening::kEnd) return -1 - std::int64_t{number};
  const Operation& op = script_.operations[at(number)];
  const std::int64_t streams = std::int64_t{script_.num_calls};
  if (what == Happening::kLand) return streams + std::int64_t{source_rank_[at(number)]} * script_.num_ranks + op.peer;
  return script_.stream[at(op.call)];
}

void Agenda::deal_out(Adversary kind) {
  const std::uint64_t salt = draw(), share = draw();
  const bool lands_last = draw() % 2 == 0;
  const auto slow = [&](std::int64_t which) { return mixed(salt, static_cast<std::uint64_t>(which)) < share; };
  std::vector<std::uint8_t> place;  // of each rank, the first first
  if (kind == Adversary::kOneRank) {
    std::vector<std::int32_t> order(at(script_.num_ranks));
    std::iota(order.begin(), order.end(), 0);
    for (std::size_t i = order.size(); i > 1; --i) std::swap(order[i - 1], order[at(static_cast<std::int64_t>(draw() % i))]);
    place.resize(order.size());
    for (std::size_t i = 0; i < order.size(); ++i) place[at(order[i])] = static_cast<std::uint8_t>(i % (kClasses / 2));
  }
  if (kind == Adversary::kPriorities) {
    for (int i = 0; i < 3; ++i) changes_.push_back(1 + static_cast<std::int64_t>(draw() % static_cast<std::uint64_t>(script_.actions)));
    std::sort(changes_.begin(), changes_.end(), std::greater<>{});
    next_change_ = changes_.back();
  }
  const auto class_of = [&](Happening what, std::int32_t number) -> std::uint32_t {
    const bool is_operation = what != Happening::kBegin && what != Happening::kEnd, lands = what == Happening::kLand;
    const std::int32_t rank = is_operation ? source_rank_[at(number)] : number;
    switch (kind) {
      case Adversary::kAny:
      case Adversary::kNewest:
        return 0;
      case Adversary::kLateLandings:
        return lands;
      case Adversary::kEarlyLandings:
        return !lands;
      case Adversary::kLateReads:
        return what == Happening::kRead ? 2 : lands && lands_last;
      case Adversary::kLateBegins:
        return what == Happening::kBegin ? 2 : lands && lands_last;
      case Adversary::kSlowRanks:
        return 2 * slow(rank) + (lands && lands_last);
      case Adversary::kSlowStreams:
        return 2 * (is_operation && slow(script_.stream[at(script_.operations[at(number)].call)])) + (lands && lands_last);
      case Adversary::kSlowLinks:
        return lands && slow(std::int64_t{rank} * script_.num_ranks + script_.operations[at(number)].peer);
      case Adversary::kOneRank:
        return 2u * place[at(lands && !lands_last ? script_.operations[at(number)].peer : rank)] + (lands && lands_last);
      case Adversary::kPriorities:
        return 0;  // by thread, below
    }
    return 0;
  };
  for_all([&](Action action) {
    const auto [what, number] = meaning(action);
    const std::uint32_t which = kind == Adversary::kPriorities
                                    ? mixed(salt, static_cast<std::uint64_t>(thread_of(action))) % (kClasses - 3)
                                    : class_of(what, number);
    class_[at(action)] = static_cast<std::uint8_t>(which);
  });
}

/// The one that acted falls below all others, what it may do already as well.
void Agenda::change_priority(Action action) {
  const std::int64_t thread = thread_of(action);
  const auto lowest = static_cast<std::uint8_t>(kClasses - changes_.size());
  while (!changes_.empty() && changes_.back() <= taken_) changes_.pop_back();
  next_change_ = changes_.empty() ? -1 : changes_.back();
  std::vector<Action> moved;
  for_all([&](Action each) {
    if (thread_of(each) == thread) class_[at(each)] = lowest;
  });
  for (std::size_t which = 0; which < kClasses; ++which) {
    auto& there = classes_[which];
    const auto kept = std::stable_partition(there.begin(), there.end(), [&](Action each) { return class_[at(each)] == which; });
    moved.insert(moved.end(), kept, there.end());
    there.erase(kept, there.end());
    if (there.empty()) occupied_ &= ~(std::uint64_t{1} << which);
  }
  size_ -= static_cast<std::int64_t>(moved.size());
  for (Action each : moved) add(each);
}

}  // namespace coppice::put_signal
