// Tasks that wait for each other, on streams that run one at a time and on links that they share.
//
// A training iteration is such a graph: kernels on the compute stream of a device, collectives on its communication
// stream and on the links that several of them cross.
//
// Rules. A task is ready when all tasks that it comes after have finished. A free stream takes the ready task with the
// least priority, of equal ones the least id, and runs it to its end. A task without a stream starts when it is ready.
// What ends at an instant has ended before any stream chooses at that instant, and tasks without a stream that take no
// time (barriers) end in the instant in which they are ready.
//
// Windows. A task of a window takes credit before it may go to its stream: while the window has any credit, however
// little, it admits the ready task with the least priority, of equal ones the least id, and takes that task's bytes from
// the credit. They come back when a task that returns them ends (itself, or one that stands for the acknowledgement).
// Admitted tasks are out of reach of priorities: streams run them in the order of admission, before others.
//
// Sharing. A task may load links: at full speed it takes a share of each. Speeds of tasks on shared links are max-min
// fair, at most 1: they grow together until a link is full, tasks on it keep theirs, the rest grow on. A task that is
// never slowed down ends exactly `seconds` after its start.
//
// Times are multiples of 2^-34 s (58 ps), so that sums of durations are exact and ties are ties whatever their order; a
// duration is rounded to that, and so is the end of a task that was slowed down.
//
// Cost: O(log tasks) a task and O(1) a dependency; a change on links is passed on to the tasks that share links with
// the one that came or went, directly or through others. Overflow: none; times beyond 2^19 s are coarser.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "core/stop.h"

namespace coppice {

struct Tasks {
  std::span<const std::int32_t> stream;      // per task; -1: none
  std::span<const double> seconds;           // per task, at full speed, >= 0
  std::span<const std::int64_t> priority;    // per task
  std::span<const std::int64_t> after_start;  // task t comes after after[after_start[t] .. after_start[t + 1])
  std::span<const std::int32_t> after;
  std::span<const std::int64_t> load_start;  // task t loads load_link[load_start[t] .. load_start[t + 1]); empty: none
  std::span<const std::int32_t> load_link;
  std::span<const double> load;              // share of the link at full speed, > 0
  std::int32_t num_streams = 0;
  std::int32_t num_links = 0;
  std::span<const std::int32_t> window;  // per task; -1: none; empty: there are no windows. A task of one has a stream
  std::span<const double> window_bytes;  // per task: what it takes of the credit, >= 0
  std::span<const std::int32_t> returns;  // per task: the task whose credit comes back when this one ends; -1: none
  std::span<const double> credit;        // per window, > 0, finite

  std::size_t size() const { return stream.size(); }
  std::span<const std::int32_t> predecessors(std::size_t task) const;
};

struct TaskTimes {
  std::vector<double> start, finish;  // per task; negative: it never started
  std::vector<std::int32_t> cause;    // task whose end let it start, by a dependency or by leaving the stream; -1: none
  std::int64_t finished = 0;          // fewer than all: the rest wait for each other
};

/// Runs all tasks.
/// Throws std::invalid_argument where columns do not fit together, Cancelled where `stop` says so.
TaskTimes run_tasks(const Tasks& tasks, const StopFlag& stop = {});

/// Length of the longest path before each task and from its start on, at full speed; empty where tasks wait in a circle.
struct PathLengths {
  std::vector<double> head, tail;
};
PathLengths path_lengths(const Tasks& tasks);

}  // namespace coppice
