#include "splitting/splitting.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "splitting/batches.h"
#include "splitting/split_off.h"

namespace coppice {

Packing pack_by_splitting(const Digraph& graph, std::span<const std::uint8_t> terminal, std::span<const Amount> roots,
                          std::span<const Amount> capacity, const StopFlag& stop) {
  SplitNetwork network = split_off_switches(graph, terminal, roots, capacity, stop);
  std::vector<Vertex> tail, head;
  std::vector<Amount> room;
  for (const LogicalArc& arc : network.arcs) tail.push_back(arc.tail), head.push_back(arc.head), room.push_back(arc.capacity);
  Batches found = pack_batches(Digraph(graph.num_vertices(), tail, head), terminal, roots, room, stop);
  Packing packing;
  packing.stats.flows = network.flows + found.flows;
  packing.start.push_back(0);
  for (const Batch& batch : found.batches) {
    for (Amount left = batch.weight; left > 0;) {
      Amount weight = left;
      for (Arc e : batch.arcs) weight = std::min(weight, network.arcs[e].strands.back().amount);
      for (Arc e : batch.arcs) {
        std::vector<Strand>& strands = network.arcs[e].strands;
        packing.arcs.insert(packing.arcs.end(), strands.back().path.begin(), strands.back().path.end());
        if ((strands.back().amount -= weight) == 0) strands.pop_back();
      }
      packing.start.push_back(static_cast<std::int64_t>(packing.arcs.size()));
      packing.root.push_back(batch.root);
      packing.multiplicity.push_back(weight);
      left -= weight;
    }
  }
  return packing;
}

}  // namespace coppice
