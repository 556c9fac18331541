#include "collnet/communicator.h"

#include <arpa/inet.h>

#include <chrono>
#include <cstring>
#include <thread>

#include "collnet/elements.h"
#include "testing/testing.h"
#include "udp/server.h"

using namespace coppice::collnet;

namespace {

/// Nodes of this process, joined over the loopback interface.
std::vector<std::unique_ptr<Communicator>> joined(const Forest& forest) {
  Interface loopback;
  auto* address = reinterpret_cast<sockaddr_in*>(&loopback.address.bytes);
  address->sin_family = AF_INET;
  address->sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  std::vector<std::vector<char>> handles(static_cast<std::size_t>(forest.nodes), std::vector<char>(kHandleBytes));
  std::vector<void*> pointers;
  std::vector<std::unique_ptr<Listener>> listeners;
  for (auto& handle : handles) {
    listeners.push_back(listen_on(loopback, handle.data()));
    pointers.push_back(handle.data());
  }
  std::vector<std::unique_ptr<Communicator>> made(handles.size());
  std::vector<std::thread> threads;
  for (int node = 0; node < forest.nodes; node++)
    threads.emplace_back([&, node] {
      auto edges = join_forest(forest, node, pointers.data(), *listeners[node], 60);
      made[node] = std::make_unique<Communicator>(forest, node, std::move(edges));
    });
  for (auto& thread : threads) thread.join();
  return made;
}

Call all_reduce(std::vector<int>& data) {
  Call call;
  call.type = kInt32;
  call.reduction = kSum;
  call.element = 4;
  call.bytes = data.size() * 4;
  call.send = call.receive = {{data.data(), call.bytes}};
  return call;
}

void wait(Communicator& communicator, Request* request) {
  std::size_t bytes = 0;
  while (!communicator.finished(request, &bytes)) std::this_thread::yield();
}

}  // namespace

TEST(communicator_sums_with_several_calls_in_flight) {
  constexpr int kNodes = 4, kCalls = 5;
  auto nodes = joined(balanced_forest(kNodes));
  std::vector<std::vector<std::vector<int>>> data(kNodes);
  std::vector<std::vector<Request*>> requests(kNodes);
  for (int node = 0; node < kNodes; node++)
    for (int call = 0; call < kCalls; call++) data[node].emplace_back(call == 2 ? 200000 : 1000 * call + 1, node + call);
  for (int node = kNodes - 1; node >= 0; node--)
    for (auto& each : data[node]) requests[node].push_back(nodes[node]->start(all_reduce(each)));
  for (int node = 0; node < kNodes; node++)
    for (int call = 0; call < kCalls; call++) {
      wait(*nodes[node], requests[node][call]);
      CHECK_EQ(data[node][call].front(), 6 + 4 * call);
      CHECK_EQ(data[node][call].back(), 6 + 4 * call);
    }
}

TEST(communicator_tells_the_others_when_a_node_goes) {
  auto nodes = joined(balanced_forest(3));
  std::vector<int> a(100000, 1), b(100000, 1);
  Request* first = nodes[0]->start(all_reduce(a));
  Request* second = nodes[1]->start(all_reduce(b));
  nodes[2].reset();
  for (auto [node, request] : {std::pair{0, first}, std::pair{1, second}}) {
    int result = kSuccess;
    try {
      wait(*nodes[node], request);
    } catch (const Failure& failure) {
      result = failure.result;
    }
    CHECK_EQ(result, static_cast<int>(kRemoteError));
    CHECK_THROWS(Failure, nodes[node]->start(all_reduce(a)));
  }
}

TEST(communicator_of_one_node_copies) {
  auto nodes = joined(balanced_forest(1));
  std::vector<int> from{1, 2, 3}, to(3);
  Call call = all_reduce(from);
  call.receive = {{to.data(), 12}};
  wait(*nodes[0], nodes[0]->start(call));
  CHECK_EQ(to[2], 3);
}

TEST(communicator_sums_floats_by_a_switch_beside_the_trees) {
  constexpr int kNodes = 3, kCalls = 6;
  coppice::udp::ServerSettings settings;
  settings.gate.protocol = "switchml";
  settings.gate.slots = 64;
  coppice::udp::Server server(settings);
  auto nodes = joined(balanced_forest(kNodes));
  std::vector<std::thread> threads;
  for (int node = 0; node < kNodes; node++)
    threads.emplace_back([&, node] {
      auto end = std::make_unique<Switched>(SwitchPlace{"127.0.0.1", server.address().port, {}}, node, kNodes, 7);
      end->join(60);
      CHECK(nodes[node]->all_agree(true));
      CHECK(!nodes[node]->all_agree(node == 1));
      nodes[node]->use(std::move(end));
      std::vector<std::vector<float>> floats;
      std::vector<std::vector<int>> integers;
      std::vector<Request*> requests;
      for (int call = 0; call < kCalls; call++) {
        floats.emplace_back(5000 * call + 1, static_cast<float>(node + call));
        integers.emplace_back(1000, node);
      }
      for (int call = 0; call < kCalls; call++) {
        Call sum = all_reduce(integers[call]);
        requests.push_back(nodes[node]->start(sum));
        sum.type = kFloat32;
        sum.bytes = floats[call].size() * 4;
        sum.send = sum.receive = {{floats[call].data(), sum.bytes}};
        requests.push_back(nodes[node]->start(sum));
      }
      for (Request* request : requests) wait(*nodes[node], request);
      for (int call = 0; call < kCalls; call++) {
        CHECK_EQ(floats[call].back(), static_cast<float>(3 + 3 * call));
        CHECK_EQ(integers[call].back(), 3);
      }
      nodes[node].reset();
    });
  for (auto& thread : threads) thread.join();
  CHECK(server.report().gate[coppice::aggregation::Count::received] > 0);
}
