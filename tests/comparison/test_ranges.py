"""Who wins where, and why in words."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest

from comparison.cases import measured, star
from coppice import Collective, InputError, MissingExtraError, Problem
from coppice.comparison import Comparison, compare, plot
from coppice.comparison.measurement import SimulatedTime
from coppice.comparison.plot import check_picture
from coppice.comparison.ranges import Range, percent, ranges, variants
from coppice.comparison.table import COLUMNS, algorithm_lines, best_lines, csv_text, range_lines
from coppice.text import number, short_size
from coppice.topology.presets import preset

K, M = 2**10, 2**20


def found(times: Mapping[str, Mapping[int, SimulatedTime]], limit: float = 1.0) -> list[Range]:
    sizes = sorted({size for by_size in times.values() for size in by_size})
    return list(ranges(sizes, times, limit_us=lambda _: limit))


def line(name: str, times: Mapping[int, float], **fields: object) -> dict[int, SimulatedTime]:
    return {size: measured(name, size, time, **fields) for size, time in times.items()}


def test_short_chain_wins_small_sizes_and_light_links_large_ones() -> None:
    doubling = line("doubling", {K: 5.0, 64 * K: 8.0, M: 90.0, 64 * M: 5000.0}, chain=5, link_us=40.0)
    ring = line("ring", {K: 62.0, 64 * K: 63.0, M: 80.0, 64 * M: 2500.0}, chain=62, link_us=20.0)
    first, second = found({"ring": ring, "doubling": doubling})
    assert (first.algorithm, first.sizes_text, first.rival) == ("doubling", "1K..64K", "ring")
    assert first.why == "5 messages in a row, ring 62"
    assert first.text == "1K..64K doubling (5 messages in a row, ring 62; 12% of the limit at 64K)"
    assert (second.algorithm, second.sizes_text, second.rival) == ("ring", "1M..64M", "doubling")
    assert second.why == "its busiest link is busy 20 us, that of doubling 40 us"


def test_equal_times_do_not_break_a_range() -> None:
    """Differences within one percent: the algorithm that stays the best for longest has the whole range."""
    a = line("a", {K: 10.0, 2 * K: 20.0, 4 * K: 30.0, 8 * K: 40.0})
    b = line("b", {K: 9.95, 2 * K: 20.1, 4 * K: 29.9, 8 * K: 80.0})
    (only,) = found({"b": b, "a": a})
    assert (only.algorithm, only.rival, only.why) == ("a", "b", "as good as b")


def test_fewest_ranges() -> None:
    a = line("a", {K: 1.0, 2 * K: 1.0, 4 * K: 9.0, 8 * K: 9.0})
    b = line("b", {K: 9.0, 2 * K: 1.0, 4 * K: 1.0, 8 * K: 1.0})
    c = line("c", {K: 9.0, 2 * K: 9.0, 4 * K: 1.0, 8 * K: 9.0})
    assert [(each.algorithm, each.sizes_text) for each in found({"a": a, "b": b, "c": c})] == [
        ("a", "1K..2K"),
        ("b", "4K..8K"),
    ]


def test_busy_links_explain_what_chains_and_loads_do_not() -> None:
    a = line("a", {M: 100.0}, chain=9, link_us=90.0)
    b = line("b", {M: 200.0}, chain=2, link_us=90.0)
    (only,) = found({"a": a, "b": b})
    assert only.why == "its busiest link works 90% of the time, that of b 45%"


def test_one_algorithm_has_no_rival() -> None:
    (only,) = found({"ring": line("ring", {K: 4.0, M: 8.0})}, limit=8.0)
    assert (only.rival, only.why) == (None, "")
    assert only.text == "1K..1M ring (100% of the limit at 1M)"


def test_rival_is_the_winner_of_the_next_range_and_not_the_second_best() -> None:
    a = line("a", {K: 1.0, M: 90.0}, chain=1)
    b = line("b", {K: 9.0, M: 10.0}, chain=9)
    c = line("c", {K: 2.0, M: 80.0}, chain=2)
    assert [(each.algorithm, each.rival) for each in found({"a": a, "b": b, "c": c})] == [
        ("a", "b"),
        ("b", "a"),
    ]


def test_sizes_at_which_nothing_applies_are_left_out() -> None:
    times = {"ring": line("ring", {K: 4.0})}
    (only,) = ranges([512, K, M], times, limit_us=lambda _: 1.0)
    assert only.sizes_text == "1K"


def test_variants_in_words() -> None:
    rows = [
        measured("tree", K, 1.0, parameters={"segments": 1, "radix": 4}),
        measured("tree", M, 1.0, parameters={"segments": 16, "radix": 4}, order="topology", relays=True),
    ]
    text = "segments 1..16, radix 4, ranks in the order of the topology, GPUs that relay"
    assert variants(rows) == text
    assert variants(rows[:1]) == "radix 4"
    assert variants([measured("forest", K, 1.0), measured("forest", M, 1.0, pieces=8)]) == "1..8 pieces"
    assert variants([measured("a", K, 1.0, parameters={"fold": "x"})]) == "fold x"


def test_texts_of_sizes_and_shares() -> None:
    assert [short_size(size) for size in (1, 1023, K, 3 * K, M + K, 2**30, 2**41)] == [
        *("1", "1023", "1K", "3K", "1025K", "1G", "2T")
    ]
    assert [percent(share) for share in (1.0, 0.99999, 0.985, 0.5, 0.004)] == [
        *("100%", "99.9%", "98%", "50%", "0.4%")
    ]


SIZES = tuple(2**k for k in range(10, 27, 4))


@pytest.fixture(scope="module")
def compared() -> Comparison:
    return compare(star(8), sizes=SIZES, algorithms=["forest", "ring", "double-binary-tree"], jobs=1)


def test_csv_has_a_row_for_every_algorithm_and_size(compared: Comparison) -> None:
    rows = list(csv.DictReader(io.StringIO(csv_text([compared]))))
    assert tuple(rows[0]) == COLUMNS
    assert len(rows) == 3 * len(SIZES)
    for row in rows:
        time, size = float(row["time_us"]), int(row["size_bytes"])
        assert float(row["algbw_gb_per_s"]) == pytest.approx(size / time / 1000)
        assert float(row["busbw_gb_per_s"]) == pytest.approx(7 / 4 * size / time / 1000)
        assert float(row["share_of_limit"]) == pytest.approx(float(row["limit_us"]) / time)
        assert (row["collective"], row["ranks"], row["refusal"]) == ("all_reduce", "8", "")
    for size in SIZES:
        times = [float(row["time_us"]) for row in rows if int(row["size_bytes"]) == size]
        assert times == sorted(times)


def test_csv_of_refusals() -> None:
    weighted = star(3, Collective.ALL_GATHER, weights=(1, 1, 2))
    rows = list(csv.DictReader(io.StringIO(csv_text([compare(weighted, sizes=[1024], jobs=1)]))))
    refused = [row for row in rows if row["refusal"]]
    assert refused
    assert all(row["time_us"] == row["algbw_gb_per_s"] == "" for row in refused)


def test_table_of_the_best(compared: Comparison) -> None:
    lines = best_lines(compared)
    assert [line.startswith("#") for line in lines] == [True, True] + [False] * len(SIZES)
    assert lines[0].split()[:4] == ["#", "size", "time", "algbw"]
    for line, size in zip(lines[2:], SIZES, strict=True):
        best = compared.best(size)
        assert best is not None
        cells = line.split()
        assert cells[:3] == [str(size), number(best.time_us), number(best.algbw_gb_per_s)]
        assert best.algorithm in cells
    both = best_lines(compared, compared)
    assert "measured" in both[0]
    assert len(both[2].split()) == len(lines[2].split()) + 2


def test_table_of_all(compared: Comparison) -> None:
    lines = algorithm_lines(compared)
    assert len(lines) == 2 + 3 * len(SIZES)


def test_ranges_are_aligned(compared: Comparison) -> None:
    lines = range_lines(compared)
    assert len(lines) == len(compared.ranges)
    for line, each in zip(lines, compared.ranges, strict=True):
        assert re.sub(r"\s+", " ", line.strip()) == each.text


def test_the_line_of_the_limit_is_off_by_nothing_that_is_seen(compared: Comparison) -> None:
    """Between its points, which lie closer where it bends, as on paper whose axes are both logarithmic."""
    sizes, limit = plot._limit_line(compared)
    assert (sizes[0], sizes[-1]) == (compared.sizes[0], compared.sizes[-1])
    assert len(sizes) < plot.FINE / 2
    drawn = np.geomspace(sizes[0], sizes[-1], 400).round()
    on_line = np.exp(np.interp(np.log(drawn), np.log(sizes), np.log(limit)))
    assert on_line == pytest.approx([compared.limit_us(int(size)) for size in drawn], rel=0.01)


def test_picture_shows_lines_in_their_colours(compared: Comparison, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib", reason="pictures need matplotlib")
    from matplotlib.colors import to_rgb
    from matplotlib.image import imread

    path = tmp_path / "picture.png"
    plot.plot(compared, path)
    pixels = imread(path)[..., :3]
    assert pixels.shape[0] > 800
    assert pixels.shape[1] > 1000
    for colour in (plot.COLOURS[0], "black"):
        near = np.abs(pixels - np.array(to_rgb(colour))).max(axis=2) < 0.02
        assert near.sum() > 500, colour


def test_picture_names_everything(compared: Comparison, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib", reason="pictures need matplotlib")
    path = tmp_path / "picture.svg"
    plot.plot(compared, path)
    text = path.read_text()
    for words in ("forest", "ring", "double-binary-tree", "optimum", "latency bound", "limit", "64M", "best"):
        assert f"<!-- {words}" in text or f">{words}" in text, words
    plot.plot(compared, tmp_path / "again.svg")
    assert (tmp_path / "again.svg").read_text() == text


def test_the_best_the_picks_of_nccl_and_the_rings_are_named_first(tmp_path: Path) -> None:
    problem = Problem(topology=preset("dgx-h100", boxes=2), collective=Collective.ALL_REDUCE)
    names = [
        "forest",
        "ring",
        "nccl-tree",
        "nccl-ring",
        "linear",
        "recursive-doubling",
        "tree",
        "rabenseifner",
    ]
    found = compare(
        problem, sizes=[2**10, 2**18], algorithms=names, relay_gpus=True, jobs=1, in_network=False
    )
    assert found.picked == ("nccl-tree",)
    first = list(dict.fromkeys(["forest", *(each.algorithm for each in found.ranges), "nccl-tree"]))
    rings = {"ring", "nccl-ring"}.difference(first)
    named = found.outstanding(8)
    assert named[: len(first)] == first
    assert set(named[len(first) : len(first) + len(rings)]) == rings
    assert set(named) == set(found.times)
    pytest.importorskip("matplotlib", reason="pictures need matplotlib")
    plot.plot(found, tmp_path / "picture.svg")
    text = (tmp_path / "picture.svg").read_text()
    for words in ("nccl-tree (NCCL's pick)", "NCCL -->", "nccl-ring"):
        assert words in text


def test_picture_of_one_size(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib", reason="pictures need matplotlib")
    plot.plot(compare(star(), sizes=[1024], algorithms=["ring"], jobs=1), tmp_path / "one.png")
    assert (tmp_path / "one.png").stat().st_size > 10_000


def test_pictures_that_cannot_be_drawn(
    compared: Comparison, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(InputError, match=r"called \*.png, \*.svg, \*.pdf, found picture.gif"):
        plot.plot(compared, tmp_path / "picture.gif")
    barrier = compare(star(4, Collective.BARRIER), sizes=[1], jobs=1)
    with pytest.raises(InputError, match="nothing to draw"):
        plot.plot(barrier, tmp_path / "picture.png")
    monkeypatch.setattr(plot, "find_spec", lambda _: None)
    with pytest.raises(MissingExtraError, match=r"pip install 'coppice\[plot\]'"):
        check_picture(tmp_path / "picture.png")
