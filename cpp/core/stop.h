// How long work is stopped: it polls a flag now and then, and throws when that says so.
#pragma once

#include <functional>

namespace coppice {

/// Polled during long work: true asks it to stop. An empty flag never does.
using StopFlag = std::function<bool()>;

/// Thrown by work that was asked to stop.
struct Cancelled {};

/// Throws Cancelled when `stop` says so.
inline void poll(const StopFlag& stop) {
  if (stop && stop()) throw Cancelled{};
}

}  // namespace coppice
