#include "udp/join.h"

#include <cmath>
#include <stdexcept>

namespace coppice::udp {

std::string Address::text() const {
  std::string words;
  for (int shift = 24; shift >= 0; shift -= 8) words += std::to_string(host >> shift & 0xFF) + (shift ? "." : ":");
  return words + std::to_string(port);
}

std::vector<std::uint8_t> encoded(const Join& join) {
  const aggregation::Job& job = join.job;
  Writer text;
  text.put(join.nonce).put(join.cookie).put(join.protocol);
  text.put(static_cast<std::uint16_t>(job.workers)).put(static_cast<std::uint16_t>(join.member_count()));
  text.put(static_cast<std::uint16_t>(join.threads));
  text.put(static_cast<std::uint16_t>(join.thread)).put(static_cast<std::uint8_t>(job.element));
  text.put(static_cast<std::uint32_t>(job.slots)).put(static_cast<std::uint32_t>(job.values));
  text.put(static_cast<std::uint32_t>(job.window));
  text.put(static_cast<std::uint64_t>(job.timeout)).put(static_cast<std::uint64_t>(job.give_up_timeout));
  text.put(static_cast<std::uint16_t>(job.settings.size()));
  for (const auto& [name, value] : job.settings) text.put(name).put(value);
  if (text.bytes.size() > kAsking) {
    throw std::invalid_argument("expected settings of a job that fit into " + std::to_string(kAsking) +
                                " bytes, found " + std::to_string(text.bytes.size()));
  }
  text.bytes.resize(kAsking);
  return text.bytes;
}

std::optional<Join> decoded(Bytes body, std::uint32_t job) {
  if (body.size() != kAsking) return std::nullopt;
  Reader text(body);
  Join join;
  join.nonce = text.take<std::uint64_t>();
  join.cookie = text.take<std::uint64_t>();
  join.protocol = text.take_text(32);
  join.job.id = job;
  join.job.workers = text.take<std::uint16_t>();
  join.members = text.take<std::uint16_t>();
  join.threads = text.take<std::uint16_t>();
  join.thread = text.take<std::uint16_t>();
  const std::uint8_t element = text.take<std::uint8_t>();
  const std::uint32_t slots = text.take<std::uint32_t>(), values = text.take<std::uint32_t>();
  const std::uint32_t window = text.take<std::uint32_t>();
  const std::uint64_t timeout = text.take<std::uint64_t>(), give_up_timeout = text.take<std::uint64_t>();
  const int settings = text.take<std::uint16_t>();
  for (int number = 0; number < settings && !text.broken; ++number) {
    const std::string name = text.take_text(64);
    const double value = text.take_double();
    if (!std::isfinite(value)) return std::nullopt;
    join.job.settings[name] = value;
  }
  constexpr std::uint64_t kLongest = 1'000'000'000ull * 86400 * 365;
  if (text.broken || !text.at_padding() || element > 1 || timeout == 0 || timeout > kLongest || give_up_timeout > kLongest) {
    return std::nullopt;
  }
  if (slots > 1 << 24 || values > 1 << 20 || window > 1 << 24) return std::nullopt;
  if (join.members == 0 || join.members > join.job.workers) return std::nullopt;
  if (slots == 0 || values == 0 || window == 0 || join.job.workers == 0 || join.threads == 0 || join.thread >= join.threads) {
    return std::nullopt;
  }
  join.job.element = static_cast<aggregation::Element>(element);
  join.job.slots = static_cast<int>(slots);
  join.job.values = static_cast<int>(values);
  join.job.window = static_cast<int>(window);
  join.job.timeout = static_cast<Time>(timeout);
  join.job.give_up_timeout = static_cast<Time>(give_up_timeout);
  return join;
}

std::string difference(const Join& first, const Join& second) {
  const aggregation::Job &one = first.job, &two = second.job;
  const auto said = [](const char* what, auto here, auto there) {
    return "expected " + std::to_string(here) + " " + what + " as the workers before it, found " + std::to_string(there);
  };
  if (first.protocol != second.protocol) return "expected " + first.protocol + ", found " + second.protocol;
  if (one.workers != two.workers) return said("workers", one.workers, two.workers);
  if (first.member_count() != second.member_count()) return said("workers at this switch", first.member_count(), second.member_count());
  if (one.slots != two.slots) return said("slots", one.slots, two.slots);
  if (one.values != two.values) return said("values", one.values, two.values);
  if (one.window != two.window) return said("packets of a window", one.window, two.window);
  if (first.threads != second.threads) return said("threads", first.threads, second.threads);
  if (one.element != two.element) return "expected one type of element on all workers, found two";
  if (one.settings != two.settings) return "expected the same settings of the protocol on all workers, found others";
  return {};
}

}  // namespace coppice::udp
