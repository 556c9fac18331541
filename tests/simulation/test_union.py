"""Parts of a cluster come together by the names of their nodes, and parts of different clusters do not."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction

import pytest

from coppice.errors import InputError
from coppice.simulation.joining import union
from coppice.topology import preset, remove_links, set_link_rate, subset


def test_parts_make_the_whole() -> None:
    whole = preset("dgx-h100", boxes=2)
    parts = [subset(whole, range(8)), subset(whole, [8, 9, 10, 11, 12, 13, 14, 15])]
    both = union(parts)
    assert both.num_ranks == 16
    assert sorted(both.node_ids) == sorted(whole.node_ids)
    links = {(link.src, link.dst): link.gb_per_s for link in whole.links()}
    assert {(link.src, link.dst): link.gb_per_s for link in both.links()} == links
    assert sorted(both.hosts) == sorted(whole.hosts)


def test_a_topology_that_holds_all_others_stays_itself() -> None:
    whole = preset("dgx-h100", boxes=2)
    part = subset(whole, [3, 11])
    assert union([part, whole]) is whole
    assert union([part]) is part
    relays = subset(whole, [3, 11], relays=True)
    assert union([relays, whole]).num_nodes == whole.num_nodes


def test_parts_of_different_clusters_are_refused() -> None:
    box = preset("dgx-a100")
    with pytest.raises(InputError, match=r"gpu0 -> nvswitch with 150 GB/s .* with 300 GB/s"):
        union([box, set_link_rate(box, "gpu0", "nvswitch", Fraction(150))])
    with pytest.raises(InputError, match="lacks the link gpu0 -> nvswitch"):
        union([box, remove_links(box, [("gpu0", "nvswitch")])])
    with pytest.raises(InputError, match=r"node gpu0 of dgx-a100 differs"):
        union([box, replace(box, multicast=~box.multicast)])
