"""Writes a program as MSCCL XML for one of the runtimes that read it.

How steps become rows of the file is told by :mod:`coppice.fitting.msccl.rows`, the text itself is made by
:mod:`coppice.export.msccl.text`.

A program that passes a limit of its target is refused with the limit, by how much, and the next step.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator

from coppice.errors import CheckError
from coppice.export.msccl.text import encode_msccl_xml
from coppice.files import write_atomically
from coppice.fitting.msccl.limits import excesses_of_rows, rows_for
from coppice.program.two_sided.program import Program

__all__ = ["msccl_xml", "write_msccl_xml"]


def write_msccl_xml(program: Program, path: str | os.PathLike[str], *, target: str) -> None:
    """Write an MSCCL XML file; an interrupted write leaves the old file, or none.

    Args:
        program: What to write.
        path: Where; ``-`` is standard output.
        target: Name of the runtime, as in ``TARGETS``.

    Raises:
        CheckError: If the program passes a limit of the target.
        InputError: If the target does not exist, or the file cannot be written.
    """
    pieces = _encoded(program, target)
    if os.fspath(path) == "-":
        for piece in pieces:
            sys.stdout.write(piece.decode())
        sys.stdout.flush()
    else:
        write_atomically(path, pieces)


def msccl_xml(program: Program, *, target: str) -> str:
    """The text of an MSCCL XML file; the same program gives the same bytes.

    Args:
        program: What to write.
        target: Name of the runtime, as in ``TARGETS``.

    Raises:
        CheckError: If the program passes a limit of the target.
        InputError: If the target does not exist.
    """
    return b"".join(_encoded(program, target)).decode()


def _encoded(program: Program, target: str) -> Iterator[bytes]:
    """Pieces of the text of a program that keeps the limits of the target.

    Raises:
        CheckError: If it does not.
        InputError: As :func:`excesses`.
    """
    chosen, rows = rows_for(program, target)
    found = tuple(excesses_of_rows(program, rows, chosen))
    if found:
        more = f" ({len(found) - 1} further limits are passed as well)" if len(found) > 1 else ""
        msg = f"the program does not fit {chosen.title}: it has {found[0].sentence}{more}"
        raise CheckError(msg)
    return encode_msccl_xml(program, chosen, rows)
