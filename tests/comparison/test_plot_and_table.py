"""Comparisons as pictures, tables and CSV."""

from __future__ import annotations

import csv
import io
import re
from pathlib import Path

import numpy as np
import pytest

from comparison.cases import star
from coppice import Collective, InputError, MissingExtraError
from coppice.comparison import Comparison, compare, plot
from coppice.comparison.plot import check_picture
from coppice.comparison.table import COLUMNS, algorithm_lines, best_lines, csv_text, number, range_lines

SIZES = tuple(2**k for k in range(10, 27, 4))


@pytest.fixture(scope="module")
def found() -> Comparison:
    return compare(star(8), sizes=SIZES, algorithms=["forest", "ring", "double-binary-tree"], jobs=1)


def test_csv_has_a_row_for_every_algorithm_and_size(found: Comparison) -> None:
    rows = list(csv.DictReader(io.StringIO(csv_text([found]))))
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


def test_table_of_the_best(found: Comparison) -> None:
    lines = best_lines(found)
    assert [line.startswith("#") for line in lines] == [True, True] + [False] * len(SIZES)
    assert lines[0].split()[:4] == ["#", "size", "time", "algbw"]
    for line, size in zip(lines[2:], SIZES, strict=True):
        best = found.best(size)
        assert best is not None
        cells = line.split()
        assert cells[:3] == [str(size), number(best.time_us), number(best.algbw_gb_per_s)]
        assert best.algorithm in cells
    both = best_lines(found, found)
    assert "measured" in both[0]
    assert len(both[2].split()) == len(lines[2].split()) + 2


def test_table_of_all(found: Comparison) -> None:
    lines = algorithm_lines(found)
    assert len(lines) == 2 + 3 * len(SIZES)


def test_ranges_are_aligned(found: Comparison) -> None:
    lines = range_lines(found)
    assert len(lines) == len(found.ranges)
    for line, each in zip(lines, found.ranges, strict=True):
        assert re.sub(r"\s+", " ", line.strip()) == each.text


def test_picture_shows_lines_in_their_colours(found: Comparison, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib", reason="pictures need matplotlib")
    from matplotlib.colors import to_rgb
    from matplotlib.image import imread

    path = tmp_path / "picture.png"
    plot.plot(found, path)
    pixels = imread(path)[..., :3]
    assert pixels.shape[0] > 800
    assert pixels.shape[1] > 1000
    for colour in (plot.COLOURS[0], "black"):
        near = np.abs(pixels - np.array(to_rgb(colour))).max(axis=2) < 0.02
        assert near.sum() > 500, colour


def test_picture_names_everything(found: Comparison, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib", reason="pictures need matplotlib")
    path = tmp_path / "picture.svg"
    plot.plot(found, path)
    text = path.read_text()
    for words in ("forest", "ring", "double-binary-tree", "optimum", "latency bound", "limit", "64M", "best"):
        assert f"<!-- {words}" in text or f">{words}" in text, words
    plot.plot(found, tmp_path / "again.svg")
    assert (tmp_path / "again.svg").read_text() == text


def test_picture_of_one_size(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib", reason="pictures need matplotlib")
    plot.plot(compare(star(), sizes=[1024], algorithms=["ring"], jobs=1), tmp_path / "one.png")
    assert (tmp_path / "one.png").stat().st_size > 10_000


def test_pictures_that_cannot_be_drawn(
    found: Comparison, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(InputError, match=r"called \*.png, \*.svg, \*.pdf, found picture.gif"):
        plot.plot(found, tmp_path / "picture.gif")
    barrier = compare(star(4, Collective.BARRIER), sizes=[1], jobs=1)
    with pytest.raises(InputError, match="nothing to draw"):
        plot.plot(barrier, tmp_path / "picture.png")
    monkeypatch.setattr(plot, "find_spec", lambda _: None)
    with pytest.raises(MissingExtraError, match=r"pip install 'coppice\[plot\]'"):
        check_picture(tmp_path / "picture.png")
