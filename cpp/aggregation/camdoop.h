// Camdoop: servers of a torus add what they pass on, hop by hop, along trees that share no link.
//
// Source: Costa et al., "Camdoop: exploiting in-network aggregation for big data applications" (NSDI 2012); the frames
// and what repairs losses are ours, as CamCube loses packets in failures only.
//
// Every server has a hop, which is the switch of its own worker and of the hops below it, in several trees at a time:
// each (job, tree) is opened for itself, with the setting `tree`. A worker cuts its tensor into chunks and deals them out
// to `trees` trees. Links between neighbours have credit for `slots` frames each way (credit.h), so that nothing is lost
// for want of room, and every node repeats on its own links. A hop adds the chunks of its children in their order, passes
// sums up, and passes those of the root down again.
//
// *Key-value streams* (setting `pairs`=1): frames carry pairs of a key and a value, sorted by key; a hop merges the
// streams of its children and adds the values of equal keys. Keys are dealt out to the trees modulo their number.
//
// *Failures.* Whoever sees one (none of our business here) opens the job again in all hops of a new tree with a larger
// setting `life`. Hops tell workers of it, which say the first chunk that they miss; the least of them comes down from
// the root, and chunks are sent again from there, by their number. A worker sends chunk n only when it has sum n -
// window, and keeps its last chunks, twice the window, so that it can send again what others miss even when it has all
// sums itself. A worker keeps the sums that it has: of floats, sums of chunks under way during a failure may differ in
// their last bits between workers. Jobs of pairs are not repaired: their workers fail.
//
// Types of frames: 1 values, 2 sums, 3 acknowledgement (number: the first that is missing; extra: before which number
// there is room), 4 the tree was rebuilt, 5 hello (number: the first chunk missing), 6 start (number: the first chunk).
// The lane is the tree, and the first word of every frame its life. Of pairs `extra` is 1 in the last frame of a tensor.
// Settings: `tree` (0), `trees` (1), `life` (0), `pairs` (0), `first` (0): number of the first chunk; `most` (2^20):
// pairs that the output has room for besides the first, which is their number and 0.
#pragma once

#include <map>

#include "aggregation/credit.h"

namespace coppice::aggregation {

class CamdoopHop final : public Aggregator {
 public:
  // A hop whose links have credit for so many frames, of all jobs and trees together.
  explicit CamdoopHop(int frames) : free_frames_(frames) {}

  void open(const Job& job, std::span<const Endpoint> children, Endpoint parent) override;
  // All trees of the job.
  void close(std::uint32_t job) override;
  std::int64_t slots_in_use() const override;
  std::vector<int> waits_for(std::uint32_t job) const override;
  void receive(Endpoint from, Bytes packet, Time now, Outbox& out) override;
  Time deadline() const override;
  void wake(Time now, Outbox& out) override;
  std::unique_ptr<Node> clone() const override { return std::make_unique<CamdoopHop>(*this); }
  void save(Time now, std::vector<std::uint8_t>& state) const override;

 private:
  struct Lane {
    Job job;
    std::uint8_t tree = 0;
    std::uint32_t life = 0;
    bool pairs = false;
    Children children;
    Endpoint parent = kNobody;
    bool started = false;
    std::uint32_t first = 0;           // the least that somebody misses; where it starts
    std::vector<std::uint8_t> heard;   // of each child, before the start
    std::vector<CreditReceiver> from;  // each child
    CreditReceiver from_parent;
    FrameRing up, down;                // frames under way
    std::uint32_t up_next = 0, down_next = 0;
    CreditSender to_parent;
    std::vector<CreditSender> to;  // each child
    std::vector<std::size_t> cursor;   // of pairs: word of the child's first frame
    std::vector<std::uint8_t> ended;   // the child's tensor
    std::vector<Word> sum;             // of pairs: what is merged so far
    std::size_t filled = 0;
    Time timer = 0;
    FrameBuffer frame;
    std::vector<Word> words;

    bool root() const { return parent == kNobody; }
    bool all_heard() const { return std::find(heard.begin(), heard.end(), 0) == heard.end(); }
    bool any_heard() const { return std::find(heard.begin(), heard.end(), 1) != heard.end(); }
  };

  static std::uint64_t key(std::uint32_t job, std::uint8_t tree) { return std::uint64_t{job} << 8 | tree; }
  static bool busy(const Lane& lane);
  static std::uint32_t oldest(const Lane& lane);
  void hello(Lane& lane, std::size_t child, std::uint32_t number, Outbox& out);
  void start(Lane& lane, std::uint32_t number, Outbox& out);
  void proceed(Lane& lane, Outbox& out, const CreditReceiver* but);
  bool room(const Lane& lane) const;
  void emit(Lane& lane, std::uint32_t extra, std::span<const Word> words);
  bool add(Lane& lane);
  bool merge(Lane& lane);
  void put(Lane& lane, std::uint8_t type, std::uint32_t number, std::uint32_t extra, std::span<const Word> words, Endpoint to,
           Outbox& out);
  void acknowledge(Lane& lane, CreditReceiver& receiver, Endpoint to, Outbox& out);

  int free_frames_;
  std::map<std::uint64_t, Lane> lanes_;
};

class CamdoopWorker final : public Worker {
 public:
  CamdoopWorker(const Job& job, int index, Endpoint above);

  // Of pairs, `input` are `count` pairs of 32-bit words by ascending keys, each key once, and `output` other memory.
  void begin(const void* input, void* output, std::size_t count, Time now, Outbox& out) override;
  bool done() const override;
  void receive(Endpoint from, Bytes packet, Time now, Outbox& out) override;
  Time deadline() const override;
  void wake(Time now, Outbox& out) override;
  std::unique_ptr<Node> clone() const override { return std::make_unique<CamdoopWorker>(*this); }
  void save(Time now, std::vector<std::uint8_t>& state) const override;

 private:
  struct Lane {
    std::uint32_t life = 0;
    bool started = false;
    std::uint32_t begin = 0, base = 0, end = 0;  // chunks of the tensor; the first without its sum
    std::uint32_t made = 0;                      // next chunk to be cut from the tensor
    FrameRing chunks;                            // the last ones
    CreditSender to;
    CreditReceiver from;
    Time timer = 0;
    std::size_t next_pair = 0;      // of the input
    std::vector<Word> merged;       // pairs that came
  };

  bool cut(std::size_t tree);
  void take(std::size_t tree);
  void proceed(std::size_t tree, Outbox& out);
  void put(std::size_t tree, std::uint8_t type, std::uint32_t number, std::uint32_t extra, std::span<const Word> words,
           Outbox& out);
  void gather();
  bool waits(const Lane& lane) const;

  Job job_;
  Endpoint above_;
  bool pairs_;
  std::vector<Lane> lanes_;
  const Word* input_ = nullptr;
  Word* output_ = nullptr;
  std::size_t count_ = 0;
  Time progress_ = 0;
  std::vector<Word> words_;
  FrameBuffer frame_;
};

}  // namespace coppice::aggregation
