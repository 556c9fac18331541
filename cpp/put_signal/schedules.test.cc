#include "put_signal/schedules.h"

#include <set>
#include <stdexcept>
#include <tuple>
#include <utility>
#include <vector>

#include "testing/testing.h"

using namespace coppice;
using namespace coppice::put_signal;

namespace {

/// A program that is written down call by call, rank after rank. Every rank has `slots` slots: rank r's slot k has the
/// address r * slots + k.
class Written {
 public:
  Written(std::int64_t ranks, std::int64_t slots) : ranks_(ranks), slots_(slots) {}

  Written& rank() {
    rank_start_.push_back(static_cast<std::int64_t>(stream_.size()));
    return *this;
  }
  Written& call(std::int64_t stream = 0, std::int64_t communicator = 0) {
    call_start_.push_back(static_cast<std::int64_t>(act_.size()));
    stream_.push_back(stream);
    communicator_.push_back(communicator);
    return *this;
  }
  Written& put(std::int64_t peer, std::int64_t source, std::int64_t target, std::int64_t count = 1) {
    return row(Act::kPut, peer, count, own() + source, -1, peer * slots_ + target);
  }
  Written& signal(std::int64_t peer) { return row(Act::kSignal, peer, 0, -1, -1, -1); }
  Written& wait(std::int64_t peer, std::int64_t signals = 1) { return row(Act::kWait, peer, signals, -1, -1, -1); }
  Written& copy(std::int64_t source, std::int64_t target, std::int64_t count = 1) {
    return row(Act::kCopy, -1, count, own() + source, -1, own() + target);
  }
  Written& sum(std::int64_t source, std::int64_t addend, std::int64_t target, std::int64_t count = 1) {
    return row(Act::kSum, -1, count, own() + source, own() + addend, own() + target);
  }

  Columns columns() {
    starts_ = {rank_start_, call_start_};
    starts_.first.push_back(static_cast<std::int64_t>(stream_.size()));
    starts_.second.push_back(static_cast<std::int64_t>(act_.size()));
    zeros_.assign(act_.size(), 0);
    return {.num_slots = ranks_ * slots_, .rank_start = starts_.first, .call_start = starts_.second, .stream = stream_,
            .communicator = communicator_, .act = act_, .peer = peer_, .context = zeros_, .signal = zeros_,
            .count = count_, .source = source_, .addend = addend_, .target = target_};
  }

  /// Slot k of rank r begins with 100 r + k; the first slots of each rank must end with these.
  Runs run(const std::vector<std::vector<std::uint64_t>>& wanted, std::int64_t count = 110) {
    const Script script(columns());
    prepare(wanted);
    return run_schedules(script, contents(), 0, count);
  }
  Trace trace(const std::vector<std::vector<std::uint64_t>>& wanted, std::int64_t number) {
    const Script script(columns());
    prepare(wanted);
    return trace_schedule(script, contents(), number);
  }

 private:
  std::int64_t own() const { return static_cast<std::int64_t>(rank_start_.size() - 1) * slots_; }
  Written& row(Act act, std::int64_t peer, std::int64_t count, std::int64_t source, std::int64_t addend, std::int64_t target) {
    act_.push_back(static_cast<std::int64_t>(act));
    peer_.push_back(peer);
    count_.push_back(count);
    source_.push_back(source);
    addend_.push_back(addend);
    target_.push_back(target);
    return *this;
  }
  void prepare(const std::vector<std::vector<std::uint64_t>>& wanted) {
    begin_.clear();
    output_.clear();
    wanted_start_ = {0};
    wanted_.clear();
    for (std::int64_t r = 0; r < ranks_; ++r) {
      for (std::int64_t k = 0; k < slots_; ++k) begin_.push_back(static_cast<std::uint64_t>(100 * r + k));
      output_.push_back(r * slots_);
      wanted_.insert(wanted_.end(), wanted[static_cast<std::size_t>(r)].begin(), wanted[static_cast<std::size_t>(r)].end());
      wanted_start_.push_back(static_cast<std::int64_t>(wanted_.size()));
    }
  }
  Contents contents() const { return {1, begin_, output_, wanted_start_, wanted_}; }

  std::int64_t ranks_, slots_;
  std::vector<std::int64_t> rank_start_, call_start_, stream_, communicator_, act_, peer_, count_, source_, addend_, target_, zeros_;
  std::pair<std::vector<std::int64_t>, std::vector<std::int64_t>> starts_;
  std::vector<std::uint64_t> begin_, wanted_;
  std::vector<std::int64_t> output_, wanted_start_;
};

/// Rank 1 says that it has begun, rank 0 puts its slot 0 into slot 0 of rank 1, which waits for it.
Written one_put() {
  Written made(2, 2);
  made.rank().call().wait(1).call().put(1, 0, 0);
  made.rank().call().signal(0).call().wait(0);
  return made;
}

}  // namespace

TEST(put_signal_one_put_is_right_in_every_run) {
  const Runs found = one_put().run({{}, {0}});
  CHECK_EQ(static_cast<int>(found.fault.kind), static_cast<int>(FaultKind::kNone));
  CHECK_EQ(found.runs, 110);
  CHECK_EQ(found.actions, 110 * 6);
  CHECK_EQ(found.seed, -1);
}

TEST(put_signal_a_wrong_output_is_found_with_its_rank) {
  const Runs found = one_put().run({{}, {1}});
  CHECK(found.fault.kind == FaultKind::kWrongOutput);
  CHECK_EQ(found.fault.first, 1);
  CHECK_EQ(found.runs, 1);
  CHECK_EQ(found.seed, 0);
}

TEST(put_signal_a_put_to_a_rank_that_may_not_have_begun) {
  Written made(2, 2);
  made.rank().call().put(1, 0, 0);
  made.rank().call().wait(0);
  const Runs found = made.run({{}, {0}});
  CHECK(found.fault.kind == FaultKind::kCallersMemory);
  CHECK_EQ(found.fault.first, 0);
}

TEST(put_signal_a_put_to_a_rank_that_does_not_wait_for_it) {
  Written made(2, 2);
  made.rank().call().wait(1).call().put(1, 0, 0);
  made.rank().call().signal(0);
  const Runs found = made.run({{}, {}});
  CHECK(found.fault.kind == FaultKind::kCallersMemory);
  CHECK_EQ(found.fault.first, 1);
}

TEST(put_signal_data_that_may_still_be_on_their_way_when_a_rank_may_end) {
  // Rank 1 waits for a signal that comes after the put, but on another communicator.
  Written made(2, 2);
  made.rank().call().wait(1).call().put(1, 0, 0).call(0, 1).signal(1);
  made.rank().call().signal(0).call(0, 1).wait(0);
  for (std::int64_t number = 0; number < kAdversaries; ++number) {
    const Trace found = made.trace({{}, {}}, number);
    CHECK(found.fault.kind == FaultKind::kCallersMemory);
    CHECK_EQ(found.fault.first, 1);
  }
}

TEST(put_signal_two_ranks_that_wait_for_each_other_stand_still) {
  Written made(2, 1);
  made.rank().call().wait(1).call().signal(1);
  made.rank().call().wait(0).call().signal(0);
  CHECK(made.run({{}, {}}).fault.kind == FaultKind::kStandsStill);
}

TEST(put_signal_a_source_that_is_overwritten_before_it_is_surely_read) {
  // On another stream nothing holds the copy back until the put's call is over; on the same one it is.
  for (std::int64_t stream : {0, 1}) {
    Written made(2, 2);
    made.rank().call().wait(1).call().put(1, 0, 0).call(stream, -1).copy(1, 0);
    made.rank().call().signal(0).call().wait(0);
    const Runs found = made.run({{}, {}});
    CHECK(found.fault.kind == (stream ? FaultKind::kRace : FaultKind::kNone));
    if (stream) CHECK_EQ(std::max(found.fault.first, found.fault.second), 2);
  }
}

TEST(put_signal_a_write_where_a_put_has_not_read_yet) {
  // The copy on stream 1 may begin as soon as the put has, never before it.
  Written made(2, 2);
  made.rank().call().wait(1).call().put(1, 0, 0).call(1, 1).wait(1).call(1, -1).copy(1, 0);
  made.rank().call().signal(0).call(0, 1).signal(0).call().wait(0);
  const Runs found = made.run({{}, {}});
  CHECK(found.fault.kind == FaultKind::kRace);
  CHECK_EQ(found.fault.first, 3);
  CHECK_EQ(found.fault.second, 1);
}

TEST(put_signal_reading_what_may_still_be_in_flight_is_an_error_even_if_it_would_read_the_right_value) {
  // Rank 1 does not wait for the second put before it adds up; slot 1 holds what the put brings already.
  Written made(2, 3);
  made.rank().call().wait(1).call().copy(0, 1).call().put(1, 0, 0).call().put(1, 1, 1);
  made.rank().call().copy(0, 0).call().signal(0).call().wait(0).call().sum(0, 1, 2).call().wait(0);
  CHECK(made.run({{}, {}}).fault.kind == FaultKind::kRace);
}

TEST(put_signal_two_reads_of_one_slot_are_no_race) {
  Written made(3, 2);
  made.rank().call().wait(1).wait(2).call().put(1, 0, 0).put(2, 0, 0);
  made.rank().call().signal(0).call().wait(0);
  made.rank().call().signal(0).call().wait(0);
  CHECK(!made.run({{0}, {0}, {0}}).fault);
}

TEST(put_signal_waits_take_first_arrivals_and_signals_keep_their_order) {
  // Two puts and a wait for one signal: the first one is there, in the order of issue, whichever lands first.
  Written made(2, 4);
  made.rank().call().wait(1).call().put(1, 0, 0).put(1, 1, 1);
  made.rank().call().signal(0).call().wait(0).call(0, -1).copy(0, 2).call().wait(0).call(0, -1).copy(1, 3);
  CHECK(!made.run({{}, {0, 1, 0, 1}}).fault);
  // What reads the second one after the first signal reads what may be in flight.
  Written early(2, 4);
  early.rank().call().wait(1).call().put(1, 0, 0).put(1, 1, 1);
  early.rank().call().signal(0).call().wait(0).call(0, -1).copy(1, 2).call().wait(0);
  CHECK(early.run({{}, {}}).fault.kind == FaultKind::kRace);
}

TEST(put_signal_communicators_are_queues_and_streams_as_well) {
  // A wait on the communicator holds back the signal behind it, although that is on another stream.
  Written blocked(2, 1);
  blocked.rank().call(0, 0).wait(1).call(1, 0).signal(1);
  blocked.rank().call().wait(0).call().signal(0);
  CHECK(blocked.run({{}, {}}).fault.kind == FaultKind::kStandsStill);
  Written apart(2, 1);
  apart.rank().call(0, 0).wait(1).call(1, 1).signal(1);
  apart.rank().call(0, 1).wait(0).call(0, 0).signal(0);
  CHECK(!apart.run({{}, {}}).fault);
}

TEST(put_signal_sums_with_operands_that_overlap_their_target) {
  // (1, 2) + (2, 3) into slots 2 and 3: operands are read before anything is written.
  Written made(1, 4);
  made.rank().call(0, -1).sum(1, 2, 2, 2).call(0, -1).copy(0, 1, 3);
  CHECK(!made.run({{0, 0, 1, 3}}).fault);
}

TEST(put_signal_long_lines_of_calls_that_are_over_at_once_need_no_stack) {
  Written made(2, 1);
  made.rank();
  for (int i = 0; i < 200000; ++i) made.call().signal(1);
  made.rank().call().wait(0, 200000);
  CHECK(!made.run({{}, {}}, 2).fault);
}

TEST(put_signal_a_run_depends_on_its_number_alone_and_numbers_differ) {
  Written made(3, 4);
  made.rank().call().signal(1).signal(2).call().wait(1).wait(2).call().put(1, 0, 1).put(2, 0, 1).call().wait(1).wait(2);
  made.rank().call().signal(0).signal(2).call().wait(0).wait(2).call().put(0, 0, 2).put(2, 0, 2).call().wait(0).wait(2);
  made.rank().call().signal(0).signal(1).call().wait(0).wait(1).call().put(0, 0, 3).put(1, 0, 3).call().wait(0).wait(1);
  std::set<std::vector<std::int64_t>> orders;
  for (std::int64_t number = 0; number < 44; ++number) {
    const Trace one = made.trace({{0}, {100, 0}, {200}}, number), again = made.trace({{0}, {100, 0}, {200}}, number);
    CHECK(!one.fault);
    CHECK(one.happening == again.happening && one.number == again.number && one.possible == again.possible);
    CHECK_EQ(one.number.size(), std::size_t{18});
    std::vector<std::int64_t> order = one.happening;
    order.insert(order.end(), one.number.begin(), one.number.end());
    orders.insert(std::move(order));
  }
  CHECK(orders.size() > 30);
}

TEST(put_signal_late_landings_come_after_all_else_and_early_ones_before) {
  Written made(2, 8);
  made.rank().call().wait(1).call();
  for (int k = 0; k < 4; ++k) made.put(1, k, k);
  for (int k = 4; k < 8; ++k) made.call(1, -1).copy(k, k);
  made.rank().call().signal(0).call().wait(0, 4);
  for (const auto& [adversary, first] : {std::pair{Adversary::kLateLandings, false}, {Adversary::kEarlyLandings, true}}) {
    const Trace found = made.trace({{}, {0, 1, 2, 3}}, static_cast<std::int64_t>(adversary));
    std::size_t last_read = 0, first_landing = found.happening.size();
    for (std::size_t i = 0; i < found.happening.size(); ++i) {
      if (found.happening[i] == static_cast<std::int64_t>(Happening::kRead)) last_read = i;
      if (found.happening[i] == static_cast<std::int64_t>(Happening::kLand) && first_landing > i) first_landing = i;
    }
    CHECK_EQ(first_landing < last_read, first);
  }
}

TEST(put_signal_work_can_be_stopped) {
  Written made = one_put();
  const Script script(made.columns());
  const std::vector<std::uint64_t> begin(4);
  const std::vector<std::int64_t> output{0, 0}, starts{0, 0, 0};
  int asked = 0;
  CHECK_THROWS(Cancelled, run_schedules(script, {1, begin, output, starts, {}}, 0, 1000, [&] { return ++asked > 5; }));
  CHECK_THROWS(std::invalid_argument, run_schedules(script, {2, begin, output, starts, {}}, 0, 1));
}

TEST(put_signal_programs_that_name_what_does_not_exist_are_refused) {
  const auto refused = [](auto&& change) {
    Written made(2, 2);
    made.rank();
    change(made);
    made.rank().call().signal(0);
    CHECK_THROWS(std::invalid_argument, Script(made.columns()));
  };
  refused([](Written& made) { made.call().put(2, 0, 0); });
  refused([](Written& made) { made.call().put(1, 0, 1, 2); });
  refused([](Written& made) { made.call().put(1, -1, 0); });
  refused([](Written& made) { made.call().wait(1, 0); });
  refused([](Written& made) { made.call().put(1, 0, 0).wait(1); });
  refused([](Written& made) { made.call(); });
}
