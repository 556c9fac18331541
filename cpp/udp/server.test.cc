#include "udp/server.h"

#include <cstdio>
#include <numeric>
#include <stdexcept>
#include <thread>

#include "aggregation/protocols.h"
#include "testing/testing.h"
#include "udp/client.h"

namespace coppice::udp {
namespace {

ServerSettings server_settings(int threads = 1) {
  ServerSettings settings;
  settings.gate.protocol = "switchml";
  settings.gate.slots = 64 * threads;
  settings.threads = threads;
  return settings;
}

ClientSettings client_settings(const Server& server, int worker, int workers, int threads = 1) {
  ClientSettings settings;
  settings.make_worker = aggregation::protocol("switchml").make_worker;
  settings.port = server.address().port;
  settings.threads = threads;
  settings.connection.worker = settings.index = worker;
  settings.connection.join.protocol = "switchml";
  aggregation::Job& job = settings.connection.join.job;
  job.id = 1;
  job.workers = workers;
  job.slots = job.window = 16;
  job.values = 64;
  job.timeout = 5 * kMillisecond;
  return settings;
}

// Sums of several tensors by workers that are threads; the number of wrong elements.
int wrong_elements(const ServerSettings& settings, int workers, std::size_t count, int threads = 1) {
  Server server(settings);
  std::atomic<int> wrong{0};
  std::vector<std::thread> running;
  for (int worker = 0; worker < workers; ++worker) {
    running.emplace_back([&, worker] {
      try {
        Client client(client_settings(server, worker, workers, threads));
        client.join(60 * kSecond, {});
        for (int tensor = 0; tensor < 4; ++tensor) {
          std::vector<std::int32_t> data(count + static_cast<std::size_t>(tensor));
          std::iota(data.begin(), data.end(), worker + tensor);
          client.all_reduce(data.data(), data.data(), data.size(), 60 * kSecond, {});
          for (std::size_t at = 0; at < data.size(); ++at) {
            const int sum = workers * (static_cast<int>(at) + tensor) + workers * (workers - 1) / 2;
            if (data[at] != sum) ++wrong;
          }
        }
      } catch (const std::exception& error) {
        std::printf("worker %d: %s\n", worker, error.what());
        ++wrong;
      }
    });
  }
  for (std::thread& each : running) each.join();
  return wrong;
}

TEST(udp_sums_of_two_workers) { CHECK_EQ(wrong_elements(server_settings(), 2, 5000), 0); }

TEST(udp_sums_over_several_threads) { CHECK_EQ(wrong_elements(server_settings(3), 3, 5000, 3), 0); }

TEST(udp_sums_of_one_worker_and_of_little) { CHECK_EQ(wrong_elements(server_settings(), 1, 1), 0); }

TEST(udp_sums_under_loss_duplicates_and_reordering) {
  for (const std::uint64_t seed : {1u, 2u}) {
    ServerSettings settings = server_settings();
    settings.faults = {0.05, 0.05, 0.05, seed, 0};
    CHECK_EQ(wrong_elements(settings, 3, 5000), 0);
  }
}

TEST(udp_ports_that_are_taken_and_addresses_that_are_none) {
  Server server(server_settings());
  ServerSettings again = server_settings();
  again.port = server.address().port;
  CHECK_THROWS(std::runtime_error, Server(again));
  again.host = "no such host";
  CHECK_THROWS(std::invalid_argument, Server(again));
}

TEST(udp_a_worker_that_finds_no_switch) {
  ClientSettings settings;
  {
    Server server(server_settings());
    settings = client_settings(server, 0, 2);
  }
  settings.connection.silence = kSecond / 5;
  Client client(settings);
  std::string words;
  try {
    client.join(10 * kSecond, {});
  } catch (const Failed& error) {
    words = error.what();
  }
  CHECK(words.find("nothing listens at 127.0.0.1:") == 0);
}

}  // namespace
}  // namespace coppice::udp
