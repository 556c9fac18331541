"""Read what each rank sends to each: a matrix, or tokens for experts as they were recorded.

A matrix is text (a row for each sender, as CSV or JSON) or NumPy's ``.npy``. A recording is JSON Lines, a line for
each layer and step with ``counts``: tokens for each expert, by sending rank (``[[3, 0], [1, 2]]``) or of all ranks
together (``[4, 2]``, which ranks then share evenly). ``layer`` and ``step`` say what a line is of; ``placement`` is the
rank of each expert, else experts lie in equal blocks.
"""

from __future__ import annotations

import io
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import msgspec
import numpy as np
from msgspec import Meta, Struct
from numpy.typing import NDArray

from coppice.bounds.problem import parse_demands
from coppice.decoding import decode_json
from coppice.errors import InputError
from coppice.files import decode_utf8, file_name, read_bytes

_LARGEST = 2**62
_Count = Annotated[int, Meta(ge=0, lt=2**53)]


class RoutingRecord(Struct, frozen=True, forbid_unknown_fields=True):
    """Tokens that one layer of one step sends to experts."""

    counts: list[_Count | list[_Count]]  # Tokens for each expert, by sending rank or of all ranks together
    layer: int = 0  # Which layer
    step: int = 0  # Which step
    placement: list[_Count] | None = None  # Rank of each expert; None: equal blocks

    def table(self, *, where: str = "the record") -> NDArray[np.int64]:
        """Tokens for each expert: a row for each sending rank, or one row of all ranks together.

        Examples:
            >>> RoutingRecord(counts=[4, 2]).table().tolist()
            [[4, 2]]
        """
        rows = [row for row in self.counts if isinstance(row, list)]
        mixed = 0 < len(rows) < len(self.counts)
        rows = rows or [[each for each in self.counts if isinstance(each, int)]]
        if not rows[0] or mixed or any(len(row) != len(rows[0]) for row in rows):
            raise InputError(f"expected as many experts for each rank, found other numbers in {where}.")
        return np.array(rows, dtype=np.int64)

    def places(self, ranks: int, *, where: str = "the record") -> NDArray[np.int64]:
        """Rank of each expert, below ``ranks``.

        Examples:
            >>> RoutingRecord(counts=[4, 2, 0, 1]).places(2).tolist()
            [0, 0, 1, 1]
        """
        experts = self.table(where=where).shape[1]
        if self.placement is None:
            blocks: NDArray[np.int64] = np.arange(experts, dtype=np.int64) * ranks // experts
            return blocks
        if len(self.placement) != experts or max(self.placement) >= ranks:
            raise InputError(
                f"expected a rank below {ranks} for each of {experts} experts in `placement`, found others in {where}: "
                "record this layout, or leave it out."
            )
        return np.array(self.placement, dtype=np.int64)

    def demands(self, ranks: int, *, where: str = "the record") -> NDArray[np.int64]:
        """Tokens from each of ``ranks`` ranks to each.

        Examples:
            >>> RoutingRecord(counts=[[3, 0], [1, 2]]).demands(2).tolist()
            [[3, 0], [1, 2]]
            >>> RoutingRecord(counts=[4, 2], placement=[1, 1]).demands(2).tolist()
            [[0, 3], [0, 3]]
        """
        table = self.table(where=where)
        rows, experts = table.shape
        if isinstance(self.counts[0], list) and rows != ranks:
            raise InputError(
                f"expected counts of {ranks} ranks, found {rows} rows in {where}: record those of this cluster."
            )
        if not isinstance(self.counts[0], list):
            table = table // ranks + (np.arange(ranks)[:, None] < table % ranks)
        if self.placement is None and experts % ranks:
            raise InputError(
                f"expected experts in equal blocks on {ranks} ranks, found {experts} in {where}: give their "
                "`placement`."
            )
        found = np.zeros((ranks, ranks), dtype=np.int64)
        np.add.at(found.T, self.places(ranks, where=where), table.T)
        return found


def parse_routing(text: str, *, where: str) -> list[RoutingRecord]:
    r"""Parse a recording of tokens for experts, as JSON Lines.

    Examples:
        >>> text = '{"counts": [1, 2]}\n{"layer": 1, "counts": [2, 1]}\n'
        >>> [each.layer for each in parse_routing(text, where="r.jsonl")]
        [0, 1]
    """
    records = [
        decode_json(
            line,
            RoutingRecord,
            lambda wrong, number=number: (  # type: ignore[misc]
                f'expected a line such as {{"layer": 0, "step": 0, "counts": [5, 3]}} at {where}:{number}, '
                f"found otherwise: {wrong}."
            ),
        )
        for number, line in enumerate(text.splitlines(), start=1)
        if line.strip()
    ]
    if not records:
        raise InputError(f"expected a line for each layer and step in {where}, found none.")
    return records


def read_demands(path: str, ranks: int) -> NDArray[np.int64] | tuple[tuple[int, ...], ...]:
    """Read a matrix of demands, or a recording whose lines are added up (``-``: standard input).

    Args:
        ranks: Ranks of the cluster.
    """
    data = read_bytes(path, what="the demands", hint="name a file with one row for each sender")
    where = file_name(path)
    if data.startswith(b"\x93NUMPY"):
        return _matrix(data, where)
    text = decode_utf8(data, file=where)
    if Path(path).suffix == ".jsonl" or text.lstrip().startswith("{"):
        return added(parse_routing(text, where=where), ranks, where=where)
    return parse_demands(text, where=where)


def added(records: Sequence[RoutingRecord], ranks: int, *, where: str) -> NDArray[np.int64]:
    """What all records send together."""
    total = np.zeros((ranks, ranks), dtype=np.int64)
    for number, record in enumerate(records, start=1):
        total += record.demands(ranks, where=f"{where}:{number}")
        if int(total.max()) >= _LARGEST // 2:
            raise InputError(
                f"expected counts with a sum below 2^61, found more in {where}: record fewer steps."
            )
    return total


def _matrix(data: bytes, where: str) -> NDArray[np.int64] | tuple[tuple[int, ...], ...]:
    try:
        found = np.load(io.BytesIO(data), allow_pickle=False)
    except (ValueError, OSError, EOFError, MemoryError) as error:
        raise InputError(f"expected a matrix of numbers in {where}, found otherwise: {error}.") from None
    if found.ndim != 2 or found.shape[0] != found.shape[1]:
        raise InputError(
            f"expected a square matrix of demands in {where}, found shape {found.shape}: give one row for each sender "
            "and one column for each receiver."
        )
    if found.dtype.kind not in "iuf":
        raise InputError(
            f"expected demands as integers or floats in {where}, found {found.dtype}: save them as int64."
        )
    wrong = np.argwhere(~((found >= 0) & (found < _LARGEST)))  # what is not a number is neither
    if len(wrong):
        row, column = wrong[0].tolist()
        raise InputError(
            f"expected demands of 0 or more below 2^62, found {found[row, column]} at {where}: row {row}, "
            f"column {column}."
        )
    if found.dtype.kind == "f" and not (found == np.floor(found)).all():
        return parse_demands(msgspec.json.encode(found.tolist()).decode(), where=where)
    whole: NDArray[np.int64] = found.astype(np.int64)
    return whole
