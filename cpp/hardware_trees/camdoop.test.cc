#include "hardware_trees/camdoop.h"

#include <map>

#include "packet_network/exploration.h"
#include "testing/frames.h"
#include "testing/testing.h"

using namespace coppice::aggregation;
using namespace coppice::testing;

namespace {

std::unique_ptr<Aggregator> a_hop(int slots) { return std::make_unique<CamdoopHop>(slots); }
std::unique_ptr<Worker> a_worker(const Job& job, int index, Endpoint above) {
  return std::make_unique<CamdoopWorker>(job, index, above);
}

template <class T>
void whole_jobs(std::uint64_t seed) {
  std::mt19937_64 random(seed);
  const Job job = drawn_job<T>(random);
  check_sums<T>(seed, random, job, 8000, a_hop, a_worker);
}

// The hops of a torus, each with its worker: hop v is endpoint v, its worker endpoint v + size.
class Torus {
 public:
  Torus(LossyNetwork& network, const Job& job, std::vector<int> dims) : job_(job), dims_(std::move(dims)) {
    size_ = 1;
    for (int each : dims_) size_ *= each;
    job_.settings["trees"] = static_cast<double>(2 * dims_.size());
    for (int v = 0; v < size_; ++v) {
      hops.push_back(std::make_unique<CamdoopHop>(job_.slots * static_cast<int>(trees())));
      network.add(*hops.back());
    }
    for (int v = 0; v < size_; ++v) {
      Job own = job_;
      own.workers = size_;
      workers.push_back(std::make_unique<CamdoopWorker>(own, v, v));
      endpoints.push_back(network.add(*workers.back()));
    }
    for (std::size_t tree = 0; tree < trees(); ++tree) open(tree, parents(tree), 0);
  }
  std::size_t trees() const { return 2 * dims_.size(); }
  int size() const { return size_; }

  // The next hop of every node to node 0, -1 for node 0: planners/algorithms/trees/camdoop.py says why.
  std::vector<int> parents(std::size_t tree) const {
    const int axes = static_cast<int>(dims_.size()), own = static_cast<int>(tree) % axes;
    const int sign = static_cast<int>(tree) < axes ? 1 : -1;
    std::vector<int> found(static_cast<std::size_t>(size_), -1);
    for (int v = 1; v < size_; ++v) {
      std::vector<int> at(dims_.size());
      int rest = v, zeros = 0;
      for (std::size_t axis = 0; axis < dims_.size(); ++axis) {
        at[axis] = rest % dims_[axis];
        rest /= dims_[axis];
        zeros += at[axis] == 0;
      }
      const int before = (own + axes - 1) % axes;
      int axis = own;
      if (zeros == 1 && at[static_cast<std::size_t>(own)] == 0) axis = (own + 1) % axes;
      if (zeros == 1 && at[static_cast<std::size_t>(before)] == 0) axis = before;
      if (zeros == 2) axis = before;
      const auto moved = static_cast<std::size_t>(axis);
      at[moved] = (at[moved] + sign + dims_[moved]) % dims_[moved];
      int to = 0;
      for (std::size_t i = dims_.size(); i-- > 0;) to = to * dims_[i] + at[i];
      found[static_cast<std::size_t>(v)] = to;
    }
    return found;
  }
  void open(std::size_t tree, const std::vector<int>& parents, int life) {
    for (int v = 0; v < size_; ++v) {
      std::vector<Endpoint> children{v + size_};
      for (int u = 0; u < size_; ++u) {
        if (parents[static_cast<std::size_t>(u)] == v) children.push_back(u);
      }
      Job own = job_;
      own.workers = static_cast<int>(children.size());
      own.settings["tree"] = static_cast<double>(tree);
      own.settings["life"] = life;
      hops[static_cast<std::size_t>(v)]->open(own, children, parents[static_cast<std::size_t>(v)]);
    }
  }

  std::vector<std::unique_ptr<CamdoopHop>> hops;
  std::vector<std::unique_ptr<Worker>> workers;
  std::vector<Endpoint> endpoints;

 private:
  Job job_;
  std::vector<int> dims_;
  int size_;
};

}  // namespace

TEST(camdoop_sums_are_exact_whatever_is_lost_doubled_or_late) {
  for (std::uint64_t seed = 0; seed < 100; ++seed) {
    whole_jobs<std::int32_t>(seed);
    whole_jobs<float>(seed + 1000);
  }
}

TEST(camdoop_on_a_torus_takes_all_links_of_the_root_in_equal_parts) {
  for (const std::vector<int>& dims : {std::vector<int>{3, 3, 3}, {4, 3}, {5}}) {
    LossyNetwork network(1);
    Torus torus(network, job_of(0, 4, 2, 8), dims);
    std::map<std::pair<Endpoint, Endpoint>, int> carried;
    network.tap = [&](Endpoint from, Endpoint to, Bytes packet) {
      if (from < torus.size() && to < torus.size() && packet[0] == 1) ++carried[{from, to}];
    };
    Tensors<std::int32_t> tensors(torus.workers.size(), 1);
    const std::size_t chunks = 5;  // in each tree
    tensors.start(network, torus.workers, torus.endpoints, 2 * chunks * torus.trees());
    CHECK(network.run([&] { return all_done(torus.workers); }));
    CHECK(tensors.right());
    // Up: every link but those out of the root carries what one tree has, x/d, once.
    CHECK_EQ(carried.size(), torus.trees() * static_cast<std::size_t>(torus.size() - 1));
    for (const auto& [_, times] : carried) CHECK_EQ(static_cast<std::size_t>(times), chunks);
  }
}

TEST(camdoop_survives_the_failure_of_a_link) {
  for (std::uint64_t seed = 0; seed < 30; ++seed) {
    std::mt19937_64 random(seed);
    LossyNetwork network(seed, drawn_faults(random, 8000));
    Torus torus(network, job_of(0, 1 + static_cast<int>(random() % 4), 2, 1 + static_cast<int>(random() % 6)), {3, 3});
    Tensors<std::int32_t> tensors(torus.workers.size(), seed);
    tensors.start(network, torus.workers, torus.endpoints, 300);
    // After some time a link breaks; after some more, every tree that used it is rebuilt without it.
    int events = static_cast<int>(random() % 3000);
    network.run([&] { return events-- == 0; });
    const int a = 1 + static_cast<int>(random() % 8), b = torus.parents(0)[static_cast<std::size_t>(a)];
    network.cut(a, b);
    events = static_cast<int>(random() % 1000);
    network.run([&] { return events-- == 0; });
    for (std::size_t tree = 0; tree < torus.trees(); ++tree) {
      std::vector<int> parents = torus.parents(tree);
      const bool up = parents[static_cast<std::size_t>(a)] == b, down = parents[static_cast<std::size_t>(b)] == a;
      if (!up && !down) continue;
      // The cut-off branch hangs on the first neighbour outside it.
      const int top = up ? a : b, other = up ? b : a;
      const auto below = [&](int v) {
        while (v > 0 && v != top) v = parents[static_cast<std::size_t>(v)];
        return v == top;
      };
      for (int v = 0; v < 9; ++v) {
        const bool beside = v != other && (v / 3 == top / 3 || v % 3 == top % 3);
        if (!beside || below(v)) continue;
        parents[static_cast<std::size_t>(top)] = v;
        break;
      }
      if (parents[static_cast<std::size_t>(top)] == other) {
        // No neighbour outside: the branch is turned round, and hangs on by its first node that has one.
        for (int v = 1; v < 9 && parents[static_cast<std::size_t>(top)] == other; ++v) {
          if (!below(v)) continue;
          for (int u = 0; u < 9; ++u) {
            if (u == v || below(u) || !(u / 3 == v / 3 || u % 3 == v % 3) || (v == top && u == other)) continue;
            int next = u;
            for (int w = v; w != other;) {
              const int after_w = parents[static_cast<std::size_t>(w)];
              parents[static_cast<std::size_t>(w)] = next;
              next = w;
              w = after_w;
            }
            break;
          }
        }
      }
      torus.open(tree, parents, 1);
    }
    CHECK(network.run([&] { return all_done(torus.workers); }));
    CHECK(tensors.right());
    tensors.start(network, torus.workers, torus.endpoints, 100);
    CHECK(network.run([&] { return all_done(torus.workers); }));
    CHECK(tensors.right());
  }
}

TEST(camdoop_merges_sorted_pairs) {
  for (std::uint64_t seed = 0; seed < 100; ++seed) {
    std::mt19937_64 random(seed);
    const bool on_torus = seed % 3 == 0;
    const int count = on_torus ? 9 : 1 + static_cast<int>(random() % 12);
    Job job = job_of(count, 1 + static_cast<int>(random() % 5), 1 + static_cast<int>(random() % 5), 2);
    job.settings["pairs"] = 1;
    LossyNetwork network(seed, drawn_faults(random, 8000));
    std::unique_ptr<Torus> torus;
    std::unique_ptr<SwitchedJob> tree;
    if (on_torus) {
      torus = std::make_unique<Torus>(network, job, std::vector<int>{3, 3});
    } else {
      tree = std::make_unique<SwitchedJob>(network, job, a_hop, a_worker, random() % 2 ? 3 : 0);
    }
    auto& workers = on_torus ? torus->workers : tree->workers;
    auto& endpoints = on_torus ? torus->endpoints : tree->endpoints;
    for (int round = 0; round < 2; ++round) {
      std::map<Word, Word> expected;
      std::vector<std::vector<Word>> inputs(workers.size()), outputs(workers.size(), std::vector<Word>(2000, 77));
      for (auto& input : inputs) {
        std::map<Word, Word> own;
        for (std::size_t n = random() % 30; n > 0; --n) own[static_cast<Word>(random() % 60) + (random() % 9 ? 0 : 0xffffff00)] = static_cast<Word>(random());
        for (const auto& [key, value] : own) {
          input.insert(input.end(), {key, value});
          expected[key] += value;
        }
      }
      for (std::size_t w = 0; w < workers.size(); ++w) {
        network.act(endpoints[w], [&](Time now, Outbox& out) {
          workers[w]->begin(inputs[w].data(), outputs[w].data(), inputs[w].size() / 2, now, out);
        });
      }
      CHECK(network.run([&] { return all_done(workers); }));
      std::vector<Word> wanted{static_cast<Word>(expected.size()), 0};
      for (const auto& [key, value] : expected) wanted.insert(wanted.end(), {key, value});
      for (const auto& output : outputs) CHECK(std::equal(wanted.begin(), wanted.end(), output.begin()));
    }
  }
}

TEST(camdoop_hop_gives_credit_as_it_uses_frames) {
  CamdoopHop hop(2);
  const std::vector<Endpoint> children{0, 1};
  hop.open(job_of(2, 2, 1, 8), children, kNobody);
  Sent sent;
  hop.receive(0, frame(1, 0, {0, 5}), 0, sent);  // before the start
  CHECK_EQ(hop.counters()[Count::future], 1U);
  CHECK(sent.all.empty());
  hop.receive(0, frame(5, 4, {0}), 0, sent);
  hop.receive(1, frame(5, 3, {0}), 0, sent);
  CHECK(sent.all == (std::vector<std::pair<Endpoint, std::vector<std::uint8_t>>>{{0, frame(6, 3, {0})}, {1, frame(6, 3, {0})}}));
  sent.all.clear();
  for (Word n = 3; n < 6; ++n) hop.receive(0, frame(1, n, {0, n}), 0, sent);
  // Two are kept, the third is refused, and the credit stays where it was: before number 5.
  CHECK_EQ(hop.counters()[Count::over_quota], 1U);
  CHECK(sent.all.back() == std::pair(Endpoint{0}, frame(3, 5, {0}, 5)));
  sent.all.clear();
  hop.receive(1, frame(1, 3, {0, 10}), 0, sent);
  CHECK(sent.all == (std::vector<std::pair<Endpoint, std::vector<std::uint8_t>>>{
                        {0, frame(2, 3, {0, 13})}, {0, frame(3, 5, {0}, 6)}, {1, frame(2, 3, {0, 13})}, {1, frame(3, 4, {0}, 6)}}));
  CHECK_EQ(hop.slots_in_use(), 1);
}

TEST(camdoop_drops_what_is_not_its_own) {
  CamdoopHop hop(4);
  const std::vector<Endpoint> children{0, 1};
  Job job = job_of(2, 2, 2, 2);
  job.settings["life"] = 3;
  hop.open(job, children, kNobody);
  CHECK_THROWS(std::invalid_argument, hop.open(job, children, kNobody));
  Job wide = job_of(2, 3, 2, 2);
  wide.id = 8;
  CHECK_THROWS(std::invalid_argument, hop.open(wide, children, kNobody));
  Sent sent;
  hop.receive(0, frame(5, 0, {3}), 0, sent);
  hop.receive(1, frame(5, 0, {3}), 0, sent);
  sent.all.clear();
  std::vector<std::uint8_t> before, later;
  before = state_of(hop, 0);
  const std::vector<std::uint8_t> good = frame(1, 0, {3, 1, 2});
  for (std::size_t length = 0; length < good.size(); ++length) hop.receive(0, Bytes(good.data(), length), 0, sent);
  hop.receive(0, frame(2, 0, {3, 1, 2}), 0, sent);
  hop.receive(0, frame(9, 0, {3}), 0, sent);
  hop.receive(0, frame(1, 0, {3, 1}), 0, sent);
  hop.receive(0, frame(1, 0, {3, 1, 2}, 1), 0, sent);
  CHECK_EQ(hop.counters()[Count::malformed], good.size() + 4);
  hop.receive(5, good, 0, sent);
  hop.receive(0, frame(1, 0, {3, 1, 2}, 0, 9), 0, sent);
  CHECK_EQ(hop.counters()[Count::unknown_sender], 2U);
  hop.receive(0, frame(1, 0, {4, 1, 2}), 0, sent);  // a later life
  CHECK(sent.all.empty());
  hop.receive(0, frame(1, 0, {2, 1, 2}), 0, sent);  // an earlier one
  CHECK(sent.all == (std::vector<std::pair<Endpoint, std::vector<std::uint8_t>>>{{0, frame(4, 0, {3})}}));
  CHECK_EQ(hop.counters()[Count::bad_epoch], 2U);
  later = state_of(hop, 0);
  CHECK(before == later);
  hop.close(7);
  hop.open(wide, children, kNobody);
}

TEST(camdoop_is_right_in_the_first_interleavings) {
  Search search;
  search.job = job_of(2, 1, 1, 1);
  search.groups = {2};
  search.tensors = {2};
  search.most_states = 3000;
  const Finding finding = explore(protocol("camdoop"), search);
  CHECK_EQ(finding.fault, "");
}
