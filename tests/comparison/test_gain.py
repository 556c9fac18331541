"""What optimal trees gain over rings and hierarchies as a cluster grows."""

from __future__ import annotations

import pytest

from comparison.cases import measured, star
from coppice import Collective, InputError, Problem
from coppice.comparison.gain import FAMILIES, Gain, GainRow, gain, gain_lines, gain_words
from coppice.planners.algorithms.catalogue import algorithms
from coppice.topology.presets import preset

SIZE = 2**28


def boxes(*counts: int, collective: Collective = Collective.ALL_GATHER) -> dict[int, Problem]:
    return {
        count: Problem(topology=preset("dgx-a100", boxes=count), collective=collective) for count in counts
    }


def row(count: int, ring_us: float, other_us: float | None = None) -> GainRow:
    other = None if other_us is None else measured("2d-torus", SIZE, other_us)
    return GainRow(
        boxes=count,
        ranks=8 * count,
        optimal=measured("forest", SIZE, 100.0),
        rivals={"ring": measured("ring", SIZE, ring_us), "hierarchical": other},
        limit_us=99.0,
    )


@pytest.mark.slow
def test_gain_shrinks_on_large_symmetric_clusters() -> None:
    found = gain(boxes(1, 2, 4), SIZE, jobs=1)
    over = [each.over("ring") for each in found.rows]
    assert over == [pytest.approx(1, abs=0.01), pytest.approx(1.6, abs=0.1), pytest.approx(1.3, abs=0.1)]
    for each in found.rows:
        assert each.limit_us <= each.optimal.time_us * (1 + 1e-6)
    assert found.rows[0].ranks == 8
    lines = gain_lines(found)
    assert len(lines) == 2 + 3
    assert lines[3].split()[:2] == ["2", "16"]


def test_words() -> None:
    shrinking = Gain(size_bytes=SIZE, rows=(row(1, 101.0), row(2, 160.0, 200.0), row(4, 110.0, 190.0)))
    ring, hierarchical = gain_words(shrinking)
    assert ring.startswith(
        "gain of forest over ring at 256M: 1.60x on 2 boxes, 1.10x on 4: it shrinks towards 1"
    )
    assert hierarchical == (
        "gain of forest over hierarchical at 256M: 2.00x on 2 boxes, 1.90x on 4: it shrinks as the cluster grows."
    )
    growing = Gain(size_bytes=SIZE, rows=(row(1, 101.0), row(4, 180.0)))
    (only,) = gain_words(growing)
    assert only == "gain of forest over ring at 256M: largest on the largest cluster, 1.80x on 4 boxes."
    assert "-" in gain_lines(growing)[2].split()


def test_record() -> None:
    record = Gain(size_bytes=SIZE, rows=(row(2, 160.0),)).record()
    (only,) = record["rows"]
    assert only["ring"]["gain"] == 1.6
    assert only["hierarchical"] is None
    assert only["limit_algbw_gb_per_s"] > only["algbw_gb_per_s"]


def test_families_are_in_the_catalogue() -> None:
    known = {name for name, _ in algorithms()}
    for members in FAMILIES.values():
        assert set(members) <= known


def test_a_barrier_has_no_gain() -> None:
    with pytest.raises(InputError, match="moves no bytes"):
        gain({1: star(4, Collective.BARRIER)}, SIZE, jobs=1)
