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

    def demands(self, ranks: int, *, where: str = "the record") -> NDArray[np.int64]:
        """Tokens from each of ``ranks`` ranks to each.

        Examples:
            >>> RoutingRecord(counts=[[3, 0], [1, 2]]).demands(2).tolist()
            [[3, 0], [1, 2]]
            >>> RoutingRecord(counts=[4, 2], placement=[1, 1]).demands(2).tolist()
            [[0, 3], [0, 3]]
        """
        rows: list[list[int]] = [row for row in self.counts if isinstance(row, list)]
        width = len(rows[0]) if rows else len(self.counts)
        mixed = 0 < len(rows) < len(self.counts)
        if not width or mixed or any(len(row) != width for row in rows):
            raise InputError(f"expected as many experts for each rank, found other numbers in {where}.")
        if rows and len(rows) != ranks:
            raise InputError(
                f"expected counts of {ranks} ranks, found {len(rows)} rows in {where}: record those of this cluster."
            )
        if rows:
            table = np.array(rows, dtype=np.int64)
        else:
            each = np.array(self.counts, dtype=np.int64)
            table = each // ranks + (np.arange(ranks)[:, None] < each % ranks)
        if self.placement is None and width % ranks:
            raise InputError(
                f"expected experts in equal blocks on {ranks} ranks, found {width} in {where}: give their `placement`."
            )
        at = np.arange(width) * ranks // width if self.placement is None else np.array(self.placement)
        if len(at) != width or int(at.max()) >= ranks:
            raise InputError(
                f"expected a rank below {ranks} for each of {width} experts in `placement`, found others in {where}."
            )
        found = np.zeros((ranks, ranks), dtype=np.int64)
        np.add.at(found.T, at, table.T)
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
    except (ValueError, OSError, EOFError) as error:
        raise InputError(f"expected a matrix of numbers in {where}, found otherwise: {error}.") from None
    if found.ndim != 2 or found.shape[0] != found.shape[1] or found.dtype.kind not in "iuf":
        raise InputError(
            f"expected a square matrix of demands in {where}, found shape {found.shape} of {found.dtype}: "
            "give one row for each sender and one column for each receiver."
        )
    if found.dtype.kind == "f":
        if not np.isfinite(found).all():
            raise InputError(f"expected demands that are finite in {where}, found others.")
        if not (found == np.floor(found)).all() or found.max(initial=0) >= _LARGEST:
            return parse_demands(msgspec.json.encode(found.tolist()).decode(), where=where)
    if found.size and (found.min() < 0 or int(found.max()) >= _LARGEST):
        raise InputError(f"expected demands of 0 or more below 2^62 in {where}, found others.")
    whole: NDArray[np.int64] = found.astype(np.int64)
    return whole
