#include "collnet/switched.h"

#include <cstdlib>
#include <fstream>
#include <sstream>
#include <vector>

#include "aggregation/switchml.h"
#include "collnet/communicator.h"
#include "collnet/elements.h"
#include "collnet/signals.h"
#include "udp/client.h"

namespace coppice::collnet {

namespace {

constexpr const char* kSwitchVariable = "COPPICE_COLLNET_SWITCH";
constexpr const char* kSecretVariable = "COPPICE_SWITCH_SECRET";
constexpr aggregation::Time kSecond = 1'000'000'000;
constexpr aggregation::Time kForEver = 10'000'000 * kSecond;  // a node may be late; the switch says which one is gone
constexpr int kSlots = 64, kValues = 256;

std::unique_ptr<aggregation::Worker> make_worker(const aggregation::Job& job, int index, aggregation::Endpoint above) {
  return std::make_unique<aggregation::SwitchMlWorker>(job, index, above);
}

bool is_half(int type) { return type == kFloat16 || type == kBfloat16; }

}  // namespace

std::optional<SwitchPlace> given_switch() {
  const char* text = std::getenv(kSwitchVariable);
  if (!text || !*text) return std::nullopt;
  const std::string words = text;
  const std::size_t colon = words.rfind(':');
  SwitchPlace place;
  char* end = nullptr;
  const long port = colon == std::string::npos ? 0 : std::strtol(words.c_str() + colon + 1, &end, 10);
  if (port < 1 || port > 65535 || *end || colon == 0)
    throw Failure(kInvalidArgument, std::string("expected ") + kSwitchVariable + "=HOST:PORT, found " + words.substr(0, 80));
  place.host = words.substr(0, colon);
  place.port = static_cast<int>(port);
  const char* path = std::getenv(kSecretVariable);
  if (!path || !*path) return place;
  std::ifstream file(path);
  std::ostringstream content;
  if (!file || !(content << file.rdbuf()))
    throw Failure(kInvalidArgument, std::string(kSecretVariable) + ": " + path + " cannot be read");
  const std::string secret = content.str();
  const char* const blank = " \t\r\n\v\f";
  const std::size_t first = secret.find_first_not_of(blank);
  if (first == std::string::npos) throw Failure(kInvalidArgument, std::string(kSecretVariable) + ": " + path + " is empty");
  place.secret = secret.substr(first, secret.find_last_not_of(blank) + 1 - first);
  return place;
}

Switched::Switched(const SwitchPlace& place, int node, int nodes, std::uint64_t cookie) {
  udp::ClientSettings settings;
  settings.make_worker = make_worker;
  settings.host = place.host;
  settings.port = place.port;
  settings.index = settings.connection.worker = node;
  settings.connection.secret = place.secret;
  settings.connection.join.protocol = "switchml";
  settings.connection.join.members = nodes;
  aggregation::Job& job = settings.connection.join.job;
  job.id = static_cast<std::uint32_t>(cookie);
  job.workers = nodes;
  job.slots = job.window = kSlots;
  job.values = kValues;
  job.element = aggregation::Element::float32;
  job.give_up_timeout = kForEver;
  client_ = std::make_unique<udp::Client>(std::move(settings));
}

Switched::~Switched() = default;

bool Switched::takes(const Call& call) {
  return call.kind == Kind::kAllReduce && call.reduction == kSum && (call.type == kFloat32 || is_half(call.type));
}

void Switched::join(int seconds) {
  const NoSignals none;
  client_->join(seconds * kSecond, {});
}

void Switched::all_reduce(const Call& call, const StopFlag& stop) {
  const void* const given = call.send[0].iov_base;
  void* const wanted = call.receive[0].iov_base;
  const std::size_t count = call.bytes / call.element;
  if (!is_half(call.type)) {
    client_->all_reduce(given, wanted, count, kForEver, stop);
    return;
  }
  std::vector<float> wide(count);
  const auto* from = static_cast<const std::uint16_t*>(given);
  auto* to = static_cast<std::uint16_t*>(wanted);
  const bool brain = call.type == kBfloat16;
  for (std::size_t at = 0; at < count; at++) wide[at] = brain ? from_bfloat(from[at]) : from_half(from[at]);
  client_->all_reduce(wide.data(), wide.data(), count, kForEver, stop);
  for (std::size_t at = 0; at < count; at++) to[at] = brain ? to_bfloat(wide[at]) : to_half(wide[at]);
}

void Switched::leave(const std::string& why) { client_->close(why); }

}  // namespace coppice::collnet
