// What CUDA's ordering rules allow a program to do, derived from its text alone.
//
// Every step of the host and every operation of a device is a node; the rules are edges, from what has to be over to
// what may then begin. A program whose edges go round in a circle stands still. Two accesses of one cell, one of them a
// write, that no path orders are a race. A program without a race has one result, which is that of any order that the
// edges allow.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "emulated_gpu/program.h"

namespace coppice::emulated_gpu::testing {

using Cell = std::array<std::uint64_t, kWords>;

struct Result {
  std::array<Cell, kCells> cells;  // in the end
  std::vector<Cell> read;          // what the host and its functions read, by the order of issue
  bool operator==(const Result&) const = default;
};

std::array<Cell, kCells> first_values();

struct Place {
  int step = -1;    // of the program
  int inside = -1;  // of what that step captured, where it launches a graph; or of the copies of a batch
};

struct Judgement {
  enum Kind {
    stands_still,
    open_flag,  // it is open which write ends a wait
    races,
    sound,
  } kind;
  Result result{};          // of a sound program
  Place first{}, second{};  // of a race, in the order of issue
};

Judgement judge(const Program& program);

}  // namespace coppice::emulated_gpu::testing
