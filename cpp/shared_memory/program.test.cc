#include "shared_memory/program.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <stdexcept>

#include "testing/ranks.h"
#include "testing/testing.h"

using namespace coppice::shm;
using coppice::shm::testing::Dice;
using coppice::shm::testing::fault_of;
using coppice::shm::testing::random_runs;
using coppice::shm::testing::together;

namespace {

using Memory = std::array<std::vector<std::byte>, 3>;

struct Spot {
  std::int8_t place;
  std::int64_t offset;
};

/// Programs of all ranks, written as one sequence of messages and copies whose outcome in that order is the right one.
/// Each row needs all earlier rows of its rank that touch the same elements.
class Script {
 public:
  Script(int ranks, std::array<std::int64_t, 3> elements, DataType type, ReduceOp op)
      : ranks_(ranks), elements_(elements), type_(type), op_(op), rows_(static_cast<std::size_t>(ranks)),
        tags_(static_cast<std::size_t>(ranks * ranks)), right_(static_cast<std::size_t>(ranks)) {
    Dice dice(static_cast<std::uint64_t>(ranks));
    for (Memory& memory : right_) {
      for (int place = 0; place < 3; ++place) {
        memory[static_cast<std::size_t>(place)].resize(static_cast<std::size_t>(elements[static_cast<std::size_t>(place)]) * item_size(type));
        for (std::byte& byte : memory[static_cast<std::size_t>(place)]) byte = static_cast<std::byte>(dice.roll(0, 1));
      }
    }
    start_ = right_;
  }

  void copy(int rank, Spot to, Spot from, std::int64_t length) {
    add(rank, {Kind::copy, -1, -1, to, from, length});
    std::memmove(at(rank, to), at(rank, from), bytes(length));
  }

  void message(int from, int to, Spot source, Spot target, std::int64_t length) {
    std::int32_t tag = next_tag(from, to);
    add(from, {Kind::send, to, tag, source, {-1, 0}, length});
    add(to, {Kind::recv, from, tag, target, {-1, 0}, length});
    std::memcpy(at(to, target), at(from, source), bytes(length));
  }

  void reduce(int from, int to, Spot source, Spot operand, Spot target, std::int64_t length) {
    std::int32_t tag = next_tag(from, to);
    add(from, {Kind::send, to, tag, source, {-1, 0}, length});
    add(to, {Kind::recv_reduce, from, tag, target, operand, length});
    combine(at(to, target), at(to, operand), at(from, source), static_cast<std::size_t>(length), type_, op_);
  }

  /// Both add up what both have, each in place: neither may start to add before it has sent all.
  void exchange(int a, int b, Spot spot, std::int64_t length) {
    std::int32_t there = next_tag(a, b), back = next_tag(b, a);
    add(a, {Kind::send, b, there, spot, {-1, 0}, length});
    add(b, {Kind::send, a, back, spot, {-1, 0}, length});
    add(a, {Kind::recv_reduce, b, back, spot, spot, length});
    add(b, {Kind::recv_reduce, a, there, spot, spot, length});
    std::vector<std::byte> old(at(a, spot), at(a, spot) + bytes(length));
    combine(at(a, spot), at(a, spot), at(b, spot), static_cast<std::size_t>(length), type_, op_);
    combine(at(b, spot), at(b, spot), old.data(), static_cast<std::size_t>(length), type_, op_);
  }

  Program program(int rank) const {
    std::vector<std::int8_t> kind, place, source;
    std::vector<std::int32_t> peer, tag, needs;
    std::vector<std::int64_t> offset, length, source_offset, needs_start{0};
    const std::vector<Row>& rows = rows_[static_cast<std::size_t>(rank)];
    for (std::size_t i = 0; i < rows.size(); ++i) {
      const Row& row = rows[i];
      kind.push_back(static_cast<std::int8_t>(row.kind));
      peer.push_back(row.peer), tag.push_back(row.tag);
      place.push_back(row.spot.place), offset.push_back(row.spot.offset), length.push_back(row.length);
      source.push_back(row.source.place), source_offset.push_back(row.source.offset);
      for (std::size_t j = 0; j < i; ++j) {
        if (conflict(rows[j], row)) needs.push_back(static_cast<std::int32_t>(j));
      }
      needs_start.push_back(static_cast<std::int64_t>(needs.size()));
    }
    return Program({rank, ranks_, {elements_[0], elements_[1], elements_[2]}, kind, peer, tag, place, offset, length, source, source_offset, needs_start, needs});
  }

  const std::vector<Memory>& start() const { return start_; }
  const std::vector<Memory>& right() const { return right_; }

 private:
  struct Row {
    Kind kind;
    std::int32_t peer, tag;
    Spot spot, source;
    std::int64_t length;
  };

  static bool overlap(Spot a, std::int64_t n, Spot b, std::int64_t m) {
    return a.place == b.place && a.offset < b.offset + m && b.offset < a.offset + n;
  }
  static bool conflict(const Row& a, const Row& b) {
    bool a_writes = a.kind != Kind::send, b_writes = b.kind != Kind::send;
    if ((a_writes || b_writes) && overlap(a.spot, a.length, b.spot, b.length)) return true;
    if (a.source.place >= 0 && b_writes && overlap(a.source, a.length, b.spot, b.length)) return true;
    return b.source.place >= 0 && a_writes && overlap(a.spot, a.length, b.source, b.length);
  }
  void add(int rank, Row row) { rows_[static_cast<std::size_t>(rank)].push_back(row); }
  std::int32_t next_tag(int from, int to) { return tags_[static_cast<std::size_t>(from * ranks_ + to)]++; }
  std::size_t bytes(std::int64_t length) const { return static_cast<std::size_t>(length) * item_size(type_); }
  std::byte* at(int rank, Spot spot) {
    return right_[static_cast<std::size_t>(rank)][static_cast<std::size_t>(spot.place)].data() + bytes(spot.offset);
  }

  int ranks_;
  std::array<std::int64_t, 3> elements_;
  DataType type_;
  ReduceOp op_;
  std::vector<std::vector<Row>> rows_;
  std::vector<std::int32_t> tags_;
  std::vector<Memory> start_, right_;
};

/// Carries out a script `repeats` times on one segment. Returns: whether every outcome was right.
bool runs_right(const Script& script, int ranks, DataType type, ReduceOp op, Sizes sizes, int repeats = 1) {
  Segment segment = Segment::anonymous(ranks, sizes);
  std::vector<char> is_right(static_cast<std::size_t>(ranks), 1);
  auto thrown = together(ranks, [&](int rank) {
    segment.attach(rank);
    Executor executor(segment, rank);
    Program program = script.program(rank);
    for (int repeat = 0; repeat < repeats; ++repeat) {
      Memory memory = script.start()[static_cast<std::size_t>(rank)];
      executor.run(program, {{memory[0].data(), memory[1].data(), memory[2].data()}, type, op, 42}, 60);
      if (memory != script.right()[static_cast<std::size_t>(rank)]) is_right[static_cast<std::size_t>(rank)] = 0;
    }
  });
  for (const auto& each : thrown) CHECK(!each);
  return std::find(is_right.begin(), is_right.end(), 0) == is_right.end();
}

constexpr std::int8_t kOut = 1;

/// A spot for `length` elements anywhere.
Spot any_spot(Dice& dice, const std::array<std::int64_t, 3>& elements, std::int64_t length) {
  std::int8_t place;
  do place = static_cast<std::int8_t>(dice.roll(0, 2));
  while (elements[static_cast<std::size_t>(place)] < length);
  return {place, dice.roll(0, elements[static_cast<std::size_t>(place)] - length)};
}

}  // namespace

TEST(random_programs_end_as_their_messages_in_order) {
  Dice dice(5);
  int runs = random_runs();
  for (int done = 0; done < runs; ++done) {
    int ranks = static_cast<int>(dice.roll(1, 8));
    DataType type;
    ReduceOp op;
    do {
      type = static_cast<DataType>(dice.roll(0, kDataTypes - 1));
      op = static_cast<ReduceOp>(dice.roll(0, kReduceOps - 1));
    } while (!serves(op, type));
    std::array<std::int64_t, 3> elements{dice.roll(1, 5000), dice.roll(1, 9000), dice.roll(1, 3000)};
    Script script(ranks, elements, type, op);
    for (std::int64_t left = dice.roll(0, 60); left > 0; --left) {
      std::int64_t length = 1 + dice.roll_size(*std::max_element(elements.begin(), elements.end()) - 1);
      auto spot = [&] { return any_spot(dice, elements, length); };
      int a = static_cast<int>(dice.roll(0, ranks - 1)), b = static_cast<int>(dice.roll(0, ranks - 1));
      Spot to = spot();
      if (a == b) {
        script.copy(a, to, spot(), length);
      } else if (std::int64_t what = dice.roll(0, 3); what == 0) {
        script.message(a, b, spot(), to, length);
      } else if (what == 1) {
        script.reduce(a, b, spot(), to, to, length);
      } else if (what == 2) {
        Spot operand = spot();  // apart from the target, or the very same
        bool is_apart = operand.place != to.place || operand.offset + length <= to.offset || to.offset + length <= operand.offset;
        script.reduce(a, b, spot(), is_apart ? operand : to, to, length);
      } else {
        script.exchange(a, b, to, length);
      }
    }
    Sizes sizes{4096, 3, static_cast<std::uint64_t>(4096 * dice.roll(1, 8))};
    CHECK(runs_right(script, ranks, type, op, sizes, 2));
  }
}

TEST(long_exchanges_in_place_do_not_block_each_other) {
  // Each message is a hundred times as long as the ring that it goes through.
  Script script(4, {0, 100000, 0}, DataType::float32, ReduceOp::sum);
  script.exchange(0, 1, {kOut, 0}, 100000);
  script.exchange(2, 3, {kOut, 0}, 100000);
  script.exchange(0, 2, {kOut, 0}, 100000);
  script.exchange(1, 3, {kOut, 0}, 100000);
  CHECK(runs_right(script, 4, DataType::float32, ReduceOp::sum, {4096, 3, 4096}, 3));
}

TEST(a_ring_of_long_messages_completes) {
  Script script(3, {30000, 30000, 0}, DataType::int16, ReduceOp::sum);
  for (int rank = 0; rank < 3; ++rank) script.message(rank, (rank + 1) % 3, {0, 0}, {kOut, 0}, 30000);
  CHECK(runs_right(script, 3, DataType::int16, ReduceOp::sum, {4096, 3, 4096}, 3));
}

TEST(programs_are_checked) {
  std::vector<std::int8_t> kind{0}, place{1}, source{-1};
  std::vector<std::int32_t> peer{1}, tag{0}, needs;
  std::vector<std::int64_t> offset{0}, length{10}, source_offset{0}, needs_start{0, 0};
  auto make = [&] {
    return Program({0, 2, {0, 10, 0}, kind, peer, tag, place, offset, length, source, source_offset, needs_start, needs});
  };
  make();
  offset = {1};
  CHECK_THROWS(std::invalid_argument, make());
  offset = {-1};
  CHECK_THROWS(std::invalid_argument, make());
  offset = {0}, place = {0};
  CHECK_THROWS(std::invalid_argument, make());
  place = {3};
  CHECK_THROWS(std::invalid_argument, make());
  place = {1}, peer = {0};
  CHECK_THROWS(std::invalid_argument, make());
  peer = {2};
  CHECK_THROWS(std::invalid_argument, make());
  peer = {1}, kind = {2};  // RECV_REDUCE without an operand
  CHECK_THROWS(std::invalid_argument, make());
  kind = {4};
  CHECK_THROWS(std::invalid_argument, make());
  kind = {0}, needs = {0}, needs_start = {0, 1};
  CHECK_THROWS(std::invalid_argument, make());
  needs_start = {0, 2};
  CHECK_THROWS(std::invalid_argument, make());
  needs = {}, needs_start = {0, 0}, length = {};
  CHECK_THROWS(std::invalid_argument, make());
}

TEST(avg_divides_the_result_and_nothing_else) {
  for (bool averages : {false, true}) {
    Segment segment = Segment::anonymous(2, {4096, 3, 4096});
    std::vector<std::vector<std::int32_t>> outputs(2, {10, 20, 30});
    auto thrown = together(2, [&](int rank) {
      segment.attach(rank);
      Script script(2, {0, 3, 0}, DataType::int32, ReduceOp::sum);
      script.exchange(0, 1, {kOut, 0}, 3);
      std::byte* output = reinterpret_cast<std::byte*>(outputs[static_cast<std::size_t>(rank)].data());
      ProgramCall call{{nullptr, output, nullptr}, DataType::int32, averages ? ReduceOp::avg : ReduceOp::sum, 7, 1, 2};
      Executor executor(segment, rank);
      executor.run(script.program(rank), call, 60);
      call.result_elements = 3;
      CHECK_THROWS(std::invalid_argument, executor.run(script.program(rank), call, 60));
      call.result_offset = -1;
      CHECK_THROWS(std::invalid_argument, executor.run(script.program(rank), call, 60));
    });
    for (const auto& each : thrown) CHECK(!each);
    for (const auto& output : outputs)
      CHECK(output == (averages ? std::vector<std::int32_t>{20, 20, 30} : std::vector<std::int32_t>{20, 40, 60}));
  }
}

TEST(programs_that_do_not_belong_together_are_a_mismatch) {
  for (int variant = 0; variant < 3; ++variant) {
    Segment segment = Segment::anonymous(2, {4096, 3, 4096});
    auto thrown = together(2, [&](int rank) {
      segment.attach(rank);
      bool differs = rank == 1;
      Script script(2, {0, 50, 0}, DataType::int32, ReduceOp::sum);
      script.message(0, 1, {kOut, 0}, {kOut, 0}, differs && variant == 0 ? 49 : 50);
      script.message(1, 0, {kOut, 0}, {kOut, 0}, 50);
      Executor executor(segment, rank);
      Memory memory = script.start()[0];
      memory[1].resize(1000);
      std::byte* all = memory[1].data();
      executor.run(script.program(rank),
                   {{all, all, all}, differs && variant == 1 ? DataType::int64 : DataType::int32, ReduceOp::sum,
                    differs && variant == 2 ? std::uint64_t{1} : 0},
                   60);
    });
    CHECK(fault_of(thrown[1]).kind == FaultKind::mismatch);
    CHECK_EQ(fault_of(thrown[1]).culprit, 0);
    CHECK(fault_of(thrown[0]).kind == FaultKind::mismatch);
  }
}

TEST(a_rank_that_holds_up_others_is_named_through_those_that_wait) {
  Segment segment = Segment::anonymous(4, {4096, 3, 4096});
  auto thrown = together(4, [&](int rank) {
    segment.attach(rank);
    Script script(4, {0, 10, 0}, DataType::int32, ReduceOp::sum);
    for (int to = 1; to < 4; ++to) script.message(to - 1, to, {kOut, 0}, {kOut, 0}, 10);
    if (rank == 0) return;
    Executor executor(segment, rank);
    Memory memory = script.start()[0];
    executor.run(script.program(rank), {{memory[0].data(), memory[1].data(), memory[2].data()}, DataType::int32}, 0.4);
  });
  for (std::size_t rank = 1; rank < 4; ++rank) {
    CHECK(fault_of(thrown[rank]).kind == FaultKind::timed_out);
    CHECK_EQ(fault_of(thrown[rank]).culprit, 0);
  }
}
