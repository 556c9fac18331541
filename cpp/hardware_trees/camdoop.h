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
// setting `life`, its epoch. Hops tell workers of it, which say the first chunk that they miss; the least of them comes
// down from the root, and chunks are sent again from there, by their number. A worker sends chunk n only when it has sum n -
// window, and keeps its last chunks, twice the window, so that it can send again what others miss even when it has all
// sums itself. A worker keeps the sums that it has: of floats, sums of chunks under way during a failure may differ in
// their last bits between workers. Jobs of pairs are not repaired: their workers fail.
//
// Types of frames: 1 values, 2 sums, 3 acknowledgement (number: the first that is missing; extra: before which number
// there is room), 4 the tree was rebuilt, 5 hello (number: the first chunk missing), 6 start (number: the first chunk).
// The first word of every frame is the epoch of its tree. Of pairs `extra` is 1 in the last frame of a tensor.
// Settings: `tree` (0), `trees` (1), `life` (0), `pairs` (0), `first` (0): number of the first chunk; `most` (2^20):
// pairs that the output has room for besides the first, which is their number and 0.
#pragma once

#include "hardware_trees/credit.h"

namespace coppice::aggregation {

class CamdoopHop final : public Aggregator {
 public:
  // A hop whose links have credit for so many frames, of all jobs and trees together.
  explicit CamdoopHop(int frames) : trees_(frames, "frames of credit") {}

  void open(const Job& job, std::span<const Endpoint> children, Endpoint parent) override;
  // All trees of the job.
  void close(std::uint32_t job) override;
  std::int64_t slots_in_use() const override;
  std::vector<int> waits_for(std::uint32_t job) const override;
  void receive(Endpoint from, Bytes packet, Time now, Outbox& out) override;
  Time deadline() const override;
  void wake(Time now, Outbox& out) override;
  std::unique_ptr<Node> clone() const override { return std::make_unique<CamdoopHop>(*this); }
  void save(Time now, StateWriter& state) const override;

 private:
  struct Tree : ServedJob {
    Job job;
    std::uint8_t number = 0;
    std::uint32_t epoch = 0;
    bool pairs = false;
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

    bool root() const { return parties.root(); }
    bool all_heard() const { return std::find(heard.begin(), heard.end(), 0) == heard.end(); }
    bool any_heard() const { return std::find(heard.begin(), heard.end(), 1) != heard.end(); }
  };

  static std::uint64_t key(std::uint32_t job, std::uint8_t tree) { return std::uint64_t{job} << 8 | tree; }
  static bool busy(const Tree& tree);
  // Tells children of which nothing is heard that the tree was rebuilt.
  void tell_unheard(Tree& tree, Outbox& out);
  static std::uint32_t oldest(const Tree& tree);
  void hello(Tree& tree, std::size_t child, std::uint32_t number, Outbox& out);
  void start(Tree& tree, std::uint32_t number, Outbox& out);
  void proceed(Tree& tree, Outbox& out, const CreditReceiver* but);
  bool room(const Tree& tree) const;
  void emit(Tree& tree, std::uint32_t extra, std::span<const Word> words);
  bool add(Tree& tree);
  bool merge(Tree& tree);
  void put(Tree& tree, std::uint8_t type, std::uint32_t number, std::uint32_t extra, std::span<const Word> words, Endpoint to,
           Outbox& out);
  void acknowledge(Tree& tree, CreditReceiver& receiver, Endpoint to, Outbox& out);

  JobTable<Tree, std::uint64_t> trees_;
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
  void save(Time now, StateWriter& state) const override;

 private:
  struct Tree {
    std::uint32_t epoch = 0;
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

  bool cut(std::size_t which);
  void take(std::size_t which);
  void proceed(std::size_t which, Outbox& out);
  void put(std::size_t which, std::uint8_t type, std::uint32_t number, std::uint32_t extra, std::span<const Word> words,
           Outbox& out);
  void gather();
  bool waits(const Tree& tree) const;

  Job job_;
  Endpoint above_;
  bool pairs_;
  std::vector<Tree> trees_;
  const Word* input_ = nullptr;
  Word* output_ = nullptr;
  std::size_t count_ = 0;
  Time progress_ = 0;
  std::vector<Word> words_;
  FrameBuffer frame_;
};

}  // namespace coppice::aggregation
