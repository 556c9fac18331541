#include "packet_network/exploration.h"

#include <algorithm>
#include <cstdio>
#include <memory>
#include <unordered_map>
#include <utility>

#include "aggregation/state.h"
#include "core/hash.h"
#include "packet_network/assembly.h"
#include "packet_network/state_key.h"

namespace coppice::aggregation {

namespace {

struct Letter {
  Endpoint from, to;
  std::vector<std::uint8_t> bytes;
  bool operator==(const Letter&) const = default;
  auto operator<=>(const Letter&) const = default;
};
using Mail = std::shared_ptr<const Letter>;

struct Party {
  std::shared_ptr<const Node> node;
  StateKey key;  // of what it saves
  std::vector<std::int32_t> output;
  std::size_t tensor = 0;  // of a worker: under way
};

struct State {
  std::vector<Party> parties;
  std::vector<Mail> mail;  // in order of sender and receiver; between the same two, of their sending or of their bytes
  Time now = 0;
  int losses, duplicates, early_timeouts;
};

enum class Kind : std::uint8_t { deliver, lose, repeat, wake };
struct Action {
  Kind kind = Kind::deliver;
  std::uint32_t what = 0;  // place in the mail, or node
};

class Explorer {
 public:
  Explorer(const Protocol& protocol, const Search& search, const StopFlag& stop)
      : protocol_(protocol), search_(search), stop_(stop), assembly_(protocol, endless(search.job), search.groups) {
    const auto n = static_cast<std::size_t>(assembly_.workers());
    for (std::size_t tensor = 0; tensor < search.tensors.size(); ++tensor) {
      const auto count = static_cast<std::size_t>(search.tensors[tensor]);
      inputs_.emplace_back(n, std::vector<std::int32_t>(count));
      sums_.emplace_back(count, 0);
      for (std::size_t w = 0; w < n; ++w) {
        for (std::size_t i = 0; i < count; ++i) {
          // Random digits, so that no two different sets of contributions have the same sum by accident.
          const auto value = static_cast<std::int32_t>(mixed(mixed(tensor, w), i) % 100'000);
          inputs_[tensor][w][i] = value;
          sums_[tensor][i] += value;
        }
      }
    }
    outputs_.resize(n);
  }

  Finding run() {
    State first = begin();
    std::vector<std::pair<std::uint32_t, State>> level;
    insert(first, 0, {});
    level.emplace_back(0, std::move(first));
    if (!fault_.empty()) return found(0, fault_);
    while (!level.empty() && finding_.depth < search_.most_events) {
      std::vector<std::pair<std::uint32_t, State>> next;
      for (auto& [at, state] : level) {
        if (finding_.states >= search_.most_states) break;
        if (finding_.events % 1024 == 0) poll(stop_);
        const std::string end = ended(state);
        if (!end.empty() && end != kComplete) return found(at, end);
        bool preferred = true;
        for (const Action& action : actions(state)) {
          const auto place = step(state, at, action, next);
          if (!fault_.empty()) return found(at, fault_, action);
          if (std::exchange(preferred, false)) onwards_[at] = place;
        }
        if (end == kComplete) onwards_[at] = at;
        state = State{};
      }
      if (finding_.states >= search_.most_states) finding_.whole = false;
      if (!finding_.whole) break;
      level = std::move(next);
      if (!level.empty()) ++finding_.depth;
    }
    if (finding_.depth >= search_.most_events && !level.empty()) finding_.whole = false;
    return check_ends();
  }

 private:
  static constexpr std::string_view kComplete = "complete";
  static constexpr std::uint32_t kUnknown = ~std::uint32_t{0};

  class Post final : public Outbox {
   public:
    Post(State& state, Endpoint from) : state_(state), from_(from) {}
    using Outbox::send;
    void send(std::span<const Endpoint> to, Bytes packet) override {
      for (Endpoint each : to) {
        state_.mail.push_back(std::make_shared<Letter>(Letter{from_, each, {packet.begin(), packet.end()}}));
      }
    }

   private:
    State& state_;
    Endpoint from_;
  };

  static Job endless(Job job) {
    job.give_up_timeout = kNever;
    job.element = Element::int32;
    return job;
  }

  bool is_worker(Endpoint at) const { return assembly_.is_worker(at); }
  static Party& party(State& state, Endpoint at) { return state.parties[static_cast<std::size_t>(at)]; }

  // Drives a node that is its state's own from now on.
  template <class Work>
  void drive(State& state, Endpoint at, Work&& work) {
    Party& one = party(state, at);
    std::unique_ptr<Node> node = one.node->clone();
    if (is_worker(at)) outputs_[static_cast<std::size_t>(at)] = one.output;
    Post post(state, at);
    work(*node, post);
    one.node = std::move(node);
    if (is_worker(at)) look(state, at);
  }

  // Where every run begins: all workers have begun their first tensor.
  State begin() {
    State state;
    state.losses = search_.losses, state.duplicates = search_.duplicates, state.early_timeouts = search_.early_timeouts;
    for (Endpoint each = 0; each < assembly_.size(); ++each) state.parties.push_back({assembly_.make(each), {}, {}, 0});
    for (Endpoint w = 0; w < assembly_.workers(); ++w) begin(state, w);
    settle(state, true);
    return state;
  }

  void begin(State& state, Endpoint at) {
    Party& one = party(state, at);
    const auto w = static_cast<std::size_t>(at);
    if (one.tensor >= search_.tensors.size()) return;
    // The node keeps where its output lies: one place for all states, into which each puts its own.
    outputs_[w].reserve(static_cast<std::size_t>(*std::ranges::max_element(search_.tensors)));
    one.output.assign(static_cast<std::size_t>(search_.tensors[one.tensor]), 0);
    drive(state, at, [&](Node& node, Outbox& out) {
      static_cast<Worker&>(node).begin(inputs_[one.tensor][w].data(), outputs_[w].data(), one.output.size(), state.now, out);
    });
  }

  // Takes the output of a worker that was driven, and goes on to its next tensor.
  void look(State& state, Endpoint at) {
    Party& one = party(state, at);
    const auto w = static_cast<std::size_t>(at);
    one.output = outputs_[w];
    const auto& worker = static_cast<const Worker&>(*one.node);
    if (!worker.failure().empty()) return fail("worker " + std::to_string(at) + " gives up: " + worker.failure());
    if (one.tensor >= search_.tensors.size() || !worker.done()) return;
    const std::vector<std::int32_t>& sum = sums_[one.tensor];
    for (std::size_t i = 0; i < sum.size(); ++i) {
      if (one.output[i] == sum[i]) continue;
      return fail("worker " + std::to_string(at) + " has a wrong sum: element " + std::to_string(i) + " of tensor " +
                  std::to_string(one.tensor) + " is " + std::to_string(one.output[i]) + ", expected " +
                  std::to_string(sum[i]) + terms(one.tensor, i));
    }
    ++one.tensor;
    one.output.clear();
    begin(state, at);
  }

  std::string terms(std::size_t tensor, std::size_t i) const {
    std::string text;
    for (const auto& input : inputs_[tensor]) text += (text.empty() ? " = " : " + ") + std::to_string(input[i]);
    return text;
  }

  void fail(const std::string& what) {
    if (fault_.empty()) fault_ = what;
  }

  // Puts the mail in order and finds the keys of the nodes that may have changed: all, where time went on.
  void settle(State& state, bool all, Endpoint driven = kNobody) {
    const bool bytes = search_.reordering;
    std::ranges::stable_sort(state.mail, [bytes](const Mail& a, const Mail& b) {
      if (bytes) return *a < *b;
      return std::pair(a->from, a->to) < std::pair(b->from, b->to);
    });
    for (Endpoint each = 0; each < assembly_.size(); ++each) {
      if (!all && each != driven) continue;
      Party& one = party(state, each);
      saved_.clear();
      StateWriter writer(saved_);
      one.node->save(state.now, writer);
      one.key = {};
      one.key.take(saved_);
      one.key.take(one.tensor);
      for (std::int32_t value : one.output) one.key.take(static_cast<std::uint64_t>(value));
    }
  }

  static StateKey key_of(const State& state) {
    StateKey key;
    for (const Party& one : state.parties) key.take(one.key);
    for (const Mail& each : state.mail) {
      key.take(static_cast<std::uint64_t>(each->from) << 32 | static_cast<std::uint32_t>(each->to));
      key.take(each->bytes);
    }
    key.take(static_cast<std::uint64_t>(state.losses) << 40 | static_cast<std::uint64_t>(state.duplicates) << 20 |
             static_cast<std::uint64_t>(state.early_timeouts));
    return key;
  }

  // When a node wants to be woken; never where it is so late that it could only be to give up.
  static Time due(const State& state, std::size_t each) {
    const Time at = state.parties[each].node->deadline();
    return at - state.now > kNever / 16 ? kNever : at;
  }

  // Whether a time-out at `at` would come before its turn: a packet is under way, or another one is due before.
  static bool is_early(const State& state, Time at) {
    if (!state.mail.empty()) return true;
    for (std::size_t each = 0; each < state.parties.size(); ++each) {
      if (due(state, each) < at) return true;
    }
    return false;
  }

  // What may happen; first what does where nothing fails any more.
  std::vector<Action> actions(const State& state) const {
    std::vector<Action> all, faults;
    for (std::uint32_t i = 0; i < state.mail.size(); ++i) {
      const Letter& letter = *state.mail[i];
      if (i > 0) {
        const Letter& before = *state.mail[i - 1];
        const bool behind = !search_.reordering && before.from == letter.from && before.to == letter.to;
        if (behind || before == letter) continue;
      }
      all.push_back({Kind::deliver, i});
      if (state.losses > 0) faults.push_back({Kind::lose, i});
      if (state.duplicates > 0) faults.push_back({Kind::repeat, i});
    }
    for (std::uint32_t each = 0; each < state.parties.size(); ++each) {
      const Time at = due(state, each);
      if (at != kNever && (state.early_timeouts > 0 || !is_early(state, at))) all.push_back({Kind::wake, each});
    }
    // Those whose turn it is come first.
    std::ranges::stable_partition(all, [&](const Action& action) {
      return action.kind != Kind::wake || !is_early(state, due(state, action.what));
    });
    all.insert(all.end(), faults.begin(), faults.end());
    return all;
  }

  // Why nothing can follow a state, kComplete if all is done; empty while something can.
  std::string ended(const State& state) const {
    if (!state.mail.empty()) return {};
    std::string late;
    for (Endpoint w = 0; w < assembly_.workers(); ++w) {
      if (state.parties[static_cast<std::size_t>(w)].tensor < search_.tensors.size()) {
        late += (late.empty() ? "worker " : ", ") + std::to_string(w);
      }
    }
    std::string held;
    for (std::size_t each = static_cast<std::size_t>(assembly_.workers()); each < state.parties.size(); ++each) {
      const auto slots = static_cast<const Aggregator&>(*state.parties[each].node).slots_in_use();
      if (slots != 0) held = name(static_cast<Endpoint>(each)) + " holds slots: " + std::to_string(slots);
    }
    if (late.empty() && held.empty()) return std::string(kComplete);
    for (std::size_t each = 0; each < state.parties.size(); ++each) {
      if (due(state, each) != kNever) return {};
    }
    if (!late.empty()) return "nothing is under way and nobody wants to be woken, but " + late + " has no sum";
    return "every worker is done, nothing is under way and nobody wants to be woken, but the " + held;
  }

  State after(const State& state, const Action& action) {
    State next = state;
    if (action.kind == Kind::wake) {
      const auto at = static_cast<Endpoint>(action.what);
      if (is_early(next, due(next, action.what))) --next.early_timeouts;
      next.now = std::max(next.now, due(next, action.what));
      drive(next, at, [&](Node& node, Outbox& out) { node.wake(next.now, out); });
      settle(next, true);
      return next;
    }
    const Mail letter = next.mail[action.what];
    if (action.kind != Kind::repeat) next.mail.erase(next.mail.begin() + action.what);
    if (action.kind == Kind::lose) {
      --next.losses;
      return next;
    }
    if (action.kind == Kind::repeat) --next.duplicates;
    drive(next, letter->to, [&](Node& node, Outbox& out) { node.receive(letter->from, letter->bytes, next.now, out); });
    settle(next, false, letter->to);
    return next;
  }

  std::uint32_t insert(const State& state, std::uint32_t parent, Action action) {
    const auto [at, fresh] = places_.emplace(key_of(state), static_cast<std::uint32_t>(parents_.size()));
    if (!fresh) return at->second;
    parents_.push_back(parent);
    actions_.push_back(action);
    onwards_.push_back(kUnknown);
    ++finding_.states;
    return at->second;
  }

  std::uint32_t step(const State& state, std::uint32_t at, const Action& action,
                     std::vector<std::pair<std::uint32_t, State>>& next) {
    ++finding_.events;
    State follower = after(state, action);
    if (!fault_.empty()) return kUnknown;
    const std::size_t before = parents_.size();
    const std::uint32_t place = insert(follower, at, action);
    if (parents_.size() > before) next.emplace_back(place, std::move(follower));
    return place;
  }

  // Follows each state's continuation without faults: it has to end, and not to come back to where it was.
  Finding check_ends() {
    enum Mark : std::uint8_t { unseen, open, good };
    std::vector<std::uint8_t> mark(parents_.size(), unseen);
    std::vector<std::uint32_t> path;
    for (std::uint32_t start = 0; start < parents_.size(); ++start) {
      path.clear();
      std::uint32_t at = start;
      for (; mark[at] == unseen; at = onwards_[at]) {
        mark[at] = open;
        path.push_back(at);
        if (onwards_[at] == at) break;
        if (onwards_[at] == kUnknown) {  // beyond the depth or the number of states that were to be searched
          const std::string fault = run_on(at);
          if (!fault.empty()) return found(at, fault);
          break;
        }
      }
      if (mark[at] == open && onwards_[at] != at && onwards_[at] != kUnknown) {
        return found(start, "without further faults the workers never end");
      }
      for (std::uint32_t each : path) mark[each] = good;
    }
    return std::move(finding_);
  }

  // Runs a state to its end without further faults. Returns: what is wrong with it.
  std::string run_on(std::uint32_t at) {
    State state = replay(at, nullptr);
    for (int steps = 0; steps < 100'000; ++steps) {
      const std::string end = ended(state);
      if (end == kComplete) return {};
      if (!end.empty()) return end;
      state = after(state, actions(state).front());
      if (!fault_.empty()) return std::exchange(fault_, {}) + " (without further faults)";
    }
    return "without further faults the workers do not end within 100,000 events";
  }

  // The state at a place, driven there from the start; a line for each event if asked for.
  State replay(std::uint32_t at, std::vector<std::string>* lines, const Action* last = nullptr) {
    std::vector<Action> way;
    for (std::uint32_t each = at; each != 0; each = parents_[each]) way.push_back(actions_[each]);
    std::ranges::reverse(way);
    if (last != nullptr) way.push_back(*last);
    State state = begin();
    for (const Action& action : way) {
      if (lines != nullptr) lines->push_back(described(state, action));
      state = after(state, action);
    }
    return state;
  }

  Finding found(std::uint32_t at, std::string fault) { return told(at, std::move(fault), nullptr); }
  Finding found(std::uint32_t at, std::string fault, const Action& last) { return told(at, std::move(fault), &last); }
  Finding told(std::uint32_t at, std::string fault, const Action* last) {
    finding_.fault = std::move(fault);
    replay(at, &finding_.trace, last);
    return std::move(finding_);
  }

  std::string name(Endpoint at) const {
    if (is_worker(at)) return "worker " + std::to_string(at);
    if (assembly_.is_server(at)) return "server";
    return search_.groups.size() == 1 ? "switch" : "switch " + std::to_string(at - assembly_.workers());
  }

  std::string described(const State& state, const Action& action) const {
    if (action.kind == Kind::wake) {
      return name(static_cast<Endpoint>(action.what)) + ": time-out" + (is_early(state, due(state, action.what)) ? ", too early" : "");
    }
    const Letter& letter = *state.mail[action.what];
    std::string text = name(letter.from) + " -> " + name(letter.to) + ": ";
    if (protocol_.describe != nullptr) {
      text += protocol_.describe(letter.bytes);
    } else {
      char hex[4];
      for (std::size_t i = 0; i < std::min<std::size_t>(letter.bytes.size(), 24); ++i) {
        std::snprintf(hex, sizeof hex, "%02x ", letter.bytes[i]);
        text += hex;
      }
      text += "(" + std::to_string(letter.bytes.size()) + " bytes)";
    }
    static constexpr std::string_view kFates[] = {"", ", lost", ", and a copy stays under way"};
    return text += kFates[static_cast<std::size_t>(action.kind)];
  }

  const Protocol& protocol_;
  const Search& search_;
  const StopFlag& stop_;
  Assembly assembly_;
  std::vector<std::vector<std::vector<std::int32_t>>> inputs_;  // [tensor][worker]
  std::vector<std::vector<std::int32_t>> sums_;                 // [tensor]
  std::vector<std::vector<std::int32_t>> outputs_;              // [worker], of the state that is driven
  std::unordered_map<StateKey, std::uint32_t, StateKeyHash> places_;
  std::vector<std::uint32_t> parents_, onwards_;  // of each state: how it was found; where it goes without faults
  std::vector<Action> actions_;
  std::vector<std::uint8_t> saved_;
  std::string fault_;
  Finding finding_;
};

}  // namespace

Finding explore(const Protocol& protocol, const Search& search, const StopFlag& stop) {
  return Explorer(protocol, search, stop).run();
}

}  // namespace coppice::aggregation
