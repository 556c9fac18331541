"""NCCL by release: cells worked out by hand where releases differ, a log of an older one, and 2.30 as it was."""

from __future__ import annotations

import re
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import msgspec
import pytest

from coppice.advice.advise import advised
from coppice.collectives import Collective
from coppice.errors import InputError
from coppice.logs.reading import read_log
from coppice.selection import select
from coppice.selection.nccl.communicator import nvls_channels
from coppice.selection.nccl.costs import Channels, CostCell, NcclCommunicator, cells
from coppice.selection.nccl.releases import (
    constants,
    known_releases,
    nearest_release,
    older_releases,
    release_of,
)
from coppice.selection.nccl.searching import speeds_of
from coppice.topology.presets import preset
from support.shared_data import SHARED

H100 = NcclCommunicator(
    ranks=8,
    nodes=1,
    generation="hopper",
    cpu="intel",
    ring=Channels(count=12, within=30, across=30),
    tree=Channels(count=12, within=30, across=30),
    nvls=Channels(count=8, within=40, across=60),
    channels=24,
    nvls_channels=16,
)
RAILS = Channels(count=8, within=48, across=48, across_type="PXB", same=False)
FOUR = replace(H100, ranks=32, nodes=4, ring=RAILS, tree=RAILS, nvls=replace(RAILS, within=40), cpu="amd")
ALONE = replace(FOUR, ranks=4, nvls=None)
B200 = replace(H100, generation="blackwell")
UNLIKE = replace(FOUR, cpu="mixed")

# (release, communicator, collective, algorithm, protocol, latency us, GB/s) at 1 KiB, by hand.
CELLS = [
    # Trees with Simple: 28 us a step in a box and none to begin with, until 2.23.
    ("2.22.3", H100, "broadcast", "Ring", "Simple", 8.4 + 3.4, 360),
    ("2.22.3", H100, "all_reduce", "Tree", "Simple", 14 * 28, 0.9 * 0.5 * 360 * 0.92),
    ("2.23.4", H100, "all_reduce", "Tree", "Simple", 8.4 + 14 * 4, 0.9 * 0.5 * 360 * 0.92),
    ("2.18.6", H100, "all_reduce", "Tree", "Simple", 14 * 4, 0.9 * 0.5 * 360 * 0.92),
    # LL: a third of a ring that adds nothing in one box, and Ampere's limit on Hopper, until 2.21.
    ("2.20.5", H100, "all_gather", "Ring", "LL", 6.6 + 7 * 0.6, 87.7 * 8 / 7),
    ("2.20.5", FOUR, "all_gather", "Ring", "LL", 6.6 + 28 * 2 + 3 * 2.7, 19 * 32 / 31),
    ("2.21.5", H100, "all_gather", "Ring", "LL", 6.6 + 7 * 0.6, 141 * 8 / 7),
    # An all-reduce over a ring counted two crossings more, until 2.23.
    ("2.22.3", FOUR, "all_reduce", "Ring", "LL", 6.6 + (62 - 8) * 2 + 8 * 2.7, 19 * 32 / 62),
    ("2.23.4", FOUR, "all_reduce", "Ring", "LL", 6.6 + (62 - 6) * 2 + 6 * 2.7, 19 * 32 / 62),
    # One rank in a box: less of LL128 and a ring's latency of the network until 2.23, then the tree's.
    ("2.22.3", ALONE, "all_gather", "Ring", "LL128", 14 + 3 * 4, 8 * min(48 * 0.7, 36.7) * 4 / 3),
    ("2.23.4", ALONE, "all_gather", "Ring", "LL128", 14 + 3 * 8.5, 8 * 36.7 * 4 / 3),
    # PAT came with 2.23, and counts less since 2.24.
    ("2.23.4", ALONE, "all_gather", "PAT", "Simple", 8 + 2 * 14 / 3.5 + 4 * 2.8, 8 * 48 * 0.85),
    ("2.24.3", ALONE, "all_gather", "PAT", "Simple", 8 + 2 * 14 / 3.5 + 4 * 2.8, 8 * 48 * 0.75),
    # NVLS: by its slower links, at 5/6, until 2.28.
    ("2.18.6", H100, "all_reduce", "NVLS", "Simple", 23, 8 * 40 * 5 / 6),
    ("2.20.5", H100, "all_reduce", "NVLS", "Simple", 23, 8 * 40 * 5 / 6),
    ("2.27.7", H100, "all_reduce", "NVLS", "Simple", 25, 8 * 40 * 5 / 6),
    ("2.28.9", H100, "all_reduce", "NVLS", "Simple", 25, 8 * 40 * 0.85 * 7 / 8 * 2 * 8 / 14),
    ("2.22.3", H100, "all_gather", "NVLS", "Simple", 25, 8 * 40 * 5 / 6),
    ("2.26.6", H100, "all_gather", "NVLS", "Simple", 25, 8 * 40),
    ("2.27.7", H100, "all_gather", "NVLS", "Simple", 25, 8 * 40 * 7 / 8),
    ("2.30.7", H100, "all_gather", "NVLS", "Simple", 25, 8 * 40 * 0.85 * 7 / 8 * 7 / 8),
    # Its tree: by the number of boxes in 2.18, half of the network of more than two boxes until 2.28.
    ("2.18.6", FOUR, "all_reduce", "NVLSTree", "Simple", 23 + 6 * 19, 8 * 48 * 0.7 * 4 / 6),
    ("2.19.4", FOUR, "all_reduce", "NVLSTree", "Simple", 23 + 4 * 14, 8 * 24 * 5 / 6),
    ("2.27.7", FOUR, "all_reduce", "NVLSTree", "Simple", 25 + 4 * 14, 8 * 24 * 5 / 6),
    ("2.28.9", FOUR, "all_reduce", "NVLSTree", "Simple", 25 + 4 * 20.9, 8 * 45.5 * 32 / 62),
    # Blackwell: as Hopper until 2.25, then twice that; measured since 2.28.
    ("2.24.3", B200, "all_reduce", "Ring", "LL", 6.6 + 14 * 0.6, 141 * 8 / 14),
    ("2.25.1", B200, "all_reduce", "Ring", "LL", 6.6 + 14 * 0.6, 180 * 8 / 14),
    # Boxes of several makers: Volta's row until 2.24.
    ("2.23.4", UNLIKE, "all_gather", "Ring", "LL", 6.6 + 28 * 1 + 3 * 2.7, 20.4 * 32 / 31),
    ("2.24.3", UNLIKE, "all_gather", "Ring", "LL", 6.6 + 28 * 1 + 3 * 2.7, 19 * 32 / 31),
]


def cell(
    release: str, comm: NcclCommunicator, collective: str, algorithm: str, protocol: str
) -> CostCell | None:
    found = cells(replace(comm, release=release), Collective.named(collective), 1024)
    return next((c for c in found if (c.algorithm, c.protocol) == (algorithm, protocol)), None)


@pytest.mark.parametrize(
    ("release", "comm", "collective", "algorithm", "protocol", "latency_us", "rate"), CELLS
)
def test_cells_by_hand(
    release: str,
    comm: NcclCommunicator,
    collective: str,
    algorithm: str,
    protocol: str,
    latency_us: float,
    rate: float,
) -> None:
    found = cell(release, comm, collective, algorithm, protocol)
    assert found is not None
    assert found.latency_us == pytest.approx(latency_us, rel=1e-9)
    assert found.gb_per_s == pytest.approx(rate, rel=1e-8)


def test_what_came_later() -> None:
    assert cell("2.22.3", ALONE, "all_gather", "PAT", "Simple") is None
    assert cell("2.18.6", H100, "all_gather", "NVLS", "Simple") is None
    assert cell("2.19.4", FOUR, "all_gather", "CollNetDirect", "Simple") is None
    assert cell("2.20.5", FOUR, "all_gather", "CollNetDirect", "Simple") is not None
    for release, there in (("2.24.3", False), ("2.25.1", True)):
        found = cell(release, B200, "all_reduce", "Ring", "LL128")
        assert found is not None
        assert (found.time_us is not None) is there
    mixed = replace(FOUR, mixed=True)
    for release, there in (("2.29.7", False), ("2.30.7", True)):
        found = cell(release, mixed, "all_reduce", "Ring", "LL128")
        assert found is not None
        assert (found.time_us is not None) is there
    tree = replace(B200, nodes=2, ranks=16)
    rates = []
    for release in ("2.28.9", "2.29.7"):
        found = cell(release, tree, "all_reduce", "NVLSTree", "Simple")
        assert found is not None
        rates.append(found.gb_per_s)
    assert rates[1] == pytest.approx(0.9 * rates[0])
    assert [nvls_channels(100, 2, 8, 50.0, release=each) for each in ("2.24.3", "2.26.6", "2.29.7", "")] == [
        16,
        32,
        32,
        32,
    ]
    assert 50 not in speeds_of(90, several=False, release="2.18.6")
    assert 50 in speeds_of(90, several=False, release="2.19.4")


def test_nothing_changes_for_the_newest() -> None:
    assert constants("2.30.7") == constants()
    for collective in ("all_reduce", "all_gather", "broadcast"):
        for size in (2**12, 2**22, 2**28):
            asked = [select(name, collective, size, topology=preset("dgx-h100")) for name in NAMES]
            assert asked[0] == asked[1] == asked[2]


NAMES = ("nccl", "nccl-2.30", "nccl-2.30.7")


def test_every_difference_is_one() -> None:
    """No record repeats what the next newer release has, and none is unknown."""
    versions = [tuple(map(int, each.split("."))) for each in known_releases()]
    assert versions == sorted(versions, reverse=True)
    assert [minor for _, minor, _ in versions] == list(range(30, 17, -1))
    newer: dict[str, object] = msgspec.to_builtins(constants())
    for each in older_releases():
        assert re.fullmatch("[0-9a-f]{8}", each.commit)
        assert each.commit in constants(each.version).source
        older: dict[str, object] = msgspec.to_builtins(constants(each.version))
        for path, value in _leaves(each.differs):
            assert _at(newer, path) != value, (each.version, path)
            assert _at(older, path) == value
        newer = older


def _leaves(tree: dict[str, object], path: tuple[str, ...] = ()) -> list[tuple[tuple[str, ...], object]]:
    found: list[tuple[tuple[str, ...], object]] = []
    for key, value in tree.items():
        found += _leaves(value, (*path, key)) if isinstance(value, dict) else [((*path, key), value)]
    return found


def _at(tree: dict[str, object], path: tuple[str, ...]) -> object:
    found: object = tree
    for key in path:
        assert isinstance(found, dict)
        found = found.get(key)
    return found


def test_the_documentation_lists_them() -> None:
    text = (Path(__file__).parents[2] / "docs" / "selection.md").read_text()
    rows = re.findall(r"^\| (2\.[0-9.]+) \| ([0-9a-f]{8}) \|", text, re.MULTILINE)
    assert rows[1:] == [(each.version, each.commit) for each in older_releases()]
    assert rows[0][0] == constants().version
    assert rows[0][1] in constants().source


def test_versions_differ_where_they_should() -> None:
    """Neighbours that read alike predict alike; the others differ somewhere on these machines."""
    machines = [preset("dgx-h100", boxes=3), preset("dgx-b200", boxes=2), preset("dgx-a100")]

    def times(release: str) -> list[float | None]:
        return [
            each.time_us
            for machine in machines
            for collective in ("all_reduce", "all_gather")
            for each in select(f"nccl-{release}", collective, 2**20, topology=machine).cells
        ]

    found = {release: times(release) for release in known_releases()}
    alike = [(new, old) for new, old in pairwise(known_releases()) if found[new] == found[old]]
    # 2.26 and 2.25, and 2.22 and 2.21, have the same tables; 2.30, 2.24 and 2.20 changed what none of these has.
    assert {("2.26.6", "2.25.1"), ("2.22.3", "2.21.5")} <= set(alike)
    assert len(alike) <= 5


def test_names() -> None:
    assert release_of("2.27") == "2.27.7"
    with pytest.raises(InputError, match=r"from 2\.18 to 2\.30, found '2\.31'"):
        select("nccl-2.31", "all_reduce", 1024, ranks=8)
    with pytest.raises(InputError, match="found 'x'"):
        release_of("x")
    with pytest.raises(InputError, match="expected a library"):
        select("mpich-4", "all_reduce", 1024, ranks=8)
    assert nearest_release("2.32.3+cuda13.0") == "2.30.7"
    picked = select("nccl-2.22", "all_reduce", 2**20, topology=preset("dgx-h100"))
    assert picked.version == "2.22.3"
    assert picked.model_name == "NCCL 2.22.3 cost model"
    assert any("rates of 2.22.3" in words for words in picked.assumptions)


LOG = SHARED / "cases" / "01-rows-torn-by-tuning-log" / "all_reduce_3x8_h100.log"


@pytest.mark.skipif(not LOG.exists(), reason="the shared folder of logs is absent")
def test_a_log_of_2_22_says_the_same() -> None:
    text = LOG.read_text()
    assert "NCCL version 2.22.3" in text
    told = {
        int(size): float(us) for size, us in re.findall(r"(\d+) Bytes -> Algo 0 proto 0 time ([\d.]+)", text)
    }
    assert len(told) >= 2
    for size, us in told.items():
        found = select("nccl-2.22", "all_reduce", size, topology=preset("dgx-h100", boxes=3))
        assert found.algorithm == "Tree/LL"
        assert found.cell is not None
        assert found.cell.time_us == pytest.approx(us, rel=1e-6)


@pytest.mark.parametrize(("version", "priced"), [("2.21.5", "2.21.5"), ("2.32.3", "2.30.7")])
def test_advice_prices_by_the_version_of_a_log(version: str, priced: str, tmp_path: Path) -> None:
    path = tmp_path / "job.log"
    path.write_text(f"n1:7:7 [0] NCCL INFO NCCL version {version}+cuda12.4\n")
    advice = advised(preset("dgx-b200", boxes=2), logs=[read_log(path)], collectives=[Collective.ALL_REDUCE])
    assert advice.version == version
    assert {row.model.split(",")[0] for row in advice.rows} == {f"NCCL {priced} cost model"}
    said = [note for note in advice.notes if "was not read" in note]
    assert said == ([] if version == priced else ["NCCL 2.32.3 was not read: it is priced as 2.30.7"])
