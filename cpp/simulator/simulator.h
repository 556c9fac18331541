// Event simulation of messages on a network: when does each start, arrive and count as received?
//
// Model. A *message* takes a *route* of links from one node to another. It starts when what it depends on is there and
// an engine is free at either end, pays its route's overhead, and then crosses the links one after the other.
//
// Dependencies. *Gates* are groups of messages. A message is a member of one gate on the sender's side and one on the
// receiver's; a gate is passed on the sender's side when the message has arrived, on the receiver's when it is done
// (arrived and, where it is added to something, added). A gate opens once all its members have passed. Gates form
// chains: members of gate g wait for gate g - 1 where chained[g]. A step of a rank is a gate; so is a run of sends of
// one piece of data, or of additions to it. In that way N messages need 2 N memberships however many depend on how
// many. Further dependencies (`after`) name messages that must be done.
//
// Engines. A GPU sends and receives a limited number of messages at a time, or any number. A message takes an engine at
// both ends at once, from its start until it has arrived (sender) and is done (receiver). Messages that wait for an
// engine start in the order of their ids; one whose other engine is busy does not hold up later ones.
//
// Workers. What handles messages on a GPU or a processor (a block of threads, a core) is a worker: it takes the *occupancy*
// of the route and the bytes at the copy rate for each message, one message at a time (o of LogGP; Alexandrov, Ionescu,
// Schauser and Scheiman, "LogGP", SPAA 1995). GPUs of one group share so many workers. A message waits for a worker of its
// sender, in the order in which messages become ready, and starts when it has one; its head leaves after the
// occupancy, its last byte not before the worker has copied it (shared fairly: both then). When it has arrived it waits
// for a worker of its receiver in the same line, and is done when that one has handled and added it.
//
// Buffered sends. Where sends are buffered, a message passes its sender's gate, and frees its sender's engine, as soon as
// its last byte has left the sender; its overhead is then time in flight, behind its last link instead of before the
// first one.
//
// Links, first in first out. A link serves one message at a time, in the order in which their heads come (ties: by id),
// each for bytes / rate; where *waves* are given, the turn of a message that waits goes to the one of the earliest wave
// of its job. Cut-through: the head goes on a latency after it began; the last byte goes on when the link has served
// all of it, and not before it has come:
//
//     begin = max(head, link free),     link free = begin + bytes / rate,     head' = begin + latency,
//     tail' = max(tail, link free) + latency.
//
// So a fast link behind a slow one is not held longer than for its own share: it is booked when the head comes, though
// the bytes may come later, as packets between those of others. Store and forward: head' = tail'. A message has arrived
// with the tail of its last link.
//
// Bursts. What limits a rate by a bucket of tokens, as shapers do, lets so many bytes through at once after a rest. With
// the *burst* of a link, the time in which its bucket fills, the link has served a message at
//
//     link free = max(begin, spent'),     spent' = max(begin - burst, spent) + bytes / rate,
//
// where spent begins at -burst: the bucket is full at first. Every link of a path has a bucket of its own, so that a burst
// passes cut-through links in a row once, and not once for each.
//
// A message may end at a switch that copies or adds (receiver -1). With cut-through what waits for its gate there
// starts when the heads of all members have come, and its last byte goes on after theirs.
//
// Links, shared fairly. Messages of one route go one after the other, like the bytes of a connection; the first of each
// route moves over all its links at once, at the max-min fair rate among all that are under way (fair_share.h). A
// message has arrived its links' latencies after its last byte has left.
//
// Numbers. Times are doubles in nanoseconds. Every duration is rounded to a multiple of 2^-20 ns, so that sums are
// exact in any order while times stay below 2^33 ns (8.6 s): what is simultaneous on paper is simultaneous here, and
// ties are decided by ids and not by rounding.
//
// Giving up. A link with first in, first out that has served a message has served all others of its load no sooner than
// after `spent + load`, whatever they wait for. Where that is later than the time to give up, nothing further happens.
//
// Cost: an event is taken from a heap for each hop of a message and for its start, arrival and end; with first in,
// first out that is all, O((messages + hops) log messages). Fair sharing also settles anew, whenever a route gets busy
// or idle, the rates of all routes that are connected with it over links. Overflow: there must be less than 2^31
// messages, of at most 2^62 bytes, which is checked before the start (simulator.cc); times are doubles and lose the
// grid above 8.6 s.
#pragma once

#include <cstdint>
#include <limits>
#include <span>
#include <vector>

#include "core/stop.h"

namespace coppice {

using Message = std::int32_t;

/// A duration in nanoseconds as a multiple of 2^-20 ns (coarser beyond 2^31 ns).
inline double on_grid(double ns) {
  constexpr double kShift = 3.0 * (std::int64_t{1} << 31);  // 1.5 * 2^32: its unit in the last place is 2^-20
  return (ns + kShift) - kShift;
}

/// Messages in the order in which ties are decided.
struct Traffic {
  std::span<const std::int32_t> route;         // route of each message
  std::span<const std::int64_t> bytes;         // what it carries, >= 0
  std::span<const std::int64_t> added;         // bytes of it that the receiver adds to others; empty: none at all
  std::span<const std::int32_t> wave;          // piece of its job that it belongs to; empty: waves do not count
  std::span<const std::int32_t> job;           // job of each message, where waves count, >= 0; empty: one job
  std::span<const double> due;                 // ns before which it does not start; empty: 0
  std::span<const std::int32_t> send_gate;     // gate that it passes on arrival, or -1
  std::span<const std::int32_t> receive_gate;  // gate that it passes when done, or -1
  std::span<const std::uint8_t> chained;       // per gate: its members wait for the gate before
  std::span<const std::int64_t> after_start;   // message m waits for after[after_start[m] .. after_start[m + 1]);
  std::span<const std::int32_t> after;         //   both empty: for none

  std::size_t size() const { return route.size(); }
};

/// Links, and the routes over them.
struct Fabric {
  std::span<const double> rate;                  // bytes per ns of each link, > 0
  std::span<const double> latency;               // ns of each link, >= 0
  std::span<const double> burst;                 // ns in which a link's bucket fills, >= 0 (first in first out); empty: 0
  std::span<const std::int64_t> route_start;     // links of route r: route_links[route_start[r] .. route_start[r + 1])
  std::span<const std::int32_t> route_links;
  std::span<const double> overhead;              // ns per message of each route, >= 0
  std::span<const std::int32_t> sender;          // GPU whose engine sends on each route, or -1
  std::span<const std::int32_t> receiver;        // GPU whose engine receives, or -1
  std::int32_t num_gpus = 0;
  std::span<const double> send_occupancy;        // ns of a worker of the sender for each message of a route; empty: 0
  std::span<const double> receive_occupancy;     // likewise of the receiver
  std::span<const std::int32_t> group;           // per GPU: whose workers it shares, >= 0; empty: workers do not count

  std::size_t num_links() const { return rate.size(); }
  std::size_t num_routes() const { return overhead.size(); }
  std::span<const std::int32_t> links(std::int32_t route) const {
    return route_links.subspan(static_cast<std::size_t>(route_start[route]),
                               static_cast<std::size_t>(route_start[route + 1] - route_start[route]));
  }
};

struct SimulatorOptions {
  bool store_and_forward = false;
  std::int32_t send_engines = 0;     // messages that a GPU sends at a time; 0: any number
  std::int32_t receive_engines = 0;  // likewise
  double add_rate = 0;               // bytes per ns that a GPU adds; 0: adding takes no time
  bool buffered = false;             // a sender goes on when a message has left it, not when it has arrived
  std::int32_t workers = 0;          // of each group of GPUs, where there are groups
  double copy_rate = 0;              // bytes per ns that a worker copies; 0: copying takes no time
  bool keep_hops = true;             // record every hop of every message
  bool keep_rates = false;           // fair sharing: record every rate that a message gets
  double give_up = std::numeric_limits<double>::infinity();  // ns; where not all can be done by then, what is not yet is at infinity
};

/// Why a message started when it did, and not before.
enum class Cause : std::int8_t {
  kNone = 0,        // it could start at once, or when it was due
  kDependency = 1,  // the message `cause` was the last that it waited for
  kEngine = 2,      // the message `cause` freed the engine, or the worker, that it took
};

struct Simulation {
  std::vector<double> start;              // per message; negative: it never started
  std::vector<double> arrived;
  std::vector<double> done;
  std::vector<std::int32_t> cause;        // message that it waited for last, or -1
  std::vector<std::int8_t> reason;        // a Cause
  std::vector<double> hop_begin;          // per hop, message by message, where kept: begin on the link
  std::vector<double> hop_end;            // likewise the end there, where links have bursts
  std::vector<std::int32_t> hop_behind;   // message that it queued behind on that link, or -1
                                          // (fair sharing: one hop per message, its whole route)
  std::vector<std::int32_t> limit;        // fair sharing, per message: link that decided its last rate, or -1
  std::vector<Message> rate_message;      // fair sharing, where kept, in order of time: rate_message[i] moves at rate[i]
  std::vector<double> rate_since;         //   from rate_since[i] on
  std::vector<double> rate;
  std::vector<double> link_busy;          // ns per link
  std::vector<double> link_bytes;         // per link
  std::int64_t finished = 0;              // messages that are done; fewer than all: the rest wait for each other
};

/// Runs all messages over first-in-first-out links.
/// Throws std::invalid_argument where columns do not fit together, Cancelled where `stop` says so.
Simulation simulate_fifo(const Traffic& traffic, const Fabric& fabric, const SimulatorOptions& options,
                         const StopFlag& stop = {});

/// Runs all messages over links that are shared at max-min fair rates; switches cut through.
/// Throws as simulate_fifo does.
Simulation simulate_fair(const Traffic& traffic, const Fabric& fabric, const SimulatorOptions& options,
                         const StopFlag& stop = {});

/// The result before anything has happened, once the columns are found to fit together.
/// Throws std::invalid_argument where they do not.
Simulation empty_simulation(const Traffic& traffic, const Fabric& fabric, const SimulatorOptions& options);

}  // namespace coppice
