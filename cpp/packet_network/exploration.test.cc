#include "packet_network/exploration.h"

#include <cstdio>
#include <stdexcept>

#include "aggregation/state.h"
#include "aggregation/switchml.h"
#include "aggregation/values.h"
#include "testing/testing.h"

using namespace coppice::aggregation;

namespace {

Search search_of(int workers, int slots, std::vector<std::int64_t> tensors) {
  Search search;
  search.job.workers = workers;
  search.job.slots = search.job.window = slots;
  search.job.values = 1;
  search.job.settings["doubled_after"] = 0;
  search.groups = {workers};
  search.tensors = std::move(tensors);
  return search;
}

// A slot without the second set: the sum is forgotten once it is sent.
class OneSetSwitch final : public Aggregator {
 public:
  void open(const Job& job, std::span<const Endpoint> children, Endpoint) override {
    slots_.resize(static_cast<std::size_t>(job.slots));
    children_.assign(children.begin(), children.end());
  }
  void close(std::uint32_t) override {}
  std::int64_t slots_in_use() const override { return 0; }
  void receive(Endpoint from, Bytes packet, Time, Outbox& out) override {
    Slot& slot = slots_[static_cast<std::size_t>(SwitchMlPacket::read(packet.data()).slot)];
    if ((slot.seen >> from & 1) != 0) return;
    slot.seen |= 1u << from;
    std::int32_t value;
    load_values(packet.data() + SwitchMlPacket::kHead, &value, 1);
    slot.sum += value;
    if (slot.seen != (1u << children_.size()) - 1) return;
    std::vector<std::uint8_t> reply(packet.begin(), packet.end());
    store_values(&slot.sum, reply.data() + SwitchMlPacket::kHead, 1);
    slot = {};
    out.send(children_, reply);
  }
  std::unique_ptr<Node> clone() const override { return std::make_unique<OneSetSwitch>(*this); }
  void save(Time, StateWriter& state) const override {
    for (const Slot& slot : slots_) state << slot.seen << slot.sum;
  }

 private:
  struct Slot {
    std::uint32_t seen = 0;
    std::int32_t sum = 0;
  };
  std::vector<Slot> slots_;
  std::vector<Endpoint> children_;
};

std::string told(const Finding& finding) {
  std::string text = finding.fault + "\n";
  for (const std::string& line : finding.trace) text += "  " + line + "\n";
  return text;
}

}  // namespace

TEST(every_interleaving_of_switchml_sums_and_ends) {
  struct Case {
    int workers, slots;
    std::vector<std::int64_t> tensors;
    int losses, duplicates, early;
  };
  for (const Case& c : {Case{1, 1, {2, 1}, 1, 1, 1}, Case{2, 1, {3}, 1, 1, 1}, Case{2, 1, {1, 2}, 2, 1, 0},
                        Case{2, 2, {3}, 1, 0, 0}, Case{3, 1, {2}, 1, 0, 0}}) {
    Search search = search_of(c.workers, c.slots, c.tensors);
    search.losses = c.losses, search.duplicates = c.duplicates, search.early_timeouts = c.early;
    const Finding finding = explore(protocol("switchml"), search);
    if (!finding.fault.empty()) std::printf("%s", told(finding).c_str());
    CHECK_EQ(finding.fault, "");
    CHECK(finding.whole && finding.states > 10 && finding.trace.empty());
  }
}

TEST(every_interleaving_of_a_tree_sums_and_ends) {
  Search search = search_of(2, 1, {2});
  search.groups = {1, 1};
  search.duplicates = search.early_timeouts = 0;
  const Finding finding = explore(protocol("switchml"), search);
  CHECK_EQ(finding.fault, "");
  CHECK(finding.whole);
}

TEST(exploration_finds_what_the_published_rule_takes_for_new) {
  Search search = search_of(2, 1, {3});
  search.job.settings["published_rule"] = 1;
  search.losses = 0;
  search.early_timeouts = 0;
  Finding finding = explore(protocol("switchml"), search);
  CHECK(finding.fault.find("wrong sum") != std::string::npos);
  // The shortest: a copy of a first packet is left behind until its set is used again.
  CHECK(finding.trace.size() <= 12);
  CHECK(told(finding).find("and a copy stays under way") != std::string::npos);
  search.reordering = false;  // in order, the published rule is right
  finding = explore(protocol("switchml"), search);
  CHECK_EQ(finding.fault, "");
  CHECK(finding.whole);
}

TEST(exploration_finds_what_one_set_cannot_do) {
  const Protocol broken{"one set", +[](int) -> std::unique_ptr<Aggregator> { return std::make_unique<OneSetSwitch>(); },
                        protocol("switchml").make_worker, nullptr, SwitchMlPacket::describe};
  Search search = search_of(2, 1, {2});
  search.duplicates = search.early_timeouts = 0;
  Finding finding = explore(broken, search);
  CHECK(!finding.fault.empty());
  CHECK(told(finding).find("lost") != std::string::npos);
  search.losses = 0;
  finding = explore(broken, search);  // nothing is lost: nothing is wrong
  CHECK_EQ(finding.fault, "");
}

TEST(exploration_that_is_cut_short_says_so) {
  Search search = search_of(2, 1, {3});
  search.most_states = 200;
  Finding finding = explore(protocol("switchml"), search);
  CHECK(!finding.whole && finding.fault.empty());
  CHECK(finding.states >= 200 && finding.states < 400);
  search.most_states = 1'000'000;
  search.most_events = 4;
  finding = explore(protocol("switchml"), search);
  CHECK(!finding.whole && finding.fault.empty());
  CHECK_EQ(finding.depth, 4);
  search.groups = {1};
  CHECK_THROWS(std::invalid_argument, explore(protocol("switchml"), search));
}
