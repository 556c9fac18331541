// The machine that runs put/signal programs, action by action, with the weakest order that the documents promise: the
// semantics of coppice.program.dialects.put_signal.machine, natively.
//
// Model. An *action* is one thing that happens to memory at once: a rank's caller fills its input and hands over, a put
// reads its source, its data land at the peer, a local operation is carried out, a rank's caller takes its memory back.
// All else (a signal that arrives, a wait that is over, a call that begins) only allows further actions and happens as
// soon as it can; since any further action may be put off for as long as one likes, no run is lost by that. So a run is
// an order of actions, each taken from those that may come next.
//
// Races are errors, not luck. An action that may come next has the memory that it will read or write to itself: from
// the moment when it may come, until it has come, no other may write there, nor use it at all if the action writes. A
// put holds its source until it is read, and its target from the same moment until the data have landed; a rank's
// caller holds all memory of the rank before it begins and once it may end. Two actions that may both come next may
// come in either order, so what is reported is a race indeed; and what is not ordered by the program is found in every
// run in which both may come next at some moment, whatever the values. Data that land or are read in parts, in any
// order, therefore show nothing more: between two parts of one access nothing else can touch the stretch without that
// being reported.
//
// Values. A slot holds some 64-bit words, and sums are modulo 2^64. With words drawn at random for every contribution,
// a slot that holds another multiset of contributions than it should compares equal with a probability of at most
// 2^(v - 64), v being the number of times that 2 divides all differences of multiplicities (0 where one contribution is
// missing or twice there); memory that nobody has written holds random words as well. Words are drawn once for many
// runs, which changes nothing: what a schedule does, does not depend on them.
//
// Cost: of an action O(1) and O(words that it touches); of a reset O(calls + words). Memory: O(operations + slots x
// words of a slot).
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "put_signal/agenda.h"
#include "put_signal/script.h"

namespace coppice::put_signal {

enum class FaultKind : std::uint8_t {
  kNone = 0,
  kStandsStill = 1,    // nothing may happen, and some rank has not ended
  kCallersMemory = 2,  // operation `first` may write into memory of a rank that has not begun, or may end
  kRace = 3,           // operations `first` and `second`, the later one to begin first, may come in either order
  kWrongOutput = 4,    // rank `first` ends with a wrong output
};

struct Fault {
  FaultKind kind = FaultKind::kNone;
  std::int32_t first = -1, second = -1;
  explicit operator bool() const { return kind != FaultKind::kNone; }
};

/// What memory holds when the ranks begin, and what outputs must hold when they end; rows of `words` numbers.
struct Contents {
  std::int64_t words = 1;                    // of a slot
  std::span<const std::uint64_t> begin;       // of every slot
  std::span<const std::int64_t> output;       // per rank, address of its output
  std::span<const std::int64_t> wanted_start; // per rank and the end, rows of `wanted`
  std::span<const std::uint64_t> wanted;
};

class Machine {
 public:
  /// Keeps references. Throws std::invalid_argument where contents do not fit the script.
  Machine(const Script& script, const Contents& contents, Agenda& agenda);

  /// Back to before the first action; the agenda has been started.
  void reset();

  /// Carries out an action that the agenda gave; what becomes possible by that is entered there.
  /// The first fault that it leads to, after which the run is over.
  Fault perform(Action action);

  /// Where the agenda is empty: does the run stand still?
  bool is_over() const { return given_back_ == script_.num_ranks; }

 private:
  enum class Phase : std::uint8_t { kCallers, kRunning, kMayEnd, kGivenBack };

  void begin_call(std::int32_t call);
  void settle();
  void finish_one(std::int32_t call);
  void advance(std::int32_t chain);
  void wake(std::int32_t counter);
  void enable_put(std::int32_t number);
  void enable_work(std::int32_t number);
  void read(const Operation& op, std::int32_t number);
  void land(const Operation& op, std::int32_t number);
  void work(const Operation& op, std::int32_t number);
  void end(std::int32_t rank);

  bool hold_to_read(const Operation& op, std::int32_t first, std::int32_t number);
  bool hold_to_write(const Operation& op, std::int32_t number);
  void release_read(const Operation& op, std::int32_t first);
  void release_written(const Operation& op);
  bool blame(std::int32_t number, std::int32_t slot, bool writes);
  void blame_landing(std::int32_t rank);

  const Script& script_;
  const Contents contents_;
  Agenda& agenda_;
  std::vector<std::uint64_t> memory_, scratch_;
  std::vector<std::int32_t> held_;       // per slot: readers to come, or -1: a writer to come
  std::vector<std::int32_t> blockers_, left_, open_calls_, arrived_, counted_, landing_;
  std::vector<std::int32_t> waiting_, next_waiting_;  // wait operations of each counter, a list
  std::vector<bool> ready_;              // puts that have landed and signals, of which the chain may not be so far
  std::vector<Phase> phase_;
  std::int32_t given_back_ = 0;
  std::vector<std::int32_t> begun_;      // calls that begin now, in turn
  std::size_t next_begun_ = 0;
  Fault fault_;
  // Data on their way: blocks of the length of a put, used again.
  std::unique_ptr<std::uint64_t[]> flight_;
  std::int64_t flight_top_ = 0;
  std::vector<std::int64_t> block_of_;   // per operation
  std::vector<std::vector<std::int64_t>> free_blocks_;  // per length class
};

}  // namespace coppice::put_signal
