#include "shared_memory/direct.h"

#include <algorithm>
#include <cstring>

#include "testing/ranks.h"
#include "testing/testing.h"

using namespace coppice::shm;
using coppice::shm::testing::Dice;
using coppice::shm::testing::fault_of;
using coppice::shm::testing::random_runs;
using coppice::shm::testing::together;

namespace {

constexpr Sizes kSmall{4096, 3, 4096};

struct Example {
  Collective collective = Collective::barrier;
  DataType type = DataType::int32;
  ReduceOp op = ReduceOp::sum;
  int root = 0;
  bool in_place = false;
  std::vector<std::int64_t> bounds;
  std::uint64_t seed = 0;
};

/// Input and output of one rank: in place they are parts of one buffer.
struct Buffers {
  std::vector<std::byte> input, output;
  std::size_t in_at = 0, out_at = 0;  // where they begin
  bool in_place = false;
  const std::byte* in() const { return (in_place ? output : input).data() + in_at; }
  std::byte* out() { return output.data() + out_at; }
};

class Trial {
 public:
  Trial(int ranks, Example example) : e_(std::move(example)), ranks_(ranks), item_(item_size(e_.type)) {
    Dice dice(e_.seed);
    for (int rank = 0; rank < ranks; ++rank) {
      inputs_.emplace_back(static_cast<std::size_t>(input_elements(rank)) * item_);
      // Small bit patterns are fine in every type; of bool only the lowest bit counts.
      for (std::byte& byte : inputs_.back()) byte = static_cast<std::byte>(dice.roll(0, 1));
    }
    for (int rank = 0; rank < ranks; ++rank) buffers_.push_back(buffers(rank));
  }

  DirectCall call(int rank) {
    Buffers& own = buffers_[static_cast<std::size_t>(rank)];
    return {e_.collective, own.in(), own.out(), e_.bounds, e_.type, e_.op, e_.root};
  }

  bool is_right() {
    for (int rank = 0; rank < ranks_; ++rank) {
      std::vector<std::byte> wanted = result(rank);
      if (!std::equal(wanted.begin(), wanted.end(), buffers_[static_cast<std::size_t>(rank)].out())) return false;
    }
    return true;
  }

 private:
  bool is(Collective what) const { return e_.collective == what; }
  std::int64_t total() const { return e_.bounds.back(); }
  std::int64_t block(int rank) const { return e_.bounds[rank + 1] - e_.bounds[rank]; }
  std::int64_t input_elements(int rank) const {
    switch (e_.collective) {
      case Collective::all_gather:
      case Collective::gather: return block(rank);
      case Collective::broadcast:
      case Collective::scatter: return rank == e_.root ? total() : 0;
      case Collective::barrier: return 0;
      default: return total();
    }
  }
  std::int64_t output_elements(int rank) const {
    switch (e_.collective) {
      case Collective::reduce_scatter:
      case Collective::scatter: return block(rank);
      case Collective::gather:
      case Collective::reduce: return rank == e_.root ? total() : 0;
      case Collective::all_to_all: return ranks_ * block(rank);
      case Collective::barrier: return 0;
      default: return total();
    }
  }

  Buffers buffers(int rank) const {
    const std::vector<std::byte>& input = inputs_[static_cast<std::size_t>(rank)];
    Buffers made{input, std::vector<std::byte>(static_cast<std::size_t>(output_elements(rank)) * item_, std::byte{0xaa}), 0, 0, e_.in_place};
    if (!e_.in_place) return made;
    std::size_t at = static_cast<std::size_t>(e_.bounds[rank]) * item_;
    bool holds_all = is(Collective::all_gather) || is(Collective::reduce_scatter) || rank == e_.root;
    bool has_blocks = is(Collective::all_gather) || is(Collective::reduce_scatter) || is(Collective::gather) || is(Collective::scatter);
    made.output.resize(std::max({input.size(), made.output.size(), has_blocks && holds_all ? static_cast<std::size_t>(total()) * item_ : 0}));
    if (has_blocks && holds_all) {
      bool gathers = is(Collective::all_gather) || is(Collective::gather);
      (gathers ? made.in_at : made.out_at) = at;
    }
    std::copy(input.begin(), input.end(), made.output.begin() + static_cast<std::ptrdiff_t>(made.in_at));
    return made;
  }

  void append(std::vector<std::byte>& to, int rank, std::int64_t begin, std::int64_t elements) const {
    auto from = inputs_[static_cast<std::size_t>(rank)].begin() + begin * static_cast<std::ptrdiff_t>(item_);
    to.insert(to.end(), from, from + elements * static_cast<std::ptrdiff_t>(item_));
  }

  std::vector<std::byte> result(int rank) const {
    std::vector<std::byte> out;
    switch (e_.collective) {
      case Collective::gather:
        if (rank != e_.root) return out;
        [[fallthrough]];
      case Collective::all_gather:
        for (int peer = 0; peer < ranks_; ++peer) append(out, peer, 0, block(peer));
        return out;
      case Collective::broadcast: append(out, e_.root, 0, total()); return out;
      case Collective::scatter: append(out, e_.root, e_.bounds[rank], block(rank)); return out;
      case Collective::all_to_all:
        for (int peer = 0; peer < ranks_; ++peer) append(out, peer, e_.bounds[rank], block(rank));
        return out;
      case Collective::barrier: return out;
      default: break;
    }
    if (is(Collective::reduce) && rank != e_.root) return out;
    std::int64_t begin = is(Collective::reduce_scatter) ? e_.bounds[rank] : 0;
    std::int64_t elements = is(Collective::reduce_scatter) ? block(rank) : total();
    std::vector<const void*> sources;
    for (const auto& input : inputs_) sources.push_back(input.data() + begin * static_cast<std::ptrdiff_t>(item_));
    out.resize(static_cast<std::size_t>(elements) * item_);
    combine_all(out.data(), sources, static_cast<std::size_t>(elements), e_.type, e_.op);
    return out;
  }

  Example e_;
  int ranks_;
  std::size_t item_;
  std::vector<std::vector<std::byte>> inputs_;
  std::vector<Buffers> buffers_;
};

std::vector<std::int64_t> even_bounds(int ranks, std::int64_t elements) {
  std::vector<std::int64_t> bounds;
  for (int rank = 0; rank <= ranks; ++rank) bounds.push_back(elements * rank / ranks);
  return bounds;
}

/// Carries out the examples one after another on one segment. Returns: how many went wrong.
int wrong(int ranks, const std::vector<Example>& examples, Sizes sizes = kSmall) {
  std::vector<Trial> trials;
  for (const Example& example : examples) trials.emplace_back(ranks, example);
  Segment segment = Segment::anonymous(ranks, sizes);
  auto thrown = together(ranks, [&](int rank) {
    segment.attach(rank);
    Direct direct(segment, rank);
    for (Trial& trial : trials) direct.run(trial.call(rank), 60);
  });
  for (const auto& each : thrown) CHECK(fault_of(each).kind == FaultKind::none);
  return static_cast<int>(std::count_if(trials.begin(), trials.end(), [](Trial& trial) { return !trial.is_right(); }));
}

constexpr Collective kAll[] = {Collective::all_gather, Collective::reduce_scatter, Collective::all_reduce,
                               Collective::broadcast,  Collective::reduce,         Collective::all_to_all,
                               Collective::gather,     Collective::scatter,        Collective::barrier};

}  // namespace

TEST(direct_collectives_of_every_kind_and_size) {
  for (int ranks : {1, 2, 3, 5, 8}) {
    std::vector<Example> examples;
    for (Collective collective : kAll) {
      for (std::int64_t elements : {0, 1, 2, 7, 1021, 12289}) {
        for (bool in_place : {false, true}) {
          std::int64_t used = collective == Collective::barrier ? 0 : elements;
          examples.push_back({collective, DataType::int32, ReduceOp::sum, ranks - 1, in_place, even_bounds(ranks, used), 1});
        }
      }
    }
    CHECK_EQ(wrong(ranks, examples), 0);
  }
}

TEST(direct_reductions_of_every_type_and_operation) {
  std::vector<Example> examples;
  for (int type = 0; type < kDataTypes; ++type) {
    for (int op = 0; op < kReduceOps; ++op) {
      if (!serves(static_cast<ReduceOp>(op), static_cast<DataType>(type))) continue;
      for (std::int64_t elements : {5, 3001}) {
        examples.push_back({Collective::all_reduce, static_cast<DataType>(type), static_cast<ReduceOp>(op), 0, op % 2 == 0, even_bounds(3, elements), 2});
      }
    }
  }
  CHECK_EQ(wrong(3, examples), 0);
}

TEST(random_direct_collectives) {
  Dice dice(11);
  int runs = random_runs();
  for (int done = 0; done < runs;) {
    int ranks = static_cast<int>(dice.roll(1, 8));
    Sizes sizes{static_cast<std::uint64_t>(4096 * dice.roll(1, 4)), static_cast<std::uint64_t>(dice.roll(3, 6)), 4096};
    std::vector<Example> examples;
    for (int k = 0; k < 25; ++k, ++done) {
      Example example;
      example.collective = kAll[dice.roll(0, 8)];
      do {
        example.type = static_cast<DataType>(dice.roll(0, kDataTypes - 1));
        example.op = static_cast<ReduceOp>(dice.roll(0, kReduceOps - 1));
      } while (!serves(example.op, example.type));
      example.root = static_cast<int>(dice.roll(0, ranks - 1));
      example.in_place = dice.roll(0, 1) == 1;
      example.bounds = {0};
      for (int rank = 0; rank < ranks; ++rank) {
        std::int64_t block = example.collective == Collective::barrier ? 0 : dice.roll_size(20000);
        example.bounds.push_back(example.bounds.back() + block);
      }
      example.seed = static_cast<std::uint64_t>(done);
      examples.push_back(example);
    }
    CHECK_EQ(wrong(ranks, examples, sizes), 0);
  }
}

TEST(ranks_that_disagree_all_hear_of_it) {
  for (int variant = 0; variant < 5; ++variant) {
    Segment segment = Segment::anonymous(3, kSmall);
    std::vector<std::vector<std::byte>> data(6, std::vector<std::byte>(80000));
    auto thrown = together(3, [&](int rank) {
      segment.attach(rank);
      Direct direct(segment, rank);
      bool differs = rank == 1;
      std::vector<std::int64_t> bounds = even_bounds(3, differs && variant == 0 ? 601 : 600);
      if (differs && variant == 4) bounds = {0, 0, 0, 0};
      DirectCall call{differs && variant == 1 ? Collective::all_to_all : Collective::all_reduce,
                      data[static_cast<std::size_t>(rank)].data(), data[static_cast<std::size_t>(rank) + 3].data(), bounds,
                      differs && variant == 2 ? DataType::int64 : DataType::int32,
                      differs && variant == 3 ? ReduceOp::max : ReduceOp::sum};
      direct.run(call, 60);
    });
    for (const auto& each : thrown) {
      CHECK(fault_of(each).kind == FaultKind::mismatch);
      CHECK(fault_of(each).culprit == 1 || fault_of(each).by == 1);
    }
  }
}

TEST(a_rank_that_never_comes_is_named) {
  Segment segment = Segment::anonymous(4, kSmall);
  auto thrown = together(4, [&](int rank) {
    segment.attach(rank);
    Direct direct(segment, rank);
    if (rank != 2) direct.run({Collective::barrier, nullptr, nullptr, std::vector<std::int64_t>(5)}, 0.3);
  });
  for (int rank : {0, 1, 3}) {
    CHECK(fault_of(thrown[static_cast<std::size_t>(rank)]).kind == FaultKind::timed_out);
    CHECK_EQ(fault_of(thrown[static_cast<std::size_t>(rank)]).culprit, 2);
  }
}

TEST(a_rank_that_has_left_is_named_long_before_the_timeout) {
  Segment segment = Segment::anonymous(3, kSmall);
  auto thrown = together(3, [&](int rank) {
    segment.attach(rank);
    Direct direct(segment, rank);
    if (rank == 0) return segment.leave(rank);
    direct.run({Collective::barrier, nullptr, nullptr, std::vector<std::int64_t>(4)}, 600);
  });
  for (int rank : {1, 2}) {
    CHECK(fault_of(thrown[static_cast<std::size_t>(rank)]).kind == FaultKind::left);
    CHECK_EQ(fault_of(thrown[static_cast<std::size_t>(rank)]).culprit, 0);
  }
}
