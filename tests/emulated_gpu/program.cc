#include "emulated_gpu/program.h"

#include <algorithm>
#include <sstream>

namespace coppice::emulated_gpu::testing {
namespace {

class Drawing {
 public:
  explicit Drawing(std::mt19937_64& random) : random_(random) {}

  Program draw() {
    Program program;
    const int steps = 6 + below(22);
    while (static_cast<int>(program.size()) < steps) {
      const int what = below(100);
      if (what < 6) {
        program.push_back(capture());
        if (below(2)) program.push_back({.kind = Step::launch, .stream = below(kStreams), .value = graphs_ - 1});
      } else if (what < 14 && graphs_) {
        program.push_back({.kind = Step::launch, .stream = below(kStreams), .value = below(graphs_)});
      } else if (what < 20) {
        program.push_back(host_step());
      } else {
        program.push_back(stream_step(below(kStreams), false));
      }
    }
    return program;
  }

 private:
  int below(int end) { return static_cast<int>(random_() % static_cast<std::uint64_t>(end)); }

  int cell(bool pageable) {
    const int drawn = below(kCells);
    return !pageable && kWhere[drawn] == Where::pageable ? below(5) : drawn;
  }

  // A pageable cell only beside one of a device: what CUDA does between two of the host is not written down.
  std::pair<int, int> pair(bool pageable) {
    int from = cell(pageable), to = cell(pageable);
    if (kWhere[from] == Where::pageable) to = below(5);
    if (kWhere[to] == Where::pageable) from = below(5);
    if (from == to) to = (to + 1) % 5;
    return {from, to};
  }

  Step stream_step(int stream, bool captured) {
    const int what = below(100);
    Step step{.stream = stream};
    if (what < 30) {
      step.kind = Step::copy;
      step.cells = {pair(!captured)};
    } else if (what < 36 && !captured && stream != 0) {
      step.kind = Step::batch;
      for (int i = 0, many = 2 + below(2); i < many; ++i) step.cells.push_back(pair(false));
    } else if (what < 46) {
      step.kind = Step::fill;
      step.cells = {{0, cell(false)}};
      step.value = below(256);
    } else if (what < 49) {
      step.kind = Step::kernel;
    } else if (what < 53) {
      step.kind = Step::callback;
      step.cells = {{5 + below(2), 0}};
    } else if (what < 60) {
      step.kind = Step::raise;  // a flag of graphs is raised to 1 by whoever runs first
      step.event = captured ? kFlags - 1 : below(kFlags - 1);
      step.value = ++raised_[step.event];
      if (captured) step.value = 1;
    } else if (what < 66) {
      step.kind = Step::await;
      step.event = below(kFlags);
      const bool of_graphs = step.event == kFlags - 1;
      if (!raised_[step.event] && !captured && below(8)) return stream_step(stream, captured);
      step.value = of_graphs ? 1 : 1 + below(std::max(1, raised_[step.event]));
    } else {
      step.kind = below(2) ? Step::record : Step::wait;
      step.event = captured ? kEvents + below(kCapturedEvents) : below(kEvents);
      if (step.kind == Step::record && device_of_event(step.event) != device_of(stream)) step.event ^= 1;
    }
    return step;
  }

  Step host_step() {
    switch (below(7)) {
      case 0: return {.kind = Step::sync_stream, .stream = below(kStreams)};
      case 1: return {.kind = Step::sync_event, .event = below(kEvents)};
      case 2: return {.kind = Step::sync_device, .value = below(2)};
      case 3: return {.kind = Step::copy_now, .cells = {pair(true)}};
      case 4: return {.kind = Step::host_write, .value = below(256), .cells = {{0, 5 + below(2)}}};
      default: return {.kind = Step::host_read, .cells = {{5 + below(3), 0}}};
    }
  }

  // A stream begins, others join by an event; in the end all of them join the first.
  Step capture() {
    std::vector<int> streams{1, 2, 3, 4, 5};
    std::shuffle(streams.begin(), streams.end(), random_);
    streams.resize(static_cast<std::size_t>(1 + below(3)));
    Step whole{.kind = Step::capture, .stream = streams[0], .value = graphs_++};
    const int fork = fork_of(streams[0]);
    whole.inside.push_back({.kind = Step::record, .stream = streams[0], .event = fork});
    for (std::size_t i = 1; i < streams.size(); ++i) {
      whole.inside.push_back({.kind = Step::wait, .stream = streams[i], .event = fork});
    }
    std::vector<bool> recorded(kAllEvents);
    for (int i = 0, many = 1 + below(7); i < many; ++i) {
      const int stream = streams[static_cast<std::size_t>(below(static_cast<int>(streams.size())))];
      Step step = stream_step(stream, true);
      if (step.kind == Step::wait && !recorded[static_cast<std::size_t>(step.event)]) continue;
      if (step.kind == Step::record) recorded[static_cast<std::size_t>(step.event)] = true;
      whole.inside.push_back(step);
    }
    for (std::size_t i = 1; i < streams.size(); ++i) {
      whole.inside.push_back({.kind = Step::record, .stream = streams[i], .event = fork_of(streams[i])});
      whole.inside.push_back({.kind = Step::wait, .stream = streams[0], .event = fork_of(streams[i])});
    }
    return whole;
  }

  std::mt19937_64& random_;
  int graphs_ = 0;
  int raised_[kFlags] = {};
};

}  // namespace

Program draw_program(std::mt19937_64& random) { return Drawing(random).draw(); }

const char* name_of(Step::Kind kind) {
  constexpr const char* kNames[] = {"copy",     "batch",      "fill",      "raise",       "await",      "kernel",
                                    "callback", "record",     "wait",      "sync_stream", "sync_event", "sync_device",
                                    "copy_now", "host_write", "host_read", "capture",     "launch"};
  return kNames[kind];
}

std::string text_of(const Program& program, int indent) {
  std::ostringstream out;
  for (const Step& step : program) {
    out << std::string(static_cast<std::size_t>(indent), ' ') << name_of(step.kind) << " stream " << step.stream
        << " event " << step.event << " value " << step.value;
    for (const auto& [from, to] : step.cells) out << " " << from << ">" << to;
    out << "\n" << text_of(step.inside, indent + 2);
  }
  return out.str();
}

}  // namespace coppice::emulated_gpu::testing
