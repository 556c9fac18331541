#include "put_signal/script.h"

#include <algorithm>
#include <array>
#include <limits>
#include <map>
#include <stdexcept>
#include <string>
#include <utility>

namespace coppice::put_signal {

namespace {

constexpr std::int64_t kMost = std::numeric_limits<std::int32_t>::max();

void require(bool holds, const char* what) {
  if (!holds) throw std::invalid_argument(std::string("a put/signal program: ") + what);
}

/// Starts of groups: from 0, not falling, to `end`.
void require_starts(std::span<const std::int64_t> starts, std::int64_t end, const char* what) {
  require(!starts.empty() && starts.front() == 0 && starts.back() == end && std::is_sorted(starts.begin(), starts.end()), what);
}

std::vector<std::int32_t> narrow(std::span<const std::int64_t> column) { return {column.begin(), column.end()}; }

CallKind kind_of(Act act) {
  if (act <= Act::kSignal) return CallKind::kTransfer;
  return act == Act::kWait ? CallKind::kWait : CallKind::kLocal;
}

bool overlap(std::int32_t a, std::int32_t b, std::int32_t count) { return std::abs(static_cast<std::int64_t>(a) - b) < count; }

/// Numbers for keys, in the order in which they are first seen.
template <class Key>
class Numbers {
 public:
  std::int32_t of(const Key& key) { return found_.try_emplace(key, static_cast<std::int32_t>(found_.size())).first->second; }
  std::int32_t size() const { return static_cast<std::int32_t>(found_.size()); }

 private:
  std::map<Key, std::int32_t> found_;
};

Groups grouped(const std::vector<std::pair<std::int32_t, std::int32_t>>& rows, std::int32_t groups) {
  Groups made;
  made.start.assign(at(groups) + 1, 0);
  for (const auto& row : rows) ++made.start[at(row.first) + 1];
  for (std::size_t g = 0; g < at(groups); ++g) made.start[g + 1] += made.start[g];
  made.entry.resize(rows.size());
  std::vector<std::int32_t> next(made.start.begin(), made.start.end() - 1);
  for (const auto& [group, entry] : rows) made.entry[at(next[at(group)]++)] = entry;
  return made;
}

}  // namespace

Script::Script(const Columns& columns) {
  const auto calls = static_cast<std::int64_t>(columns.stream.size()), ops = static_cast<std::int64_t>(columns.act.size());
  require(columns.rank_start.size() > 1 && columns.communicator.size() == at(calls), "columns of calls of one length");
  for (const auto& column : {columns.peer, columns.context, columns.signal, columns.count, columns.source, columns.addend, columns.target})
    require(column.size() == at(ops), "columns of operations of one length");
  require(ops < kMost / 4 && columns.num_slots >= 0 && columns.num_slots < kMost, "fewer than 2^29 operations and 2^31 slots");
  require_starts(columns.rank_start, calls, "ranks share out the calls");
  require_starts(columns.call_start, ops, "calls share out the operations");
  num_ranks = static_cast<std::int32_t>(columns.rank_start.size() - 1);
  num_calls = static_cast<std::int32_t>(calls);
  num_operations = static_cast<std::int32_t>(ops);
  num_slots = static_cast<std::int32_t>(columns.num_slots);
  rank_start = narrow(columns.rank_start);
  call_start = narrow(columns.call_start);
  call_rank.resize(at(calls));
  for (std::int32_t r = 0; r < num_ranks; ++r) std::fill(call_rank.begin() + rank_start[at(r)], call_rank.begin() + rank_start[at(r) + 1], r);

  using Ends = std::array<std::int64_t, 5>;
  Numbers<Ends> chain_numbers, counter_numbers;
  Numbers<std::int32_t> lengths;
  std::vector<std::pair<std::int32_t, std::int32_t>> chain_rows;
  std::vector<std::int64_t> awaited;  // per counter, so far
  operations.reserve(at(ops));
  for (std::int32_t call = 0; call < num_calls; ++call) {
    require(call_start[at(call)] < call_start[at(call) + 1], "a call has operations");
    for (std::int32_t i = call_start[at(call)]; i < call_start[at(call) + 1]; ++i) {
      const std::size_t k = at(i);
      require(columns.act[k] >= 0 && columns.act[k] <= 4, "an operation is one of five");
      const auto act = static_cast<Act>(columns.act[k]);
      const std::int64_t rank = call_rank[at(call)], peer = columns.peer[k], count = columns.count[k];
      const bool is_remote = act <= Act::kWait, moves = act != Act::kSignal && act != Act::kWait;
      require(!is_remote || (peer >= 0 && peer < num_ranks), "a peer is a rank");
      require(act == Act::kSignal || (count >= 1 && count < kMost), "a count is above 0");
      const auto address = [&](const std::span<const std::int64_t>& column, bool used) {
        require(!used || (column[k] >= 0 && column[k] <= columns.num_slots - count), "a stretch lies in memory");
        return used ? static_cast<std::int32_t>(column[k]) : -1;
      };
      Operation op{};
      op.act = act;
      op.call = call;
      op.peer = is_remote ? static_cast<std::int32_t>(peer) : -1;
      op.count = moves ? static_cast<std::int32_t>(count) : 0;
      op.source = address(columns.source, moves);
      op.addend = address(columns.addend, act == Act::kSum);
      op.target = address(columns.target, moves);
      op.is_identity = act == Act::kCopy && op.source == op.target;
      op.overlaps = moves && (overlap(op.source, op.target, op.count) || (act == Act::kSum && overlap(op.addend, op.target, op.count)));
      op.chain = op.counter = op.length_class = -1;
      if (is_remote) {
        const std::int64_t line = columns.communicator[at(call)], src = act == Act::kWait ? peer : rank, dst = act == Act::kWait ? rank : peer;
        op.counter = counter_numbers.of({line, src, dst, columns.context[k], columns.signal[k]});
        awaited.resize(at(counter_numbers.size()));
        if (act == Act::kWait) {
          awaited[at(op.counter)] += count;
          require(awaited[at(op.counter)] < kMost, "fewer than 2^31 signals");
          op.threshold = static_cast<std::int32_t>(awaited[at(op.counter)]);
        } else {
          op.chain = chain_numbers.of({line, src, dst, columns.context[k], 0});
          chain_rows.emplace_back(op.chain, i);
        }
      }
      if (act == Act::kPut) {
        op.length_class = lengths.of(op.count);
        if (at(op.length_class) == length_of.size()) length_of.push_back(op.count);
      }
      actions += act == Act::kPut ? 2 : moves;
      const CallKind kind = kind_of(act);
      if (i == call_start[at(call)]) call_kind.push_back(kind);
      require(call_kind.back() == kind, "operations of a call are of one kind");
      operations.push_back(op);
    }
  }
  actions += 2 * std::int64_t{num_ranks};
  num_counters = counter_numbers.size();
  chains = grouped(chain_rows, chain_numbers.size());

  // A call waits for the last one on its stream and, unless it is local, for the last one of its communicator.
  std::vector<std::pair<std::int32_t, std::int32_t>> held;
  std::map<std::array<std::int64_t, 3>, std::int32_t> last;
  Numbers<std::array<std::int64_t, 2>> streams;
  blockers.assign(at(calls), 0);
  for (std::int32_t call = 0; call < num_calls; ++call) {
    const std::int64_t rank = call_rank[at(call)];
    stream.push_back(streams.of({rank, columns.stream[at(call)]}));
    std::array<std::int32_t, 2> before{-1, -1};
    const auto follow = [&](std::size_t which, std::int64_t queue) {
      const auto [place, is_first] = last.try_emplace({rank, static_cast<std::int64_t>(which), queue}, call);
      if (!is_first) before[which] = std::exchange(place->second, call);
    };
    follow(0, columns.stream[at(call)]);
    if (call_kind[at(call)] != CallKind::kLocal) follow(1, columns.communicator[at(call)]);
    for (std::size_t which : {0, 1}) {
      if (before[which] < 0 || (which == 1 && before[1] == before[0])) continue;
      held.emplace_back(before[which], call);
      ++blockers[at(call)];
    }
  }
  after = grouped(held, num_calls);
}

}  // namespace coppice::put_signal
