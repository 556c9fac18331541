// The actions that may come next, and the adversary that picks one of them.
//
// An adversary puts actions into up to 64 classes and takes one of the first class that has any; within a class at
// random, or mostly the newest, which is depth first. What differs is how classes are dealt out:
//
//   kAny            one class
//   kLateLandings   data land only where nothing else may happen
//   kEarlyLandings  data land, and with them signals and waits, before anything else
//   kLateReads      puts read their sources after all that may overwrite them
//   kLateBegins     ranks begin only where nothing else may happen
//   kSlowRanks      what some ranks do comes last
//   kSlowStreams    likewise some streams
//   kSlowLinks      likewise what lands from some ranks at some others
//   kNewest         one class, mostly the newest: depth first
//   kOneRank        ranks have an order, and each goes as far as it can before the next does anything
//   kPriorities     streams and links have random priorities, and at three random actions of the run, the one that
//                   acts falls below all others: PCT (Burckhardt, Kothari, Musuvathi and Nagarakatte, "A Randomized
//                   Scheduler with Probabilistic Guarantees of Finding Bugs", ASPLOS 2010, section 2), which finds an
//                   error that takes d orderings with a probability of at least 1 / (n k^(d-1)), with n streams and
//                   links and k actions
//
// Run i takes kind i mod 11; all else that it draws comes from its seed (splitmix64). In every second run of a kind that
// says nothing of landings, those come last within their class.
//
// Cost: O(1) for an action to be entered or taken, besides O(operations) at the start of a run, and three times in one of
// kPriorities. Memory: O(operations).
#pragma once

#include <array>
#include <bit>
#include <cstdint>
#include <vector>

#include "core/hash.h"
#include "put_signal/script.h"

namespace coppice::put_signal {

/// A number for each action of a script: begins and ends of ranks, then reads (or work), then landings of operations.
using Action = std::int32_t;

enum class Happening : std::uint8_t { kBegin = 0, kRead = 1, kLand = 2, kWork = 3, kEnd = 4 };

enum class Adversary : std::uint8_t {
  kAny, kLateLandings, kEarlyLandings, kLateReads, kLateBegins, kSlowRanks, kSlowStreams, kSlowLinks, kNewest, kOneRank, kPriorities
};
inline constexpr int kAdversaries = 11;

class Agenda {
 public:
  explicit Agenda(const Script& script);

  /// Nothing may happen; the next run is one of this kind.
  void start(Adversary kind, std::uint64_t seed);

  static constexpr Action begin_of(std::int32_t rank) { return 2 * rank; }
  static constexpr Action end_of(std::int32_t rank) { return 2 * rank + 1; }
  Action first_of(std::int32_t operation) const { return base_ + operation; }
  Action landing_of(std::int32_t operation) const { return base_ + operations_ + operation; }

  struct Meaning {
    Happening what;
    std::int32_t number;  // rank or operation
  };
  Meaning meaning(Action action) const {
    if (action >= base_ + operations_) return {Happening::kLand, action - base_ - operations_};
    if (action < base_) return {action % 2 ? Happening::kEnd : Happening::kBegin, action / 2};
    const std::int32_t op = action - base_;
    return {script_.operations[static_cast<std::size_t>(op)].act == Act::kPut ? Happening::kRead : Happening::kWork, op};
  }

  void add(Action action) {
    const std::uint8_t which = class_[static_cast<std::size_t>(action)];
    classes_[which].push_back(action);
    occupied_ |= std::uint64_t{1} << which;
    ++size_;
  }

  bool empty() const { return occupied_ == 0; }
  std::int64_t size() const { return size_; }

  /// The action that comes next; there is one.
  Action take() {
    const int which = std::countr_zero(occupied_);
    std::vector<Action>& there = classes_[static_cast<std::size_t>(which)];
    const std::uint64_t drawn = draw();
    std::size_t place = there.size() - 1;
    // The lower half decides whether it is the newest, the upper half which of all.
    if (!depth_first_ || static_cast<std::uint32_t>(drawn) < kDigression) place = static_cast<std::size_t>(((drawn >> 32) * there.size()) >> 32);
    const Action action = there[place];
    there[place] = there.back();
    there.pop_back();
    if (there.empty()) occupied_ &= ~(std::uint64_t{1} << which);
    --size_;
    if (++taken_ == next_change_) change_priority(action);
    return action;
  }

  /// Calls visit(action) for all that may come next, in no order.
  template <class Visit>
  void for_each(Visit&& visit) const {
    for (const auto& there : classes_)
      for (Action action : there) visit(action);
  }

 private:
  static constexpr std::uint32_t kDigression = 0x0CCCCCCC;  // one in twenty
  static constexpr std::uint32_t kClasses = 64;

  std::uint64_t draw() {
    state_ += 0x9E3779B97F4A7C15u;
    return mixed(state_);
  }
  template <class Visit>
  void for_all(Visit&& visit) const;
  void deal_out(Adversary kind);
  void change_priority(Action action);
  std::int64_t thread_of(Action action) const;

  const Script& script_;
  const std::int32_t base_, operations_;
  std::vector<std::int32_t> source_rank_;  // per operation
  std::array<std::vector<Action>, kClasses> classes_;
  std::vector<std::uint8_t> class_;        // per action
  std::uint64_t occupied_ = 0, state_ = 0;
  std::int64_t size_ = 0, taken_ = 0, next_change_ = -1;
  std::vector<std::int64_t> changes_;      // the last one first
  bool depth_first_ = false;
};

}  // namespace coppice::put_signal
