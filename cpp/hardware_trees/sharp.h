// SHARP: aggregation trees of switches, for groups of ranks that have reserved buffers in them.
//
// Source: Graham et al., "Scalable hierarchical aggregation protocol (SHARP)" (COM-HPC 2016) and the public descriptions
// of its second and third versions, by idea: the real protocol is closed and runs on lossless InfiniBand. The frames,
// their numbers and their repetition where packets are lost are ours.
//
// *Groups.* A job is a group. Opening it reserves slots for its window at every switch of its tree, of two buffers each,
// and is refused where a switch has too few left, so that the caller falls back to something else. No packet is ever
// turned away for want of memory.
//
// *Two ways.* A message of at most `low_latency` bytes goes at once. A larger one is streamed, for which the group takes
// the tree first: its root lets `streams` groups of the same tree stream at a time (one in the second version, several in
// the third), and the others wait in their order. The request for the tree is a frame in the group's sequence like any
// other, so it is added up and repeated as values are; the tree is free again with the last of the message's sums.
//
// *Order.* Contributions are kept by child and added in the order of the children once all are there, so a sum has the
// same bits whatever the order of arrival.
//
// *Loss.* Frames are numbered on from message to message, and frame n uses the buffer n modulo their number, which is
// twice the window or more. A buffer takes its own number and the one that follows it there, which opens it anew: a worker sends
// frame n only when it has the sum n - window, so all others have sent that frame, and none of them asks for a sum
// before n - 2 window any more. A frame sent again is answered by the sum, or passed up again where it has not come back.
//
// Types of frames: 1 values, 2 their sum, 3 request for the tree, 4 grant. `extra` is 1 for values of a stream, and the
// number of frames that are to follow for a request. float16 and bfloat16 travel as two bytes a value and are added in
// float32; each switch rounds its sum once.
// Settings: `operation` (0): sum, 1 minimum, 2 maximum. `half` (0): float32 as it is, 1 float16, 2 bfloat16 on the way.
// `low_latency` (4096): bytes of the largest message that is not streamed. `tree` (0): which tree of its root the group
// uses. `streams` (1): groups that stream in that tree at a time; 0: larger messages are refused. `first` (0): number of
// the first frame.
#pragma once

#include <deque>
#include <map>

#include "hardware_trees/window.h"

namespace coppice::aggregation {

// How values are added and how they travel.
class SharpValues {
 public:
  SharpValues() = default;
  explicit SharpValues(const Job& job);
  // Words of a frame.
  std::size_t words() const { return half_ == 0 ? values_ : (values_ + 1) / 2; }
  std::size_t values() const { return values_; }
  std::size_t bytes(std::size_t count) const { return half_ == 0 ? 4 * count : 2 * count; }
  // From and to words on the way; `count` values, the rest zeros.
  void pack(const Word* values, std::size_t count, Word* words) const;
  void unpack(const Word* words, Word* values, std::size_t count) const;
  // One contribution after the other: `sum` = `sum` op `words`, in values of 32 bits.
  void combine(Word* sum, const Word* more) const;

 private:
  std::size_t values_ = 0;
  Element element_ = Element::int32;
  int operation_ = 0, half_ = 0;
};

class SharpSwitch final : public Aggregator {
 public:
  explicit SharpSwitch(int slots) : groups_(slots, "slots (else fall back)") {}

  void open(const Job& job, std::span<const Endpoint> children, Endpoint parent) override;
  void close(std::uint32_t job) override;
  std::int64_t slots_in_use() const override;
  void receive(Endpoint from, Bytes packet, Time now, Outbox& out) override;
  std::unique_ptr<Node> clone() const override { return std::make_unique<SharpSwitch>(*this); }
  void save(Time now, StateWriter& state) const override;

  std::vector<int> waits_for(std::uint32_t job) const override;

  std::int64_t free_slots() const { return groups_.free(); }
  // Whether the job has its tree now.
  bool streams(std::uint32_t job) const { return groups_.at(job).streams; }

 private:
  enum Stage : std::uint8_t { unused, open_, waits, passed_up, summed };
  struct Buffer {
    std::uint32_t number = 0;
    std::uint32_t extra = 0;
    std::uint8_t type = 0;
    Stage stage = unused;
    int missing = 0;
  };
  struct Group : ServedJob {
    Job job;
    int tree = 0, most_streams = 1;
    SharpValues values;
    std::vector<Buffer> buffers;
    std::vector<std::uint8_t> seen;  // [buffer][child]
    std::vector<Word> given;         // [buffer][child][word]
    std::vector<Word> sums;          // [buffer][word]
    std::vector<Word> sum, more;     // of 32 bits a value
    bool streams = false;
    std::uint32_t to_stream = 0;  // sums until the tree is free again
    FrameBuffer frame;

    std::size_t place(std::uint32_t number) const { return number % buffers.size(); }
    Word* given_by(std::size_t place, std::size_t child) {
      return given.data() + (place * parties.size() + child) * values.words();
    }
  };

  void from_child(Group& group, std::size_t child, const FrameHead& head, Bytes packet, Outbox& out);
  void from_parent(Group& group, const FrameHead& head, Bytes packet, Outbox& out);
  void complete(Group& group, std::size_t place, Outbox& out);
  void finish(Group& group, std::size_t place, Outbox& out);
  bool take_tree(Group& group, const Buffer& request);
  void leave_tree(Group& group);
  void serve_tree(int number, Outbox& out);
  void send(Group& group, std::size_t place, bool down, std::span<const Endpoint> to, Outbox& out);

  JobTable<Group> groups_;
  struct Tree {
    int streaming = 0;
    std::deque<std::uint32_t> waiting;  // jobs, in their order
  };
  std::map<int, Tree> trees_;
};

class SharpWorker final : public WindowWorker {
 public:
  SharpWorker(const Job& job, int index, Endpoint above);

  // Throws std::invalid_argument for a message above `low_latency` where the tree does not stream, too.
  void begin(const void* input, void* output, std::size_t count, Time now, Outbox& out) override;
  void receive(Endpoint from, Bytes packet, Time now, Outbox& out) override;
  std::unique_ptr<Node> clone() const override { return std::make_unique<SharpWorker>(*this); }

 private:
  void write(std::uint32_t number, Outbox& out) override;
  bool allowed(std::uint32_t number) const override { return !streams_ || number == first_ || base_ != first_; }

  SharpValues values_;
  const Word* input_ = nullptr;
  Word* output_ = nullptr;
  std::size_t count_ = 0;
  bool streams_ = false;  // the first frame asks for the tree
  std::vector<Word> words_;
  FrameBuffer frame_;
};

}  // namespace coppice::aggregation
