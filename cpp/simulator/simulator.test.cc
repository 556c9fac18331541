#include "simulator/simulator.h"

#include <limits>
#include <stdexcept>

#include "testing/testing.h"

using namespace coppice;

namespace {

/// Columns of a small simulation; GPUs 0 .. 3, and routes that are single links unless said otherwise.
struct World {
  std::vector<std::int32_t> route, wave, job, send_gate, receive_gate, after;
  std::vector<std::int64_t> bytes, added, after_start, route_start{0};
  std::vector<double> due, rate, latency, burst, overhead, send_occupancy, receive_occupancy;
  std::vector<std::int32_t> group;  // empty: workers do not count
  std::vector<std::uint8_t> chained;
  std::vector<std::int32_t> route_links, sender, receiver;
  SimulatorOptions options;

  std::int32_t link(double bytes_per_ns, double ns = 0) {
    rate.push_back(bytes_per_ns);
    latency.push_back(ns);
    return static_cast<std::int32_t>(rate.size()) - 1;
  }

  std::int32_t path(std::int32_t from, std::int32_t to, std::vector<std::int32_t> links, double ns = 0) {
    route_links.insert(route_links.end(), links.begin(), links.end());
    route_start.push_back(static_cast<std::int64_t>(route_links.size()));
    sender.push_back(from);
    receiver.push_back(to);
    overhead.push_back(ns);
    return static_cast<std::int32_t>(overhead.size()) - 1;
  }

  Message message(std::int32_t on, std::int64_t amount, std::int32_t sent = -1, std::int32_t received = -1) {
    route.push_back(on);
    bytes.push_back(amount);
    send_gate.push_back(sent);
    receive_gate.push_back(received);
    return static_cast<Message>(route.size()) - 1;
  }

  Traffic traffic() const {
    return {.route = route, .bytes = bytes, .added = added, .wave = wave, .job = job, .due = due, .send_gate = send_gate,
            .receive_gate = receive_gate, .chained = chained, .after_start = after_start, .after = after};
  }
  Fabric fabric() const {
    return {.rate = rate, .latency = latency, .burst = burst, .route_start = route_start, .route_links = route_links,
            .overhead = overhead, .sender = sender, .receiver = receiver, .num_gpus = 4,
            .send_occupancy = send_occupancy, .receive_occupancy = receive_occupancy, .group = group};
  }
  Simulation fifo() const { return simulate_fifo(traffic(), fabric(), options); }
  Simulation fair() const { return simulate_fair(traffic(), fabric(), options); }
};

using Times = std::vector<double>;

}  // namespace

TEST(simulator_gives_up) {
  World world;
  const std::int32_t there = world.path(0, 1, {world.link(1)}), far = world.path(0, 2, {world.link(1)});
  world.message(there, 10);
  world.message(far, 20);
  const double never = std::numeric_limits<double>::infinity();
  for (double ns : {19.0, 20.0}) {
    world.options.give_up = ns;
    const Times expected{10, ns < 20 ? never : 20};
    CHECK((world.fifo().done == (ns < 20 ? Times{never, never} : expected)));  // its load shows at the start
    CHECK((world.fair().done == expected));
    CHECK_EQ(world.fifo().finished, 2);
  }
}

TEST(simulator_gives_up_no_sooner_than_bursts_allow) {
  for (double burst : {0.0, 5.0}) {
    World world;
    const std::int32_t way = world.path(0, 1, {world.link(1, 5)});
    for (std::int64_t bytes : {10, 10}) world.message(way, bytes);
    world.burst = {burst};
    const double last = 25 - burst;
    world.options.give_up = last;
    CHECK_EQ(world.fifo().done.back(), last);
    world.options.give_up = last - 0.5;
    CHECK_EQ(world.fifo().done.back(), std::numeric_limits<double>::infinity());
  }
}

TEST(simulator_of_nothing) {
  World world;
  CHECK(world.fifo().done.empty());
  CHECK_EQ(world.fair().finished, 0);
}

TEST(simulator_one_message) {
  World world;
  world.message(world.path(0, 1, {world.link(4, 3), world.link(2, 5)}, 10), 64);
  CHECK((world.fifo().done == Times{10 + 8 + 32}));
  CHECK((world.fair().done == Times{10 + 8 + 32}));
  world.options.store_and_forward = true;
  CHECK((world.fifo().done == Times{10 + 8 + 16 + 32}));
}

TEST(simulator_route_without_links) {
  World world;
  world.message(world.path(0, 1, {}, 7), 64);
  CHECK((world.fifo().done == Times{7}));
  CHECK((world.fair().done == Times{7}));
}

TEST(simulator_a_link_serves_in_order_and_shares_are_equal) {
  World world;
  auto link = world.link(1);
  world.message(world.path(0, 2, {link}), 10);
  world.message(world.path(1, 2, {link}), 10);
  auto fifo = world.fifo();
  CHECK((fifo.done == Times{10, 20}));
  CHECK((fifo.hop_begin == Times{0, 10}));
  CHECK((fifo.hop_behind == std::vector<std::int32_t>{-1, 0}));
  CHECK((fifo.link_busy == Times{20}));
  CHECK((fifo.link_bytes == Times{20}));
  world.options.keep_rates = true;
  auto fair = world.fair();
  CHECK((fair.done == Times{20, 20}));
  CHECK((fair.rate == Times{0.5, 0.5}));
  CHECK((fair.limit == std::vector<std::int32_t>{0, 0}));
}

TEST(simulator_gates_chain) {
  World world;
  auto there = world.path(0, 1, {world.link(1)}), back = world.path(1, 0, {world.link(1)});
  // Gates of GPU 0: messages 0, then 1, then 2; gates of GPU 1 likewise.
  world.chained = {0, 1, 1, 0, 1, 1};
  world.message(there, 5, 0, 3);
  world.message(back, 7, 4, 1);
  world.message(there, 1, 2, 5);
  auto found = world.fifo();
  CHECK((found.start == Times{0, 5, 12}));
  CHECK((found.cause == std::vector<std::int32_t>{-1, 0, 1}));
  CHECK((world.fair().start == Times{0, 5, 12}));
}

TEST(simulator_an_empty_gate_is_open) {
  World world;
  world.chained = {0, 1, 1};
  world.message(world.path(0, 1, {world.link(1)}), 5, 2);
  CHECK((world.fifo().done == Times{5}));
}

TEST(simulator_after_and_due) {
  World world;
  auto path = world.path(0, 1, {world.link(1)});
  for (int i = 0; i < 3; ++i) world.message(path, 4);
  world.after_start = {0, 1, 1, 1};
  world.after = {1};
  world.due = {0, 2, 100};
  auto found = world.fifo();
  CHECK((found.start == Times{6, 2, 100}));
  CHECK_EQ(found.cause[0], 1);
  CHECK((world.fair().start == Times{6, 2, 100}));
}

TEST(simulator_messages_that_wait_for_each_other_never_start) {
  World world;
  auto path = world.path(0, 1, {world.link(1)});
  world.message(path, 4);
  world.message(path, 4);
  world.after_start = {0, 1, 1};
  world.after = {0};
  auto found = world.fifo();
  CHECK_EQ(found.finished, 1);
  CHECK_EQ(found.start[0], -1.0);
}

TEST(simulator_engines_serve_by_id_and_pass_over_who_lacks_the_other_one) {
  World world;
  world.options.send_engines = world.options.receive_engines = 1;
  auto wire = [&](std::int32_t a, std::int32_t b) { return world.path(a, b, {world.link(1)}); };
  world.message(wire(0, 2), 4);  // takes 0 and 2
  world.message(wire(1, 2), 4);  // lacks 2
  world.message(wire(1, 3), 6);  // overtakes
  world.message(wire(0, 3), 1);  // lacks both
  auto found = world.fifo();
  CHECK((found.start == Times{0, 6, 0, 6}));
  CHECK((found.cause == std::vector<std::int32_t>{-1, 2, -1, 2}));
  CHECK_EQ(found.reason[1], static_cast<std::int8_t>(Cause::kEngine));
}

TEST(simulator_several_engines_freed_at_once_serve_several_lines) {
  World world;
  world.options.send_engines = 2;
  world.options.receive_engines = 4;
  for (std::int32_t to : {1, 2, 3, 1}) world.message(world.path(0, to, {world.link(1)}), 4);
  CHECK((world.fifo().start == Times{0, 0, 4, 4}));
}

TEST(simulator_adding_keeps_the_receiver) {
  World world;
  world.options.send_engines = world.options.receive_engines = 1;
  world.options.add_rate = 0.5;
  world.message(world.path(0, 2, {world.link(1)}), 4);
  world.message(world.path(1, 2, {world.link(1)}), 4);
  world.added = {4, 0};
  auto found = world.fifo();
  CHECK((found.arrived == Times{4, 16}));
  CHECK((found.done == Times{12, 16}));
}

TEST(simulator_turns_go_to_the_earliest_wave_of_the_job) {
  World world;
  auto link = world.link(1);
  for (std::int32_t i = 0; i < 4; ++i) world.message(world.path(i, 0, {link}), 1);
  CHECK((world.fifo().done == Times{1, 2, 3, 4}));
  world.wave = {0, 2, 1, 0};
  CHECK((world.fifo().done == Times{1, 4, 3, 2}));
  // The second and last are one job, the third another: the second's turn goes to the last, the third keeps its own.
  world.job = {0, 0, 1, 0};
  CHECK((world.fifo().done == Times{1, 4, 3, 2}));
  world.job = {0, 0, 1, 1};
  CHECK((world.fifo().done == Times{1, 2, 4, 3}));
}

TEST(simulator_switches_copy_and_add_as_bytes_come) {
  World world;
  world.chained = {0, 1, 0, 0};
  auto in = world.path(0, -1, {world.link(1, 3)}, 10), out = world.path(-1, 1, {world.link(4, 5)});
  world.message(in, 64, 2, 0);
  world.message(out, 64, 1, 3);
  auto found = world.fifo();
  CHECK((found.start == Times{0, 13}));
  CHECK((found.arrived == Times{10 + 64 + 3, 10 + 64 + 3 + 5}));
  world.options.store_and_forward = true;
  CHECK((world.fifo().start == Times{0, 77}));
  world.options.store_and_forward = false;
  CHECK((world.fair().start == Times{0, 77}));
  // A second input that comes later and ends earlier: the sum starts with its head and ends with the other's tail.
  world.message(world.path(2, -1, {world.link(64, 1)}, 20), 64, -1, 0);
  found = world.fifo();
  CHECK_EQ(found.start[1], 21.0);
  CHECK_EQ(found.arrived[1], 10.0 + 64 + 3 + 5);
}

TEST(simulator_durations_lie_on_a_grid) {
  CHECK_EQ(on_grid(0), 0.0);
  CHECK_EQ(on_grid(1000.0 / 3) * 1048576, 349525333.0);
  double sum = 0;
  for (int i = 0; i < 3; ++i) sum += on_grid(1.0 / 3);
  CHECK_EQ(sum, 3 * on_grid(1.0 / 3));
  CHECK(on_grid(1e18) == 1e18);
}

TEST(simulator_stops_when_asked) {
  World world;
  auto path = world.path(0, 1, {world.link(1)});
  for (int i = 0; i < 100; ++i) world.message(path, 1);
  CHECK_THROWS(Cancelled, simulate_fifo(world.traffic(), world.fabric(), world.options, [] { return true; }));
  CHECK_THROWS(Cancelled, simulate_fair(world.traffic(), world.fabric(), world.options, [] { return true; }));
}

TEST(simulator_refuses_columns_that_do_not_fit) {
  World good;
  good.message(good.path(0, 1, {good.link(1)}), 4);
  CHECK((good.fifo().done == Times{4}));
  auto refuses = [&](auto&& spoil) {
    World world = good;
    spoil(world);
    CHECK_THROWS(std::invalid_argument, world.fifo());
    CHECK_THROWS(std::invalid_argument, world.fair());
  };
  refuses([](World& w) { w.route[0] = 1; });
  refuses([](World& w) { w.bytes[0] = -1; });
  refuses([](World& w) { w.bytes.push_back(0); });
  refuses([](World& w) { w.added = {1, 2}; });
  refuses([](World& w) { w.wave = {0, 1}; });
  refuses([](World& w) { w.job = {-1}; });
  refuses([](World& w) { w.due = {-1.0}; });
  refuses([](World& w) { w.due = {std::numeric_limits<double>::quiet_NaN()}; });
  refuses([](World& w) { w.send_gate[0] = 0; });
  refuses([](World& w) { w.receive_gate[0] = -2; });
  refuses([](World& w) { w.chained = {1}; });
  refuses([](World& w) { w.after = {0}; });
  refuses([](World& w) { w.after_start = {0, 1}; });
  refuses([](World& w) { w.after_start = {0, 1}, w.after = {1}; });
  refuses([](World& w) { w.rate[0] = 0; });
  refuses([](World& w) { w.latency[0] = -1; });
  refuses([](World& w) { w.latency.clear(); });
  refuses([](World& w) { w.burst = {-1}; });
  refuses([](World& w) { w.burst = {0, 0}; });
  refuses([](World& w) { w.route_links[0] = 1; });
  refuses([](World& w) { w.route_start = {0, 2}; });
  refuses([](World& w) { w.overhead[0] = -1; });
  refuses([](World& w) { w.sender[0] = 4; });
  refuses([](World& w) { w.receiver.clear(); });
  refuses([](World& w) { w.options.send_engines = -1; });
  refuses([](World& w) { w.options.add_rate = -1; });
}

TEST(simulator_workers_handle_one_message_at_a_time) {
  World world;
  const std::int32_t link = world.link(1), other = world.link(1);
  world.send_occupancy = {5, 5}, world.receive_occupancy = {2, 2}, world.group = {0, 1, 2, 3};
  world.options.workers = 1;
  world.message(world.path(0, 1, {link}), 10);
  world.message(world.path(0, 1, {other}), 10);
  // The sender's worker is busy 0..5 and 5..10; the receiver's 15..17 and 20..22.
  for (const Simulation& found : {world.fifo(), world.fair()}) {
    CHECK((found.start == Times{0, 5}));
    CHECK((found.arrived == Times{15, 20}));
    CHECK((found.done == Times{17, 22}));
    CHECK_EQ(found.cause[1], 0);
  }
  world.options.workers = 2;
  CHECK((world.fifo().done == Times{17, 17}));
  // All GPUs share one worker: sends first, then what has come.
  world.options.workers = 1, world.group = {0, 0, 0, 0};
  CHECK((world.fifo().done == Times{17, 22}));
}

TEST(simulator_workers_copy_while_bytes_leave) {
  World world;
  world.send_occupancy = {1}, world.receive_occupancy = {0}, world.group = {0, 1, 2, 3};
  world.options.workers = 1, world.options.copy_rate = 0.5;
  world.message(world.path(0, 1, {world.link(1)}), 10);
  // Copied in 1 + 20 ns, over the link at twice the rate meanwhile; then copied once more.
  CHECK((world.fifo().arrived == Times{21}));
  CHECK((world.fifo().done == Times{41}));
  CHECK((world.fair().arrived == Times{31}));
}

TEST(simulator_buffered_senders_go_on_when_a_message_has_left) {
  World world;
  const std::int32_t link = world.link(1, 3);
  world.chained = {0, 1};
  const std::int32_t route = world.path(0, 1, {link}, 100);
  world.message(route, 10, 0), world.message(route, 10, 1);
  CHECK((world.fifo().done == Times{113, 226}));
  world.options.buffered = true;
  for (const Simulation& found : {world.fifo(), world.fair()}) {
    CHECK((found.start == Times{0, 10}));
    CHECK((found.done == Times{113, 123}));
  }
}

TEST(simulator_links_let_a_burst_through_after_a_rest) {
  World world;
  const std::int32_t first = world.link(1), second = world.link(1, 3);
  world.burst = {8, 8};
  const std::int32_t near = world.path(0, 1, {first}), far = world.path(0, 2, {first, second});
  world.due = {0, 0, 10, 100, 200};
  for (const std::int64_t bytes : {5, 5, 5, 20}) world.message(near, bytes);
  world.message(far, 20);
  // The bucket of 8 ns: 5 at once, 3 of the next 5 at once. At 10 there are 8 in it again, at 100 no more than 8.
  // Both buckets on the way let the same 8 through: the path is no faster than its first link.
  const Simulation found = world.fifo();
  CHECK((found.arrived == Times{0, 2, 10, 112, 215}));
  CHECK((found.hop_begin == Times{0, 0, 10, 100, 200, 200}));
  CHECK((found.hop_end == Times{0, 2, 10, 112, 212, 212}));
  CHECK((found.link_busy == Times{26, 12}));
  world.options.store_and_forward = true;  // all of it has come when the second link begins
  CHECK_EQ(world.fifo().arrived[4], 227);
  CHECK_THROWS(std::invalid_argument, world.fair());
}
