#include "aggregation/protocols.h"

#include <stdexcept>
#include <string>
#include <vector>

#include "aggregation/camdoop.h"
#include "aggregation/sharp.h"
#include "aggregation/streaming.h"
#include "aggregation/switchml.h"

namespace coppice::aggregation {

namespace {

template <class Switch>
std::unique_ptr<Aggregator> made(int slots) {
  return std::make_unique<Switch>(slots);
}

template <class OneWorker>
std::unique_ptr<Worker> made_worker(const Job& job, int index, Endpoint above) {
  return std::make_unique<OneWorker>(job, index, above);
}

}  // namespace

std::span<const Protocol> protocols() {
  // One line each, in alphabetical order.
  static const std::vector<Protocol> all = {
      {"camdoop", made<CamdoopHop>, made_worker<CamdoopWorker>, nullptr, describe_frame},
      {"sharp", made<SharpSwitch>, made_worker<SharpWorker>, nullptr, describe_frame},
      {"streaming", made<StreamingSwitch>, made_worker<StreamingWorker>, nullptr, describe_frame},
      {"switchml", made<SwitchMlSwitch>, made_worker<SwitchMlWorker>, nullptr, SwitchMlPacket::describe},
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
