"""Systems in the network beside the simulated algorithms: `compare(..., systems=...)` and `--in-network LIST`."""

from __future__ import annotations

import csv
import json
from fractions import Fraction
from importlib.util import find_spec
from pathlib import Path

import pytest

from coppice import compare
from coppice.comparison.in_network import split_on_cluster
from coppice.errors import InputError
from coppice.innetwork.clusters import cluster_system
from coppice.innetwork.places import with_adding
from coppice.innetwork.systems import SYSTEMS
from coppice.options.names import AGGREGATING
from coppice.topology.presets import preset
from support.pages import coppice

SPINES = ("fat-tree", "--sizes", "1K,1M", "--algorithm", "ring,forest", "--jobs", "1")


def test_the_help_names_every_system() -> None:
    assert tuple(SYSTEMS) == AGGREGATING


def test_systems_stand_beside_algorithms_and_below_their_bound() -> None:
    found = compare(
        preset("fat-tree"),
        "all_reduce",
        sizes=[1024, 2**30],
        algorithms=["ring"],
        systems=["sharp@*", "nvls"],
        jobs=1,
    )
    assert found.modelled is not None
    assert list(found.modelled.placed) == ["sharp@*"]
    assert "nvls needs a switch" in found.modelled.refused["nvls"]
    large = found.modelled.fastest_first(2**30)[0]
    best = found.best(2**30)
    assert best is not None
    assert large.time_us < best.time_us
    assert all(found.modelled_limit_us(row) <= row.time_us for row in found.modelled.times)
    table = found.to_table()
    assert [row["status"] for row in table] == ["simulated"] * 2 + ["modelled", "refused"] * 2
    assert {frozenset(row) for row in table} == {frozenset(table[0])}
    plain = compare(preset("fat-tree"), "all_reduce", sizes=[1024, 2**30], algorithms=["ring"], jobs=1)
    assert plain.modelled is None
    assert plain.measurements == found.measurements
    assert plain.optimum.inv_rate == found.optimum.inv_rate


def test_only_all_reduces_are_modelled() -> None:
    with pytest.raises(InputError, match=r"expected an all_reduce with systems .*, found broadcast"):
        compare(preset("star"), "broadcast", sizes=[1024], systems=["sharp"], jobs=1)
    with pytest.raises(InputError, match="expected a system that aggregates, "):
        compare(preset("star"), "all_reduce", sizes=[1024], systems=["sherp"], jobs=1)
    with pytest.raises(
        InputError, match="found 'ring': hosts carry out ring by themselves: `coppice compare`"
    ):
        compare(preset("star"), "all_reduce", sizes=[1024], systems=["ring"], jobs=1)


def test_the_command_prints_them_with_model_and_bound(tmp_path: Path) -> None:
    table = tmp_path / "table.csv"
    done = coppice("compare", *SPINES, "--in-network", "switchml@spine*,sharp@*,camdoop", "--csv", str(table))
    assert done.exit_code == 0, done.output
    assert (
        "in the network: closed forms on the links of the cluster, messages cost as in nccl-2.30"
        in done.stdout
    )
    assert "switchml@spine*  0.5 GB/s of  1 by the exact bound,  a tree around spine0" in done.stdout
    assert "camdoop: camdoop needs a 3D torus" in done.stdout
    assert done.stdout.count("(modelled)") == 4
    assert done.stdout.count("(simulated)") == 2
    rows = list(csv.DictReader(table.read_text().splitlines()))
    assert [row["parameters"] for row in rows if row["algorithm"] == "sharp@*"] == ["modelled"] * 2


@pytest.mark.skipif(find_spec("matplotlib") is None, reason="needs matplotlib")
def test_the_picture_has_them(tmp_path: Path) -> None:
    picture = tmp_path / "systems.svg"
    done = coppice("compare", *SPINES, "--in-network", "sharp@*", "--plot", str(picture))
    assert done.exit_code == 0, done.output
    assert "<!-- sharp@* (modelled) -->" in picture.read_text()


def test_systems_may_stand_where_a_value_would() -> None:
    first = coppice("compare", *SPINES, "--in-network", "sharp@*", "--json")
    second = coppice("compare", "--in-network", "sharp@*", *SPINES, "--json")
    assert first.exit_code == second.exit_code == 0, first.output + second.output
    assert first.stdout == second.stdout
    assert list(json.loads(first.stdout)["modelled"]["systems"]) == ["sharp@*"]


def test_the_flag_alone_is_what_it_was() -> None:
    words = ("compare", "dgx-h100", "--sizes", "1M", "--algorithm", "forest", "--jobs", "1")
    for flag in ("--in-network", "--no-in-network"):
        done = coppice(*words, flag, "--json")
        assert done.exit_code == 0, done.output
        record = json.loads(done.stdout)
        assert record["modelled"] is None
        assert record["optimum"]["algbw_gb_per_s"] == pytest.approx(
            450 if flag == "--in-network" else 257.142857
        )


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("sharp",), "expected --in-network before systems that add in the network, found sharp without it"),
        (("sharp", "--no-in-network"), "expected --in-network before systems"),
        (("sharp", "--in-network", "--gain"), "--gain compares algorithms only"),
        (("sharp@core*", "--in-network"), "fat-tree of 4 x 4, 2 spines has leaf0, "),
        (("sharp,shrap", "--in-network"), "did you mean 'sharp'"),
    ],
)
def test_what_means_nothing_is_refused(words: tuple[str, ...], told: str) -> None:
    done = coppice("compare", SPINES[0], *words, *SPINES[1:])
    assert done.exit_code == 2
    assert told in " ".join(done.stderr.split())


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


def test_shares_that_mean_nothing_are_refused() -> None:
    with pytest.raises(InputError, match="sharp needs a switch outside boxes"):
        split_on_cluster(preset("dgx-h100"), "sharp")
