#include "aggregation/protocols.h"

#include <stdexcept>
#include <string>
#include <vector>

#include "aggregation/netagg.h"
#include "aggregation/switchagg.h"

namespace coppice::aggregation {

namespace {

template <class Switch>
std::unique_ptr<Aggregator> make_switch(int slots) {
  return std::make_unique<Switch>(slots);
}

template <class End>
std::unique_ptr<Worker> make_worker(const Job& job, int index, Endpoint above) {
  return std::make_unique<End>(job, index, above);
}

}  // namespace

std::span<const Protocol> protocols() {
  // One line each, in alphabetical order.
  static const std::vector<Protocol> all = {
      {"netagg", make_switch<NetAgg>, make_worker<NetAggWorker>},
      {"switchagg", make_switch<SwitchAgg>, make_worker<SwitchAggWorker>},
  };
  return all;
}

const Protocol& protocol(std::string_view name) {
  std::string names;
  for (const Protocol& each : protocols()) {
    if (each.name == name) return each;
    names += (names.empty() ? "" : ", ") + std::string(each.name);
  }
  throw std::invalid_argument("expected one of the protocols " + names + ", found " + std::string(name));
}

}  // namespace coppice::aggregation
