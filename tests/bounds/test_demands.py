"""Demands as files: matrices, and tokens for experts as they were recorded."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from coppice.bounds.demands import RoutingRecord, read_demands
from coppice.errors import InputError


def test_all_forms_say_the_same(tmp_path: Path) -> None:
    matrix = np.array([[0, 5, 1], [2, 0, 3], [7, 1, 0]])
    files = {name: tmp_path / name for name in ("m.csv", "m.json", "m.npy", "f.npy", "r.jsonl")}
    np.savetxt(files["m.csv"], matrix, fmt="%d", delimiter=",")
    files["m.json"].write_text(str(matrix.tolist()))
    np.save(files["m.npy"], matrix)
    np.save(files["f.npy"], matrix / 2.0)
    files["r.jsonl"].write_text(f'{{"step": 3, "counts": {matrix.tolist()}}}\n\n')
    read = {name: np.array(read_demands(str(path), 3)) for name, path in files.items()}
    for name in ("m.csv", "m.json", "m.npy", "r.jsonl"):
        assert (read[name] == matrix).all(), name
    assert (read["f.npy"] * matrix[0, 1] == matrix * read["f.npy"][0, 1]).all()


def test_experts_lie_on_ranks() -> None:
    blocks = RoutingRecord(counts=[[1, 2, 3, 4], [0, 0, 5, 0]]).demands(2)
    assert blocks.tolist() == [[3, 7], [0, 5]]
    placed = RoutingRecord(counts=[[1, 2, 3, 4], [0, 0, 5, 0]], placement=[1, 1, 0, 0]).demands(2)
    assert placed.tolist() == [[7, 3], [5, 0]]
    assert RoutingRecord(counts=[7, 1]).demands(2).tolist() == [[4, 1], [3, 0]]


@pytest.mark.parametrize(
    ("text", "place"),
    [
        ('{"counts": [1, 2, 3]}', "equal blocks on 2 ranks, found 3"),
        ('{"counts": [[1, 2]]}', "counts of 2 ranks, found 1 rows"),
        ('{"counts": [[1, 2], [1]]}', "as many experts"),
        ('{"counts": [[1, 2], 1]}', "as many experts"),
        ('{"counts": []}', "as many experts"),
        ('{"counts": [1, -2]}', "r.jsonl:1"),
        ('{"counts": [1, 2], "placement": [0, 2]}', "a rank below 2"),
        ('{"count": [1, 2]}', "r.jsonl:1"),
        ("\n", "found none"),
    ],
)
def test_refused_with_the_place(tmp_path: Path, text: str, place: str) -> None:
    path = tmp_path / "r.jsonl"
    path.write_text(text)
    with pytest.raises(InputError) as caught:
        read_demands(str(path), 2)
    assert place in str(caught.value)


@pytest.mark.parametrize(
    ("array", "words"),
    [
        (np.ones((2, 3)), r"found shape \(2, 3\)"),
        (np.array([["a"]]), "found <U1"),
        (np.ones((2, 2), dtype=bool), "found bool"),
        (np.array([[0, -1], [1, 0]]), "found -1 at .*: row 0, column 1"),
        (np.array([[0, np.inf], [1, 0]]), "found inf at"),
        (np.array([[0, 1.5], [np.nan, 0]]), "found nan at .*: row 1, column 0"),
        (np.full((2, 2), 2**64 - 1, dtype=np.uint64), "found 18446744073709551615"),
    ],
)
def test_arrays_that_are_no_demands(tmp_path: Path, array: np.ndarray, words: str) -> None:
    path = tmp_path / "m.npy"
    np.save(path, array)
    with pytest.raises(InputError, match=words):
        read_demands(str(path), 2)


def test_an_array_that_says_it_is_huge(tmp_path: Path) -> None:
    path = tmp_path / "m.npy"
    np.save(path, np.ones((8, 8)))
    path.write_bytes(path.read_bytes().replace(b"(8, 8), }          ", b"(9999999, 9999999)}"))
    with pytest.raises(InputError, match="Unable to allocate"):
        read_demands(str(path), 8)


def test_a_torn_array(tmp_path: Path) -> None:
    path = tmp_path / "m.npy"
    np.save(path, np.ones((8, 8)))
    path.write_bytes(path.read_bytes()[:100])
    with pytest.raises(InputError, match=r"m\.npy"):
        read_demands(str(path), 8)
