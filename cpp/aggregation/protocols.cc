#include "aggregation/protocols.h"

#include <stdexcept>
#include <string>
#include <vector>

#include "aggregation/switchml.h"
#include "atp/atp_server.h"
#include "atp/atp_switch.h"
#include "atp/atp_worker.h"
#include "hardware_trees/camdoop.h"
#include "hardware_trees/sharp.h"
#include "hardware_trees/streaming.h"
#include "netreduce/netreduce_switch.h"
#include "netreduce/netreduce_worker.h"
#include "stream_trees/netagg.h"
#include "stream_trees/switchagg.h"

namespace coppice::aggregation {

namespace {

template <class Switch>
std::unique_ptr<Aggregator> make_switch(int slots) {
  return std::make_unique<Switch>(slots);
}

template <class Kind>
std::unique_ptr<Worker> make_worker(const Job& job, int index, Endpoint above) {
  return std::make_unique<Kind>(job, index, above);
}

template <class Server>
std::unique_ptr<Aggregator> make_server() {
  return std::make_unique<Server>();
}

std::unique_ptr<Aggregator> make_fpisa(int slots) {
  return std::make_unique<SwitchMlSwitch>(slots, SwitchMlSwitch::Adder::fpisa);
}

// To a worker of SwitchML, floats that travel as they are are any words.
std::unique_ptr<Worker> make_fpisa_worker(const Job& job, int index, Endpoint above) {
  if (job.element != Element::float32) throw std::invalid_argument("expected float32 where the switch adds floats, found int32");
  Job words = job;
  words.element = Element::int32;
  return std::make_unique<SwitchMlWorker>(words, index, above);
}

}  // namespace

std::span<const Protocol> protocols() {
  // One line each, in alphabetical order.
  static const std::vector<Protocol> all = {
      {"atp", make_switch<AtpSwitch>, make_worker<AtpWorker>, make_server<AtpServer>},
      {"camdoop", make_switch<CamdoopHop>, make_worker<CamdoopWorker>, nullptr, describe_frame},
      {"fpisa", make_fpisa, make_fpisa_worker, nullptr, SwitchMlPacket::describe},
      {"netagg", make_switch<NetAgg>, make_worker<NetAggWorker>},
      {"netreduce", make_switch<NetReduceSwitch>, make_worker<NetReduceWorker>},
      {"sharp", make_switch<SharpSwitch>, make_worker<SharpWorker>, nullptr, describe_frame},
      {"streaming", make_switch<StreamingSwitch>, make_worker<StreamingWorker>, nullptr, describe_frame},
      {"switchagg", make_switch<SwitchAgg>, make_worker<SwitchAggWorker>},
      {"switchml", make_switch<SwitchMlSwitch>, make_worker<SwitchMlWorker>, nullptr, SwitchMlPacket::describe},
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
