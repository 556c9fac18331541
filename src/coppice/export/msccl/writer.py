"""Write a program as MSCCL XML for one runtime.

A program that passes a limit of its target is refused with the limit, by how much, and the next step. How steps become
rows of the file is told by :mod:`coppice.export.msccl.rows`. The loaders are hand-written and strict: one blank between
attributes, double quotes, no tabs, no XML declaration. The lines of steps are millions and of one form, so they are put
together as a matrix of bytes, some thousand rows at a time: every number and word is looked up in a table of its
digits, padded with zeros that are left out in the end.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from coppice.export.formats import require_none
from coppice.export.msccl.rows import TYPE_OF_OP, XmlRows, excesses_of_rows, rows_for, rows_of
from coppice.export.msccl.targets import MscclTarget, shares
from coppice.program.dialects.thread_blocks.program import Program, StepOp
from coppice.program.memory import Buffer
from coppice.rows import offsets, positions

_LETTERS = {Buffer.NONE: b"i", Buffer.INPUT: b"i", Buffer.OUTPUT: b"o", Buffer.SCRATCH: b"s"}
_PIECE = 2**13
"""Lines that are put together at a time, if ranks have no more."""
_MANY = 2**16
"""Numbers in a table that need not all occur."""
_AnyInts = NDArray[np.signedinteger[Any]]
_Field = tuple[NDArray[np.int64], NDArray[np.uint8]]
"""Row of the table for each line, and the table: words as rows of bytes, padded with zeros."""


def msccl_xml(program: Program, *, target: str) -> str:
    """Encode a program as MSCCL XML, deterministically.

    Args:
        target: Name of the runtime, as in ``TARGETS``.
    """
    chosen, rows = rows_for(program, target)
    require_none(tuple(excesses_of_rows(program, rows, chosen)), chosen.title)
    return b"".join(encode_msccl_xml(program, chosen, rows)).decode()


def encode_msccl_xml(program: Program, target: MscclTarget, rows: XmlRows | None = None) -> Iterator[bytes]:
    """Encode in pieces, without checking the target's limits.

    Args:
        target: The runtime, for names and attributes.
        rows: Its rows, if they are known.
    """
    rows = rows_of(program, target) if rows is None else rows
    yield _head(program, target)
    steps = _step_lines(program, rows)
    blocks = _block_heads(program)
    rank_start: list[int] = program.rank_start.tolist()
    starts: list[int] = rows.start.tolist()
    slots = list(
        zip(
            program.input_chunks.tolist(),
            program.output_chunks.tolist(),
            program.scratch_chunks.tolist(),
            strict=True,
        )
    )
    rank = 0
    while rank < program.num_ranks:
        begin = end = rank
        while end < program.num_ranks and (
            end == begin or starts[rank_start[end + 1]] - starts[rank_start[begin]] <= _PIECE
        ):
            end += 1
        heads, head_at = blocks.text(rank_start[begin], rank_start[end])
        lines, line_at = steps.text(starts[rank_start[begin]], starts[rank_start[end]])
        first_block, first_row = rank_start[begin], starts[rank_start[begin]]
        pieces: list[bytes] = []
        for rank in range(begin, end):
            pieces.append(
                b'  <gpu id="%d" i_chunks="%d" o_chunks="%d" s_chunks="%d">\n' % (rank, *slots[rank])
            )
            for block in range(rank_start[rank] - first_block, rank_start[rank + 1] - first_block):
                row, next_row = starts[block + first_block], starts[block + first_block + 1]
                pieces += (
                    heads[head_at[block] : head_at[block + 1]],
                    lines[line_at[row - first_row] : line_at[next_row - first_row]],
                    b"    </tb>\n",
                )
            pieces.append(b"  </gpu>\n")
        yield b"".join(pieces)
        rank = end
    yield b"</algo>\n"


def _head(program: Program, target: MscclTarget) -> bytes:
    from coppice.version import __version__

    parts = shares(program.collective, program.num_ranks)
    largest = None if program.max_bytes is None else program.max_bytes // parts
    attributes = {
        "name": _name(program.name, target),
        "proto": program.protocol,
        "nchannels": program.num_channels,
        "nchunksperloop": program.num_chunks // parts,
        "ngpus": program.num_ranks,
        "coll": target.collectives[program.collective],
        "inplace": int(program.in_place),
        "outofplace": int(program.out_of_place),
        "minBytes": -(-program.min_bytes // parts),
        "maxBytes": target.max_bytes_of(largest),
    }
    if program.collective.rooted:
        attributes["root"] = program.root
    text = " ".join(f'{key}="{value}"' for key, value in attributes.items())
    return f"<!-- Coppice {__version__}: for {target.versions} -->\n<algo {text}>\n".encode()


def _name(name: str, target: MscclTarget) -> str:
    """A label of letters, digits and a few signs that no loader stumbles over."""
    clean = "".join(
        letter if letter.isascii() and (letter.isalnum() or letter in "-_.") else "-" for letter in name
    )
    return clean[: target.max_name or 63] or "coppice"


class _Lines:
    """Lines of one form: constant texts, and between them fields that differ.

    Args:
        texts: What stands before the first field, between them, and behind the last one.
        fields: (row of its table for each line, table of words) of each field.
    """

    def __init__(self, texts: Sequence[bytes], fields: Sequence[_Field]) -> None:
        self._fields = fields
        line = bytearray(texts[0])
        self._begin: list[int] = []
        for text, (_, table) in zip(texts[1:], fields, strict=True):
            self._begin.append(len(line))
            line += bytes(table.shape[1]) + text
        self._line = np.frombuffer(bytes(line), dtype=np.uint8)

    def text(self, first: int, end: int) -> tuple[bytes, list[int]]:
        """The lines ``first .. end - 1``, and where each of them begins; the last entry is the length of all."""
        letters = np.empty((end - first, len(self._line)), dtype=np.uint8)
        letters[:] = self._line
        for begin, (which, table) in zip(self._begin, self._fields, strict=True):
            letters[:, begin : begin + table.shape[1]] = table[which[first:end]]
        there = letters != 0
        at: list[int] = offsets(np.count_nonzero(there, axis=1)).tolist()
        return letters[there].tobytes(), at


def _numbers(column: _AnyInts) -> _Field:
    """A field of numbers in decimals."""
    low, high = int(column.min(initial=0)), int(column.max(initial=0))
    if high - low <= _MANY:
        return column.astype(np.int64) - low, _table([b"%d" % value for value in range(low, high + 1)])
    values, which = np.unique(column, return_inverse=True)
    return which, _table([b"%d" % value for value in values.tolist()])


def _table(words: Sequence[bytes]) -> NDArray[np.uint8]:
    """Words as rows of bytes, padded with zeros."""
    width = max(map(len, words), default=0)
    return np.frombuffer(b"".join(word.ljust(width, b"\0") for word in words), dtype=np.uint8).reshape(
        len(words), width
    )


def _block_heads(program: Program) -> _Lines:
    ids = np.arange(program.num_blocks) - program.rank_start[program.block_rank]
    columns = (ids, program.block_send, program.block_recv, program.block_channel)
    return _Lines(
        (b'    <tb id="', b'" send="', b'" recv="', b'" chan="', b'">\n'),
        [_numbers(column) for column in columns],
    )


def _step_lines(program: Program, rows: XmlRows) -> _Lines:
    real = rows.step >= 0
    step = rows.step[real]

    def of_steps(column: _AnyInts, idle: int) -> NDArray[np.int64]:
        found = np.full(len(rows.step), idle, dtype=np.int64)
        found[real] = column[step]
        return found

    words = _table([TYPE_OF_OP[op].encode() for op in StepOp])
    letters = _table(
        [_LETTERS[buffer] for buffer in (Buffer.INPUT, Buffer.OUTPUT, Buffer.SCRATCH, Buffer.NONE)]
    )
    place = positions(np.diff(rows.start))
    return _Lines(
        (
            b'      <step s="',
            b'" type="',
            b'" srcbuf="',
            b'" srcoff="',
            b'" dstbuf="',
            b'" dstoff="',
            b'" cnt="',
            b'" depid="',
            b'" deps="',
            b'" hasdep="',
            b'"/>\n',
        ),
        [
            _numbers(place),
            (of_steps(program.op, StepOp.NOP), words),
            (of_steps(program.src_buffer, Buffer.INPUT), letters),
            _numbers(of_steps(program.src_offset, -1)),
            (of_steps(program.dst_buffer, Buffer.OUTPUT), letters),
            _numbers(of_steps(program.dst_offset, -1)),
            _numbers(of_steps(program.count, 0)),
            _numbers(rows.depid),
            _numbers(rows.deps),
            _numbers(rows.hasdep),
        ],
    )
