#include "put_signal/schedules.h"

#include "core/hash.h"

namespace coppice::put_signal {

namespace {

constexpr std::int64_t kActionsBetweenPolls = 4096;

void start(Agenda& agenda, Machine& machine, std::int64_t number) {
  const auto which = static_cast<std::uint64_t>(number);
  agenda.start(static_cast<Adversary>(which % kAdversaries), mixed(which));
  machine.reset();
}

Fault fault_at_the_end(const Machine& machine) { return machine.is_over() ? Fault{} : Fault{FaultKind::kStandsStill}; }

}  // namespace

Runs run_schedules(const Script& script, const Contents& contents, std::int64_t first, std::int64_t count, const StopFlag& stop) {
  Agenda agenda(script);
  Machine machine(script, contents, agenda);
  Runs found;
  while (found.runs < count && !found.fault) {
    const std::int64_t number = first + found.runs++;
    start(agenda, machine, number);
    poll(stop);
    while (!agenda.empty() && !found.fault) {
      found.fault = machine.perform(agenda.take());
      if (++found.actions % kActionsBetweenPolls == 0) poll(stop);
    }
    if (!found.fault) found.fault = fault_at_the_end(machine);
    if (found.fault) found.seed = number;
  }
  return found;
}

Trace trace_schedule(const Script& script, const Contents& contents, std::int64_t number) {
  Agenda agenda(script);
  Machine machine(script, contents, agenda);
  start(agenda, machine, number);
  Trace found;
  while (!agenda.empty() && !found.fault) {
    found.possible.push_back(agenda.size());
    const Action action = agenda.take();
    const auto [what, which] = agenda.meaning(action);
    found.happening.push_back(static_cast<std::int64_t>(what));
    found.number.push_back(which);
    found.fault = machine.perform(action);
  }
  if (!found.fault) found.fault = fault_at_the_end(machine);
  return found;
}

}  // namespace coppice::put_signal
