// What a put/signal program is to the machine that runs it: columns in, tables that never change out.
//
// The columns are those of coppice.program.dialects.put_signal.program, with addresses instead of slots of buffers: slots that
// share memory have one address. Calls are numbered through all ranks, operations through all calls.
//
// Two orders are fixed by the program alone and worked out here, once. Signals of one (communicator, source, peer,
// context) form a *chain* and arrive in the order in which they are issued. A destination has a *counter* for each
// (communicator, source, context, signal); since a communicator is one queue, its waits begin in the order of issue, so
// that the number of signals for which each of them waits is the sum of its own and all counts before it.
//
// Cost: O((calls + operations) log) time, O(calls + operations) memory. Overflow: columns are 64-bit; addresses, counts
// and sums of counts are checked to stay below 2^31.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace coppice::put_signal {

/// A checked number as an index of a vector.
inline std::size_t at(std::int64_t n) { return static_cast<std::size_t>(n); }

enum class Act : std::uint8_t { kPut = 0, kSignal = 1, kWait = 2, kCopy = 3, kSum = 4 };
enum class CallKind : std::uint8_t { kTransfer = 0, kWait = 1, kLocal = 2 };

struct Columns {
  std::int64_t num_slots = 0;               // addresses are 0 .. num_slots - 1
  std::span<const std::int64_t> rank_start;  // calls of rank r: rank_start[r] .. rank_start[r + 1]
  std::span<const std::int64_t> call_start;  // operations of call c
  std::span<const std::int64_t> stream;      // per call
  std::span<const std::int64_t> communicator;
  std::span<const std::int64_t> act;         // per operation
  std::span<const std::int64_t> peer;
  std::span<const std::int64_t> context;
  std::span<const std::int64_t> signal;
  std::span<const std::int64_t> count;       // slots; of a wait the signals
  std::span<const std::int64_t> source;      // first addresses; any number where there is none
  std::span<const std::int64_t> addend;
  std::span<const std::int64_t> target;
};

struct alignas(64) Operation {
  Act act;
  bool is_identity;       // a copy of a stretch onto itself: nothing is done for it
  bool overlaps;          // its target overlaps an operand of its own
  std::int32_t call;
  std::int32_t peer;
  std::int32_t count;     // slots
  std::int32_t source, addend, target;
  std::int32_t chain;     // of a put or signal
  std::int32_t counter;   // of a put, signal or wait
  std::int32_t threshold; // of a wait: signals that its counter must have had
  std::int32_t length_class;  // puts of equal count have the same
};

/// Rows of ints for each of a number of things.
struct Groups {
  std::vector<std::int32_t> start{0}, entry;
  std::span<const std::int32_t> operator[](std::size_t group) const {
    return {entry.data() + start[group], static_cast<std::size_t>(start[group + 1] - start[group])};
  }
};

class Script {
 public:
  /// Throws std::invalid_argument where columns do not fit together or name what does not exist.
  explicit Script(const Columns& columns);

  std::int32_t num_ranks = 0, num_calls = 0, num_operations = 0, num_slots = 0, num_counters = 0;
  std::vector<Operation> operations;
  std::vector<std::int32_t> call_start, call_rank, rank_start;
  std::vector<std::int32_t> stream;         // per call, numbered through all ranks
  std::vector<CallKind> call_kind;
  std::vector<std::int32_t> blockers;       // calls of its own rank that have to be over before a call begins
  Groups after;                             // calls that a call holds back
  Groups chains;                            // puts and signals of each chain
  std::vector<std::int32_t> length_of;      // count of each length class
  std::int64_t actions = 0;                 // of a run that comes to its end

  std::int32_t rank_of(std::int32_t operation) const { return call_rank[static_cast<std::size_t>(operations[static_cast<std::size_t>(operation)].call)]; }
};

}  // namespace coppice::put_signal
