#include "stream_trees/combine.h"

#include <bit>

#include "aggregation/bytes.h"

namespace coppice::aggregation {

namespace {

constexpr std::uint32_t kNan = 0x7fc00000u;

bool is_nan(std::uint32_t bits) { return (bits & 0x7fffffffu) > 0x7f800000u; }

// Numbers in their order: signed integers compare as the floats do, -0 below +0.
std::int32_t ordered(std::uint32_t bits) {
  return static_cast<std::int32_t>(bits ^ ((bits >> 31) != 0 ? 0x7fffffffu : 0u));
}

struct SumInt {
  std::uint32_t operator()(std::uint32_t a, std::uint32_t b) const { return a + b; }
};
struct MinimumInt {
  std::uint32_t operator()(std::uint32_t a, std::uint32_t b) const {
    return static_cast<std::int32_t>(b) < static_cast<std::int32_t>(a) ? b : a;
  }
};
struct MaximumInt {
  std::uint32_t operator()(std::uint32_t a, std::uint32_t b) const {
    return static_cast<std::int32_t>(b) > static_cast<std::int32_t>(a) ? b : a;
  }
};
struct SumFloat {
  std::uint32_t operator()(std::uint32_t a, std::uint32_t b) const {
    return std::bit_cast<std::uint32_t>(std::bit_cast<float>(a) + std::bit_cast<float>(b));
  }
};
struct MinimumFloat {
  std::uint32_t operator()(std::uint32_t a, std::uint32_t b) const {
    return is_nan(a) || is_nan(b) ? kNan : ordered(b) < ordered(a) ? b : a;
  }
};
struct MaximumFloat {
  std::uint32_t operator()(std::uint32_t a, std::uint32_t b) const {
    return is_nan(a) || is_nan(b) ? kNan : ordered(b) > ordered(a) ? b : a;
  }
};

template <class Run>
void choose(Operation operation, Element element, Run run) {
  const bool whole = element == Element::int32;
  switch (operation) {
    case Operation::sum: return whole ? run(SumInt{}) : run(SumFloat{});
    case Operation::minimum: return whole ? run(MinimumInt{}) : run(MinimumFloat{});
    case Operation::maximum: return whole ? run(MaximumInt{}) : run(MaximumFloat{});
  }
}

}  // namespace

void combine_arrived(Operation operation, Element element, std::uint32_t* kept, const std::uint8_t* arrived,
                     std::size_t count) {
  choose(operation, element, [&](auto apply) {
    for (std::size_t at = 0; at < count; ++at) kept[at] = apply(kept[at], load<std::uint32_t>(arrived + 4 * at));
  });
}

void combine_kept(Operation operation, Element element, std::uint32_t* kept, const std::uint32_t* other,
                  std::size_t count) {
  choose(operation, element, [&](auto apply) {
    for (std::size_t at = 0; at < count; ++at) kept[at] = apply(kept[at], other[at]);
  });
}

void keep(std::uint32_t* kept, const std::uint8_t* arrived, std::size_t count) {
  for (std::size_t at = 0; at < count; ++at) kept[at] = load<std::uint32_t>(arrived + 4 * at);
}

void put(std::uint8_t* packet, const std::uint32_t* kept, std::size_t count) {
  for (std::size_t at = 0; at < count; ++at) store(packet + 4 * at, kept[at]);
}

}  // namespace coppice::aggregation
