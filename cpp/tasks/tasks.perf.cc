// Goal of tasks.h: a million tasks a second on one core.
// Usage: build/tasks/tasks.perf
#include "tasks/tasks.h"

#include "testing/perf.h"

using namespace coppice;

namespace {

/// Pipelines of `devices` with `steps` tasks each: a task comes after its predecessor on the device and one next door.
struct Pipelines {
  std::vector<std::int32_t> stream, after, load_link;
  std::vector<double> seconds, load;
  std::vector<std::int64_t> priority, after_start{0}, load_start;

  Pipelines(std::int32_t devices, std::int32_t steps, bool shared) {
    if (shared) load_start.push_back(0);
    for (std::int32_t step = 0; step < steps; ++step) {
      for (std::int32_t device = 0; device < devices; ++device) {
        stream.push_back(device);
        seconds.push_back(1e-3 + 1e-6 * ((device * 7 + step * 3) % 11));
        priority.push_back(step);
        if (step > 0) {
          after.push_back((step - 1) * devices + device);
          if (device > 0) after.push_back((step - 1) * devices + device - 1);
        }
        after_start.push_back(static_cast<std::int64_t>(after.size()));
        if (!shared) continue;
        if (step % 4 == 0) load_link.push_back(device / 8), load.push_back(0.25);
        load_start.push_back(static_cast<std::int64_t>(load.size()));
      }
    }
  }
  Tasks tasks(std::int32_t devices) const {
    return {.stream = stream, .seconds = seconds, .priority = priority, .after_start = after_start, .after = after,
            .load_start = load_start, .load_link = load_link, .load = load, .num_streams = devices,
            .num_links = devices / 8 + 1};
  }
};

void measure(std::int32_t devices, std::int32_t steps, bool shared) {
  const Pipelines pipelines(devices, steps, shared);
  const double count = static_cast<double>(pipelines.stream.size());
  std::int64_t finished = 0;
  const double taken = perf::seconds([&] { finished = run_tasks(pipelines.tasks(devices)).finished; });
  perf::report(std::to_string(devices) + " devices, " + std::to_string(pipelines.stream.size()) + " tasks" +
                   (shared ? ", some on shared links" : "") + (finished == count ? "" : ", UNFINISHED"),
               taken, count * 1e-6);
}

}  // namespace

int main() {
  measure(16, 60'000, false);
  measure(1'024, 1'000, false);
  measure(1'024, 1'000, true);
}
