// Many runs of a put/signal program under adversarial schedules, each from its seed alone.
#pragma once

#include <cstdint>
#include <vector>

#include "core/stop.h"
#include "put_signal/machine.h"

namespace coppice::put_signal {

struct Runs {
  Fault fault;                // of the run that went wrong, after which there are no more
  std::int64_t seed = -1;     // its number
  std::int64_t runs = 0;      // how many there were, it included
  std::int64_t actions = 0;   // of all of them
};

/// Runs of the numbers first .. first + count - 1; number i takes adversary i mod 11 (see agenda.h).
/// Throws std::invalid_argument where contents do not fit the script, Cancelled where `stop` says so.
Runs run_schedules(const Script& script, const Contents& contents, std::int64_t first, std::int64_t count, const StopFlag& stop = {});

struct Trace {
  Fault fault;
  std::vector<std::int64_t> happening, number;  // of each action
  std::vector<std::int64_t> possible;            // actions that might have come in its place, it included
};

/// The run of one number, action by action.
Trace trace_schedule(const Script& script, const Contents& contents, std::int64_t number);

}  // namespace coppice::put_signal
