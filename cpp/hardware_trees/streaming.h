// Streaming aggregation (AllReduce-Switch): frames wait in a first-in-first-out queue for each port, and once all
// queues have one, the heads are added on their way to all ports.
//
// Source: the idea of Liu et al., "Scalable fully pipelined hardware architecture for in-network aggregated AllReduce
// communication" (IEEE TCAS-I 2021), whose switch works on a lossless Ethernet; the frames, and what makes it safe where
// packets are lost, are ours. Memory is queue depth x ports, and a window of results, whatever the message's size.
//
// Frames of a port are taken in sequence only: number n is accepted once n - 1 was. Floats are added in the order of the
// ports, so the sum does not depend on the order of arrival. A queue that has no more room than its headroom pauses its
// sender, as priority flow control does; one that is half empty again resumes it. A pause ends by itself after the
// job's time-out, so a lost packet holds up nobody for ever. Frames that come when the queue is full are dropped, which
// does not happen where the headroom holds what a paused sender still has on its way; the first of them is named missing
// when the sender is resumed.
//
// Loss: a worker that misses a result sends its frame again; the switch keeps the results of a window to answer
// from. A gap in the sequence is answered by the number that is missing, once. Nothing is added twice: frames before the
// next one in sequence only ever repeat what is known. A worker sends frame n only when it has result n - window, so that
// nobody asks for a result that is not kept any more.
//
// Trees: a switch with a parent is a worker to it, without timers of its own: what workers send again goes up again.
//
// Types of frames: 1 values, 2 their sum, 3 pause, 4 resume, 5 missing. `slots` of a job is the depth of a queue.
// Settings: `headroom` (0): frames of each queue that are still taken after its pause was sent. `first` (0): number of
// the first frame.
#pragma once

#include "hardware_trees/window.h"

namespace coppice::aggregation {

class StreamingSwitch final : public Aggregator {
 public:
  // A switch whose queues hold so many frames in all jobs together, on each port.
  explicit StreamingSwitch(int depth) : jobs_(depth, "frames of a queue") {}

  void open(const Job& job, std::span<const Endpoint> children, Endpoint parent) override;
  void close(std::uint32_t job) override;
  std::int64_t slots_in_use() const override;
  void receive(Endpoint from, Bytes packet, Time now, Outbox& out) override;
  std::unique_ptr<Node> clone() const override { return std::make_unique<StreamingSwitch>(*this); }
  void save(Time now, StateWriter& state) const override;

  std::vector<int> waits_for(std::uint32_t job) const override;

  // Bytes of values that the switch keeps for a job.
  std::int64_t memory(std::uint32_t job) const;
  // Frames in the fullest queue of a job since it was opened.
  int most_queued(std::uint32_t job) const { return jobs_.at(job).most_queued; }

 private:
  enum Kept : std::uint8_t { nothing, partial, result };
  struct Port {
    std::uint32_t next = 0;  // number in sequence
    bool told = false;       // that this number is missing
    bool paused = false;
    bool overflowed = false;  // since it was paused
  };
  struct Service : ServedJob {
    Job job;
    int headroom = 0;
    std::vector<Port> ports;
    std::vector<Word> queues;           // [port][number modulo depth()][value]
    std::uint32_t added = 0;            // number of the next sum
    std::vector<Kept> kept;             // [number modulo its length]: what the last sums are
    std::vector<Word> sums;             // [the same][value]
    Time parent_paused_until = 0;
    int most_queued = 0;
    FrameBuffer frame;

    std::size_t values() const { return static_cast<std::size_t>(job.values); }
    // Rings are as long as a power of two, so that numbers may wrap around.
    std::size_t depth() const { return std::bit_ceil(static_cast<std::size_t>(job.slots)); }
    std::size_t at(std::size_t port, std::uint32_t number) const {
      return (port * depth() + number % depth()) * values();
    }
    std::size_t place(std::uint32_t number) const { return number % kept.size(); }
    std::span<Word> sum(std::uint32_t number) { return {sums.data() + place(number) * values(), values()}; }
    int queued(std::size_t port) const { return after(ports[port].next, added); }
  };

  void from_child(Service& service, std::size_t child, const FrameHead& head, Bytes packet, Time now, Outbox& out);
  void again(Service& service, std::size_t child, std::uint32_t number, Time now, Outbox& out);
  void from_parent(Service& service, const FrameHead& head, Bytes packet, Time now, Outbox& out);
  void add(Service& service, Time now, Outbox& out);
  void send(Service& service, std::uint8_t type, std::uint32_t number, std::span<const Endpoint> to, Outbox& out);

  JobTable<Service> jobs_;
};

class StreamingWorker final : public WindowWorker {
 public:
  StreamingWorker(const Job& job, int index, Endpoint above);

  void begin(const void* input, void* output, std::size_t count, Time now, Outbox& out) override;
  void receive(Endpoint from, Bytes packet, Time now, Outbox& out) override;
  std::unique_ptr<Node> clone() const override { return std::make_unique<StreamingWorker>(*this); }

 private:
  void write(std::uint32_t number, Outbox& out) override;

  const Word* input_ = nullptr;
  Word* output_ = nullptr;
  std::size_t count_ = 0;
  std::vector<Word> words_;
  FrameBuffer frame_;
};

}  // namespace coppice::aggregation
