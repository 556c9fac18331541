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

void init_simulator(nb::module_& m) {
  m.def(
      "simulate_messages",
      [](Column<std::int32_t> route, Column<std::int64_t> bytes, Column<std::int64_t> added, Column<std::int32_t> wave, Column<std::int32_t> job,
         Column<double> due,
         Column<std::int32_t> send_gate, Column<std::int32_t> receive_gate, Column<std::uint8_t> chained,
         Column<std::int64_t> after_start, Column<std::int32_t> after, Column<double> rate, Column<double> latency,
         Column<double> burst,
         Column<std::int64_t> route_start, Column<std::int32_t> route_links, Column<double> overhead,
         Column<std::int32_t> sender, Column<std::int32_t> receiver, std::int32_t num_gpus,
         Column<double> send_occupancy, Column<double> receive_occupancy, Column<std::int32_t> group, bool buffered, std::int32_t workers,
         double copy_rate, bool fair, bool store_and_forward,
         std::int32_t send_engines, std::int32_t receive_engines, double add_rate, bool keep_hops, bool keep_rates) {
        Traffic traffic{.route = view(route), .bytes = view(bytes), .added = view(added), .wave = view(wave), .job = view(job), .due = view(due),
                        .send_gate = view(send_gate), .receive_gate = view(receive_gate), .chained = view(chained),
                        .after_start = view(after_start), .after = view(after)};
        Fabric fabric{.rate = view(rate), .latency = view(latency), .burst = view(burst), .route_start = view(route_start),
                      .route_links = view(route_links), .overhead = view(overhead), .sender = view(sender),
                      .receiver = view(receiver), .num_gpus = num_gpus, .send_occupancy = view(send_occupancy),
                      .receive_occupancy = view(receive_occupancy), .group = view(group)};
        SimulatorOptions options{.store_and_forward = store_and_forward, .send_engines = send_engines,
                                 .receive_engines = receive_engines, .add_rate = add_rate, .buffered = buffered, .workers = workers, .copy_rate = copy_rate, .keep_hops = keep_hops, .keep_rates = keep_rates};
        return to_dict(stoppable([&](const StopFlag& stop) {
          return fair ? simulate_fair(traffic, fabric, options, stop) : simulate_fifo(traffic, fabric, options, stop);
        }));
      },
      nb::arg("route"), nb::arg("bytes"), nb::arg("added"), nb::arg("wave"), nb::arg("job"), nb::arg("due"), nb::arg("send_gate"), nb::arg("receive_gate"),
      nb::arg("chained"), nb::arg("after_start"), nb::arg("after"), nb::arg("rate"), nb::arg("latency"), nb::arg("burst"),
      nb::arg("route_start"), nb::arg("route_links"), nb::arg("overhead"), nb::arg("sender"), nb::arg("receiver"),
      nb::arg("num_gpus"), nb::arg("send_occupancy"), nb::arg("receive_occupancy"), nb::arg("group"), nb::arg("buffered"), nb::arg("workers"),
      nb::arg("copy_rate"), nb::arg("fair"), nb::arg("store_and_forward"), nb::arg("send_engines"), nb::arg("receive_engines"),
      nb::arg("add_rate"), nb::arg("keep_hops"), nb::arg("keep_rates"),
      "Messages over links that serve them in turn or share fairly, in nanoseconds: see simulator.h.");
}
