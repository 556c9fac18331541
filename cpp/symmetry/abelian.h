// An abelian group of permutations of the vertices that acts freely on the compute vertices, grown one generator at a
// time and kept as a direct product of cyclic groups.
//
// Cost, with k generators of n vertices: to add one takes O(k n) to compare compositions, O(k n log n) for powers and
// O(k n) for orbits. Overflow: a free group has at most as many elements as there are compute vertices, less than 2^31,
// and coefficients are taken modulo that, so that products fit 62 bits.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "symmetry/coloured_graph.h"

namespace coppice {

/// `first` and then `second`: result[v] = second[first[v]].
VertexMap composed(const VertexMap& first, const VertexMap& second);

/// map applied `exponent` >= 0 times.
VertexMap power(VertexMap map, std::int64_t exponent);

class FreeAbelianGroup {
 public:
  /// The trivial group.
  explicit FreeAbelianGroup(std::span<const std::uint8_t> compute);

  /// Adds `map` to the generators if the larger group is again abelian and free on the compute vertices, and larger.
  /// Returns whether it did. The basis may change, so that the group stays the direct product of its generators.
  bool extend(const VertexMap& map);

  /// The group with these generators, of which the caller knows that the product is direct, abelian and free.
  FreeAbelianGroup(std::span<const std::uint8_t> compute, std::vector<VertexMap> generators,
                   std::vector<std::int64_t> orders);

  std::int64_t order() const { return order_; }
  const std::vector<std::int64_t>& orders() const { return orders_; }
  const std::vector<VertexMap>& generators() const { return generators_; }
  std::int32_t num_orbits() const { return static_cast<std::int32_t>(representatives_.size()); }

  /// Orbits are numbered by their least vertex, which is their representative.
  std::int32_t orbit(Vertex v) const { return orbit_[v]; }

  /// Mixed-radix index of an element that sends the representative of v's orbit to v; the first generator is the
  /// fastest digit: index = c_0 + n_0 (c_1 + n_1 (c_2 + ...)).
  std::int64_t element(Vertex v) const { return element_[v]; }

 private:
  VertexMap permutation(std::int64_t element) const;
  std::vector<std::int64_t> digits(std::int64_t element) const;
  bool cycles_alike(const VertexMap& map, std::int64_t length) const;
  void find_orbits();

  std::vector<std::uint8_t> compute_;
  std::vector<VertexMap> generators_;
  std::vector<std::int64_t> orders_;
  std::int64_t order_ = 1;
  std::vector<std::int32_t> orbit_;
  std::vector<std::int64_t> element_;
  std::vector<Vertex> representatives_;
};

}  // namespace coppice
