// Carries out one rank's program of sends, receives, reductions and copies: columns as in coppice.program.dialects.rank.program.
//
// Driven by what arrives: a row starts as soon as the rows that it needs are complete and the earlier messages with its
// peer in its direction are through. One thread serves all peers in turn, a part of a message at a time. What is to be
// added up while its operands are not yet free (two ranks that exchange long messages in place) is taken out of a
// crowded ring into memory of this rank, so that the sender can go on: with that, any program that completes step by
// step completes here.
//
// Cost: each byte is copied into the ring and out of it or added up from there, once more where it had to be taken out;
// besides, O(1) per row and dependency, and a look at every queue in turn while something moves. Overflow: when a
// program is made, offsets and lengths are compared with the sizes of the buffers in a way that cannot overflow.
#pragma once

#include <map>
#include <memory>
#include <span>
#include <vector>

#include "shared_memory/channel.h"
#include "shared_memory/reduce.h"
#include "shared_memory/watch.h"

namespace coppice::shm {

enum class Kind : std::int8_t { send = 0, recv = 1, recv_reduce = 2, copy = 3 };
enum class Place : std::int8_t { input = 0, output = 1, scratch = 2 };

/// The columns of one rank's program; lengths and offsets in elements.
struct ProgramColumns {
  int rank = 0, ranks = 1;
  std::int64_t elements[3] = {0, 0, 0};  // of input, output and scratch
  std::span<const std::int8_t> kind;
  std::span<const std::int32_t> peer, tag;
  std::span<const std::int8_t> place;
  std::span<const std::int64_t> offset, length;
  std::span<const std::int8_t> source;
  std::span<const std::int64_t> source_offset;
  std::span<const std::int64_t> needs_start;
  std::span<const std::int32_t> needs;
};

/// A checked program, ready to be carried out many times.
class Program {
 public:
  /// Throws std::invalid_argument unless all columns have one length and all that they name exists.
  explicit Program(const ProgramColumns& columns);

 private:
  friend class Executor;
  struct Row {
    Kind kind;
    Place place, source;
    std::int32_t peer, tag;
    std::int64_t offset, length, source_offset;
  };
  struct Queue {  // messages of one peer in one direction, in order
    int peer;
    bool sends;
    std::vector<std::int32_t> rows;
  };

  int rank_, ranks_;
  std::int64_t elements_[3];
  std::vector<Row> rows_;
  std::vector<std::int32_t> num_needs_;       // per row
  std::vector<std::int64_t> successors_start_; // per row, and the end
  std::vector<std::int32_t> successors_;       // the rows that need it
  std::vector<Queue> queues_;
  std::vector<std::int32_t> free_copies_;     // copies that need nothing
};

/// One rank's part in a run of a program.
struct ProgramCall {
  std::byte* memory[3] = {nullptr, nullptr, nullptr};  // input, output and scratch, as long as the program says
  DataType type = DataType::uint8;
  ReduceOp op = ReduceOp::sum;
  std::uint64_t run = 0;  // a number that all ranks derive alike from what they carry out; another one is a mismatch
  // Where the result lies in the output, in elements: with avg it is divided by the number of ranks at the end.
  std::int64_t result_offset = 0, result_elements = 0;
};

/// Carries out the programs of one rank, one after another.
class Executor {
 public:
  Executor(Segment& segment, int rank) : segment_(segment), rank_(rank) {}

  /// Throws Failed, on this and all other ranks, if the program does not complete, std::invalid_argument where the call
  /// does not fit the program.
  void run(const Program& program, const ProgramCall& call, double timeout_s, const StopFlag& stop = {});

 private:
  struct Peer {
    std::unique_ptr<Sender> sender;
    std::unique_ptr<Receiver> receiver;
    std::vector<std::byte> aside;  // parts of a message that could not be added up yet
  };
  class Run;

  Segment& segment_;
  const int rank_;
  std::map<int, Peer> peers_;
};

}  // namespace coppice::shm
