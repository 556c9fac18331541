"""A share in the network of a cluster and the rest by hosts: never worse than either, never beyond the bound."""

from __future__ import annotations

from fractions import Fraction

import pytest

from coppice.comparison.in_network_split import split_on_cluster
from coppice.errors import InputError
from coppice.innetwork.clusters import cluster_system
from coppice.innetwork.clusters.places import with_adding
from coppice.topology.presets import preset

CASES = [
    ("box", preset("dgx-h100"), "nvls", "forest"),
    (
        "boxes",
        preset("dgx-h100", boxes=2, fabric="switch", multicast="true", aggregate="true"),
        "sharp",
        "forest",
    ),
    ("boxes and a ring", with_adding(preset("dgx-h100", boxes=2), "rail*"), "sharp", "ring"),
    ("spines", with_adding(preset("fat-tree"), "spine*"), "sharp", "forest"),
    ("leaves", with_adding(preset("fat-tree", oversubscription=2), "leaf*"), "switchml", "forest"),
    ("all", with_adding(preset("fat-tree"), "*"), "netreduce", "ring"),
]


@pytest.mark.parametrize(
    ("topology", "system", "algorithm"), [case[1:] for case in CASES], ids=[c[0] for c in CASES]
)
def test_a_share_is_never_worse_and_never_beats_the_bound(topology, system: str, algorithm: str) -> None:
    found = split_on_cluster(topology, system, algorithm=algorithm)
    best = found.best
    assert found.bound <= best.inv_rate <= min(best.network, best.hosts)
    assert best.network <= cluster_system(system, topology).inv_rate, "phases may run at the same time"


def test_spines_that_add_gain_from_hosts_and_full_links_do_not() -> None:
    by_name = {name: (topology, system, algorithm) for name, topology, system, algorithm in CASES}
    topology, system, algorithm = by_name["spines"]
    found = split_on_cluster(topology, system, algorithm=algorithm)
    assert (found.best.share, 1 / found.best.inv_rate) == (Fraction(3, 11), Fraction(11, 18))
    assert "1.15 times as fast as the better alone" in found.words
    topology, system, algorithm = by_name["box"]
    assert "a split brings nothing" in split_on_cluster(topology, system, algorithm=algorithm).words


def test_what_means_nothing_is_refused() -> None:
    with pytest.raises(InputError, match="sharp needs a switch outside boxes"):
        split_on_cluster(preset("dgx-h100"), "sharp")
