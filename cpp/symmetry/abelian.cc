#include "symmetry/abelian.h"

#include <cstdlib>
#include <numeric>
#include <utility>

namespace coppice {

namespace {

using Row = std::vector<std::int64_t>;

/// Diagonalises the relations of an abelian group. Row r of `relations` says: the sum of relations[r][j] * g_j is 0.
/// On return relations is diagonal, for new generators g'_j = sum of result[j][i] * g_i (coefficients modulo `order`).
std::vector<Row> diagonalised(std::vector<Row>& relations, std::int64_t order) {
  std::size_t n = relations.size();
  std::vector<Row> basis(n, Row(n, 0));
  for (std::size_t i = 0; i < n; ++i) basis[i][i] = 1;
  for (std::size_t t = 0; t < n; ++t) {
    for (bool clean = false; !clean;) {
      std::size_t row = t, column = t;
      for (std::size_t r = t; r < n; ++r)
        for (std::size_t c = t; c < n; ++c) {
          std::int64_t value = std::abs(relations[r][c]), least = std::abs(relations[row][column]);
          if (value != 0 && (least == 0 || value < least)) row = r, column = c;
        }
      std::swap(relations[t], relations[row]);
      for (Row& r : relations) std::swap(r[t], r[column]);
      std::swap(basis[t], basis[column]);
      std::int64_t pivot = relations[t][t];
      clean = true;
      for (std::size_t c = t + 1; c < n; ++c) {
        std::int64_t factor = relations[t][c] / pivot;
        for (Row& r : relations) r[c] -= factor * r[t];
        // x_t g_t + x_c g_c = x_t (g_t + factor g_c) + (x_c - factor x_t) g_c.
        for (std::size_t i = 0; i < n; ++i) basis[t][i] = (basis[t][i] + factor % order * basis[c][i]) % order;
        clean = clean && relations[t][c] == 0;
      }
      for (std::size_t r = t + 1; r < n; ++r) {
        std::int64_t factor = relations[r][t] / pivot;
        for (std::size_t c = 0; c < n; ++c) relations[r][c] -= factor * relations[t][c];
        clean = clean && relations[r][t] == 0;
      }
    }
  }
  return basis;
}

}  // namespace

VertexMap composed(const VertexMap& first, const VertexMap& second) {
  VertexMap result(first.size());
  for (std::size_t v = 0; v < first.size(); ++v) result[v] = second[first[v]];
  return result;
}

VertexMap power(VertexMap map, std::int64_t exponent) {
  VertexMap result(map.size());
  std::iota(result.begin(), result.end(), 0);
  for (; exponent > 0; exponent >>= 1) {
    if (exponent & 1) result = composed(result, map);
    if (exponent > 1) map = composed(map, map);
  }
  return result;
}

FreeAbelianGroup::FreeAbelianGroup(std::span<const std::uint8_t> compute) : compute_(compute.begin(), compute.end()) {
  find_orbits();
}

FreeAbelianGroup::FreeAbelianGroup(std::span<const std::uint8_t> compute, std::vector<VertexMap> generators,
                                   std::vector<std::int64_t> orders)
    : compute_(compute.begin(), compute.end()), generators_(std::move(generators)), orders_(std::move(orders)) {
  for (std::int64_t order : orders_) order_ *= order;
  find_orbits();
}

bool FreeAbelianGroup::extend(const VertexMap& map) {
  for (const VertexMap& g : generators_)
    if (composed(g, map) != composed(map, g)) return false;
  std::size_t first = 0;
  while (first < compute_.size() && !compute_[first]) ++first;
  if (first == compute_.size()) return false;
  auto start = static_cast<Vertex>(first);
  std::int64_t length = 1;  // of the cycle of start's orbit
  Vertex v = map[start];
  for (; orbit_[v] != orbit_[start]; v = map[v]) ++length;
  if (length == 1 || !cycles_alike(map, length)) return false;
  // start is the representative of its orbit only if no switch precedes it in the orbit, and orbits hold one kind.
  Row wrapped = digits(element_[v]), own = digits(element_[start]);
  for (std::size_t i = 0; i < wrapped.size(); ++i) wrapped[i] = (wrapped[i] - own[i] + orders_[i]) % orders_[i];
  std::int64_t element = 0;
  for (std::size_t i = wrapped.size(); i-- > 0;) element = element * orders_[i] + wrapped[i];
  if (power(map, length) != permutation(element)) return false;

  std::size_t n = generators_.size() + 1;
  std::vector<Row> relations(n, Row(n, 0));
  for (std::size_t i = 0; i + 1 < n; ++i) {
    relations[i][i] = orders_[i];
    relations[n - 1][i] = -wrapped[i];
  }
  relations[n - 1][n - 1] = length;
  std::int64_t order = order_ * length;
  std::vector<Row> basis = diagonalised(relations, order);
  std::vector<VertexMap> generators;
  std::vector<std::int64_t> orders;
  for (std::size_t j = 0; j < n; ++j) {
    if (std::abs(relations[j][j]) == 1) continue;
    VertexMap generator = power(map, (basis[j][n - 1] + order) % order);
    for (std::size_t i = 0; i + 1 < n; ++i)
      generator = composed(generator, power(generators_[i], (basis[j][i] + order) % order % orders_[i]));
    generators.push_back(std::move(generator));
    orders.push_back(std::abs(relations[j][j]));
  }
  generators_ = std::move(generators);
  orders_ = std::move(orders);
  order_ = order;
  find_orbits();
  return true;
}

VertexMap FreeAbelianGroup::permutation(std::int64_t element) const {
  VertexMap result(compute_.size());
  std::iota(result.begin(), result.end(), 0);
  Row exponents = digits(element);
  for (std::size_t i = 0; i < generators_.size(); ++i)
    if (exponents[i] != 0) result = composed(result, power(generators_[i], exponents[i]));
  return result;
}

std::vector<std::int64_t> FreeAbelianGroup::digits(std::int64_t element) const {
  Row result;
  for (std::int64_t order : orders_) {
    result.push_back(element % order);
    element /= order;
  }
  return result;
}

// Whether `map` permutes the orbits of compute vertices in cycles of this length.
bool FreeAbelianGroup::cycles_alike(const VertexMap& map, std::int64_t length) const {
  std::vector<std::uint8_t> seen(representatives_.size(), 0);
  for (Vertex start : representatives_) {
    if (!compute_[start] || seen[orbit_[start]]) continue;
    std::int64_t steps = 0;
    for (Vertex v = start; !seen[orbit_[v]]; v = map[v], ++steps) seen[orbit_[v]] = 1;
    if (steps != length) return false;
  }
  return true;
}

void FreeAbelianGroup::find_orbits() {
  auto n = static_cast<Vertex>(compute_.size());
  orbit_.assign(n, -1);
  element_.assign(n, 0);
  representatives_.clear();
  std::vector<Vertex> reached;
  for (Vertex start = 0; start < n; ++start) {
    if (orbit_[start] >= 0) continue;
    auto orbit = static_cast<std::int32_t>(representatives_.size());
    representatives_.push_back(start);
    orbit_[start] = orbit;
    reached.assign(1, start);
    for (std::size_t done = 0; done < reached.size(); ++done) {
      Vertex v = reached[done];
      std::int64_t radix = 1;
      for (std::size_t i = 0; i < generators_.size(); ++i, radix *= orders_[i - 1]) {
        Vertex image = generators_[i][v];
        if (orbit_[image] >= 0) continue;
        bool wraps = element_[v] / radix % orders_[i] == orders_[i] - 1;
        orbit_[image] = orbit;
        element_[image] = element_[v] + (wraps ? -(orders_[i] - 1) * radix : radix);
        reached.push_back(image);
      }
    }
  }
}

}  // namespace coppice
