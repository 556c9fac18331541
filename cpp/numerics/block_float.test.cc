#include "numerics/block_float.h"

#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <vector>

#include "testing/testing.h"

using namespace coppice::numerics;

namespace {

constexpr float kLargest = std::numeric_limits<float>::max();
constexpr float kSmallest = std::numeric_limits<float>::denorm_min();

int exponent_of(float value) { return block_exponent(&value, 1); }

std::int32_t quantised(float value, int exponent, int workers) {
  std::int32_t q = 0;
  quantise(&value, &q, 1, exponent, workers);
  return q;
}

float read(std::int32_t sum, int exponent, int workers) {
  float value = 0;
  dequantise(&sum, &value, 1, exponent, workers);
  return value;
}

}  // namespace

TEST(exponent_of_a_block_is_above_its_values) {
  CHECK_EQ(exponent_of(1.0f), 1);
  CHECK_EQ(exponent_of(-0.99f), 0);
  CHECK_EQ(exponent_of(0.0f), kLeastExponent);
  CHECK_EQ(exponent_of(kSmallest), kLeastExponent);
  CHECK_EQ(exponent_of(std::numeric_limits<float>::min()), -125);
  CHECK_EQ(exponent_of(0x1p126f), 127);
  CHECK_EQ(exponent_of(kLargest), 127);
  CHECK_EQ(block_exponent(nullptr, 0), kLeastExponent);
  std::vector<float> block(257, 0.5f);
  block[256] = -40;
  CHECK_EQ(block_exponent(block.data(), 256), 0);
  CHECK_EQ(block_exponent(block.data(), 257), 6);
}

TEST(values_that_are_not_finite_have_no_exponent) {
  for (float bad : {std::numeric_limits<float>::infinity(), -std::numeric_limits<float>::infinity(), std::nanf("")}) {
    std::vector<float> block(65, 1.0f);
    block[64] = bad;
    CHECK_EQ(block_exponent(block.data(), 65), kNotFinite);
    CHECK_EQ(block_exponent(block.data(), 64), 1);
  }
}

TEST(sums_of_the_largest_values_do_not_wrap) {
  for (int workers : {1, 2, 3, 4, 7, 8, 32, 33, 255, 256, 257, 1000, 4097, 65536, 2147483647}) {
    for (float value : {kLargest, 0x1p127f, 1.0f, 0x1.fffffep0f, 0x1p-126f, 0x1.fffffep-127f}) {
      const int exponent = exponent_of(value);
      const std::int64_t sum = std::int64_t{quantised(value, exponent, workers)} * workers;
      CHECK(sum <= std::numeric_limits<std::int32_t>::max());
      CHECK_EQ(quantised(-value, exponent, workers), -quantised(value, exponent, workers));
      // A value at the very exponent, and one beyond a wrong exponent, stay within as well.
      CHECK(std::int64_t{quantised(std::ldexp(1.0f, 3), 3, workers)} * workers <= std::numeric_limits<std::int32_t>::max());
      CHECK(std::int64_t{quantised(kLargest, -126, workers)} * workers <= std::numeric_limits<std::int32_t>::max());
      CHECK(std::isfinite(block_scale(exponent, workers)));
    }
  }
}

TEST(zeros_and_subnormals_are_exact) {
  for (int workers : {1, 8, 256}) {
    for (float zero : {0.0f, -0.0f}) {
      CHECK_EQ(quantised(zero, kLeastExponent, workers), 0);
      CHECK(!std::signbit(read(0, kLeastExponent, workers)));
    }
  }
  for (float value : {kSmallest, -kSmallest, 0x0.fffffep-126f}) {
    CHECK(read(quantised(value, kLeastExponent, 1), kLeastExponent, 1) == value);
    CHECK(read(8 * quantised(value, kLeastExponent, 8), kLeastExponent, 8) == 8 * value);
  }
}

TEST(sums_are_within_half_a_step_of_each_worker) {
  std::mt19937 random(7);
  for (int round = 0; round < 200; ++round) {
    const int workers = 1 + round % 33;
    std::vector<std::vector<float>> values(workers, std::vector<float>(65));
    int exponent = kLeastExponent;
    for (auto& block : values) {
      for (float& value : block) {
        value = std::ldexp(std::normal_distribution<float>()(random), static_cast<int>(random() % 60) - 30);
      }
      exponent = std::max(exponent, block_exponent(block.data(), block.size()));
    }
    std::vector<std::int32_t> sums(65), q(65);
    for (auto& block : values) {
      quantise(block.data(), q.data(), 65, exponent, workers);
      for (int i = 0; i < 65; ++i) sums[i] += q[i];
    }
    std::vector<float> read_out(65);
    dequantise(sums.data(), read_out.data(), 65, exponent, workers);
    const double bound = workers / (2 * block_scale(exponent, workers));
    for (int i = 0; i < 65; ++i) {
      long double exact = 0;
      for (auto& block : values) exact += block[i];
      CHECK(std::abs(read_out[i] - exact) <= bound + 0x1.00001p-24 * std::abs(read_out[i]) + 1e-16 * bound);
    }
  }
}

TEST(network_order_is_the_same_numbers) {
  for (std::size_t n : {0, 1, 63, 64, 65, 255, 256, 257, 2048}) {
    std::mt19937 random(static_cast<unsigned>(n));
    std::vector<float> values(n);
    for (float& value : values) value = std::normal_distribution<float>()(random);
    const int exponent = block_exponent(values.data(), n);
    // One byte off any alignment, and with a byte on either side that stays.
    std::vector<std::int32_t> q(n + 1, 77);
    std::vector<std::uint8_t> wire(4 * n + 2, 0xaa);
    quantise(values.data(), q.data(), n, exponent, 5);
    quantise_big_endian(values.data(), wire.data() + 1, n, exponent, 5);
    CHECK_EQ(q[n], 77);
    CHECK(wire[0] == 0xaa && wire[4 * n + 1] == 0xaa);
    for (std::size_t i = 0; i < n; ++i) {
      const std::uint32_t bits = std::uint32_t{wire[4 * i + 1]} << 24 | wire[4 * i + 2] << 16 | wire[4 * i + 3] << 8 | wire[4 * i + 4];
      CHECK_EQ(static_cast<std::int32_t>(bits), q[i]);
    }
    std::vector<float> a(n + 1, 3), b(n + 1, 3);
    dequantise(q.data(), a.data(), n, exponent, 5);
    dequantise_big_endian(wire.data() + 1, b.data(), n, exponent, 5);
    CHECK(std::memcmp(a.data(), b.data(), 4 * (n + 1)) == 0);
    CHECK(a[n] == 3);
  }
}
