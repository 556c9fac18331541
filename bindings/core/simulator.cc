// Binding of simulator/simulator.h.
#include "simulator/simulator.h"

#include "bindings.h"

using namespace coppice;

static nb::dict to_dict(Simulation found) {
  nb::dict result;
  result["start"] = to_numpy(std::move(found.start));
  result["arrived"] = to_numpy(std::move(found.arrived));
  result["done"] = to_numpy(std::move(found.done));
  result["cause"] = to_numpy(std::move(found.cause));
  result["reason"] = to_numpy(std::move(found.reason));
  result["hop_begin"] = to_numpy(std::move(found.hop_begin));
  result["hop_end"] = to_numpy(std::move(found.hop_end));
  result["hop_behind"] = to_numpy(std::move(found.hop_behind));
  result["limit"] = to_numpy(std::move(found.limit));
  result["rate_message"] = to_numpy(std::move(found.rate_message));
  result["rate_since"] = to_numpy(std::move(found.rate_since));
  result["rate"] = to_numpy(std::move(found.rate));
  result["link_busy"] = to_numpy(std::move(found.link_busy));
  result["link_bytes"] = to_numpy(std::move(found.link_bytes));
  result["finished"] = found.finished;
  return result;
}

/// What messages are: a record with the columns of Traffic.
static Traffic traffic_of(ColumnRecord& from) {
  Traffic traffic;
  from.fill("route", traffic.route);
  from.fill("bytes", traffic.bytes);
  from.fill("added", traffic.added);
  from.fill("wave", traffic.wave);
  from.fill("job", traffic.job);
  from.fill("due", traffic.due);
  from.fill("send_gate", traffic.send_gate);
  from.fill("receive_gate", traffic.receive_gate);
  from.fill("chained", traffic.chained);
  from.fill("after_start", traffic.after_start);
  from.fill("after", traffic.after);
  return traffic;
}

/// What they cross: a record with the columns of Fabric.
static Fabric fabric_of(ColumnRecord& from) {
  Fabric fabric;
  from.fill("rate", fabric.rate);
  from.fill("latency", fabric.latency);
  from.fill("burst", fabric.burst);
  from.fill("route_start", fabric.route_start);
  from.fill("route_links", fabric.route_links);
  from.fill("overhead", fabric.overhead);
  from.fill("sender", fabric.sender);
  from.fill("receiver", fabric.receiver);
  from.fill("send_occupancy", fabric.send_occupancy);
  from.fill("receive_occupancy", fabric.receive_occupancy);
  from.fill("group", fabric.group);
  fabric.num_gpus = from.get<std::int32_t>("num_gpus");
  return fabric;
}

static SimulatorOptions options_of(const Settings& from) {
  SimulatorOptions options;
  from.fill("store_and_forward", options.store_and_forward);
  from.fill("send_engines", options.send_engines);
  from.fill("receive_engines", options.receive_engines);
  from.fill("add_rate", options.add_rate);
  from.fill("buffered", options.buffered);
  from.fill("workers", options.workers);
  from.fill("copy_rate", options.copy_rate);
  from.fill("keep_hops", options.keep_hops);
  from.fill("keep_rates", options.keep_rates);
  from.fill("give_up", options.give_up);
  return options;
}

void init_simulator(nb::module_& m) {
  m.def(
      "simulate_messages",
      [](nb::object messages, nb::object network, nb::object settings) {
        ColumnRecord traffic_columns(messages), fabric_columns(network);
        const Traffic traffic = traffic_of(traffic_columns);
        const Fabric fabric = fabric_of(fabric_columns);
        const SimulatorOptions options = options_of(Settings(settings));
        const bool fair = Settings(settings).get<bool>("fair");
        return to_dict(stoppable([&](const StopFlag& stop) {
          return fair ? simulate_fair(traffic, fabric, options, stop) : simulate_fifo(traffic, fabric, options, stop);
        }));
      },
      nb::arg("traffic"), nb::arg("fabric"), nb::arg("options"),
      "Messages over links that serve them in turn or share fairly, in nanoseconds: records with the fields of Traffic, "
      "Fabric and SimulatorOptions (and `fair`), see simulator.h.");
}
