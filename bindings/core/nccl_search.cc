// Binding of nccl_search/search.h.
#include "nccl_search/search.h"

#include "bindings.h"

using namespace coppice;

void init_nccl_search(nb::module_& m) {
  m.def(
      "nccl_search",
      [](nb::handle system, nb::handle search, Column<double> speeds) {
        ColumnRecord of(system);
        NcclSystem box;
        of.fill("kind", box.kind), of.fill("capability", box.capability), of.fill("maker", box.maker);
        of.fill("to", box.to), of.fill("link", box.link), of.fill("back", box.back), of.fill("rate", box.rate);
        of.fill("gpu", box.gpu), of.fill("rank", box.rank), of.fill("pcie", box.pcie);
        of.fill("net", box.net), of.fill("net_rate", box.net_rate), of.fill("net_latency", box.net_latency);
        of.fill("rail", box.rail), of.fill("adds", box.adds), of.fill("local_gpu", box.local_gpu);
        of.fill("preferred_first", box.preferred_first), of.fill("preferred", box.preferred);
        of.fill("near_first", box.near_first), of.fill("near", box.near);
        of.fill("path_kind", box.path_kind), of.fill("path_first", box.path_first);
        of.fill("path_link", box.path_link), of.fill("path_rate", box.path_rate);
        box.nvswitch = of.get<int>("nvswitch"), box.chips = of.get<int>("chips");
        box.capability_least = of.get<int>("capability_least"), box.processor = of.get<int>("processor");
        box.several = of.get<bool>("several"), box.most = of.get<double>("most"), box.total = of.get<double>("total");
        const Settings asked(search);
        NcclSearch request;
        request.pattern = asked.get<int>("pattern");
        asked.fill("least", request.least), asked.fill("most", request.most), asked.fill("adds", request.adds);
        request.cross_nic = asked.get<int>("cross_nic_setting");
        request.speeds = view(speeds);
        NcclChannels found = stoppable([&](const StopFlag& stop) { return nccl_search(box, request, stop); });
        return nb::make_tuple(found.pattern, found.count, found.within, found.across, found.latency, found.within_type,
                              found.across_type, found.same, found.cross_nic, found.hops,
                              to_numpy(std::move(found.orders)), to_numpy(std::move(found.ports)));
      },
      nb::arg("system"), nb::arg("search"), nb::arg("speeds"),
      "Channels that NCCL finds for a pattern: (pattern, count, within, across, latency, within_type, across_type, same, "
      "cross_nic, hops, orders, ports); see search.h.");
}
