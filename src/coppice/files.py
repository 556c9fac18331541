"""Files read whole, up to a limit, and written whole or not at all.

An output is written beside its place under a temporary name, flushed to the disk and then renamed, so that a crash at
any moment leaves the old file or the new one, never half of one.
"""

from __future__ import annotations

import os
import secrets
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

from coppice.errors import InputError

__all__ = ["decode_utf8", "file_name", "read_bytes", "read_text", "replacing", "write_atomically"]

_MOST_BYTES = 2**31
_PART_BYTES = 2**26


def file_name(path: str | os.PathLike[str]) -> str:
    """Name of a file for messages; ``-`` is standard input.

    >>> file_name("-"), file_name("box.json")
    ('standard input', 'box.json')
    """
    name = os.fspath(path)
    return "standard input" if name == "-" else name


def read_bytes(
    path: str | os.PathLike[str],
    *,
    what: str = "",
    hint: str = "name an existing file",
    most_bytes: int = _MOST_BYTES,
    too_large: str = "is this the right file?",
) -> bytes:
    """The content of a file, or of standard input for ``-``.

    Args:
        path: The file.
        what: What it is expected to be, for messages; such as ``the plan``.
        hint: What to do where it cannot be read.
        most_bytes: Largest size that is read.
        too_large: What to do where it is larger.

    Raises:
        InputError: If it cannot be read, or is too large.

    Examples:
        >>> read_bytes("nowhere.json", what="the plan", hint="check the name")
        Traceback (most recent call last):
        coppice.errors.InputError: cannot read the plan nowhere.json (No such file or directory): check the name.
    """
    name = file_name(path)
    try:
        if os.fspath(path) == "-":
            data = _content(sys.stdin.buffer, most_bytes)
        else:
            with Path(path).open("rb") as file:
                data = _content(file, most_bytes)
    except (OSError, ValueError) as error:
        reason = (error.strerror if isinstance(error, OSError) else None) or error
        msg = f"cannot read {what}{' ' if what else ''}{name} ({reason}): {hint}."
        raise InputError(msg) from None
    if len(data) > most_bytes:
        msg = f"{name} is larger than {most_bytes >> 20} MiB: {too_large}"
        raise InputError(msg)
    return data


def read_text(path: str | os.PathLike[str], *, what: str = "", hint: str = "name an existing file") -> str:
    """The content of a text file in UTF-8, or of standard input for ``-``.

    Args:
        path: The file.
        what: What it is expected to be, for messages.
        hint: What to do where it cannot be read.

    Raises:
        InputError: If it cannot be read, is too large, or is not UTF-8.
    """
    return decode_utf8(read_bytes(path, what=what, hint=hint), file=file_name(path))


def decode_utf8(data: bytes, *, file: str) -> str:
    r"""Bytes of a file as text, without a byte order mark.

    Args:
        data: The bytes.
        file: Name of the file, for messages.

    Raises:
        InputError: If they are not UTF-8.

    Examples:
        >>> decode_utf8(b"\xef\xbb\xbfa,b", file="t.csv")
        'a,b'
    """
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        msg = f"{file} is not UTF-8 text (byte {error.start}): save it as UTF-8."
        raise InputError(msg) from None


@contextmanager
def replacing(path: str | os.PathLike[str]) -> Iterator[Path]:
    """A temporary name beside ``path`` to write to: what is there when the block ends becomes ``path``.

    Args:
        path: The file. Where the block fails, it stays as it was.

    Raises:
        InputError: If the file cannot be written.
    """
    target = Path(path)
    temporary = target.with_name(f".{target.name}.{secrets.token_hex(4)}.tmp")
    try:
        try:
            yield temporary
            _flush(temporary)
            temporary.replace(target)
        finally:
            temporary.unlink(missing_ok=True)
    except OSError as error:
        msg = f"cannot write {target} ({error.strerror or error}): choose another place."
        raise InputError(msg) from None
    with suppress(OSError):
        _flush(target.parent)  # a rename is on the disk only once its directory is


def write_atomically(path: str | os.PathLike[str], data: bytes | Iterable[bytes]) -> None:
    """Write ``data`` to ``path``: no half-written file is ever seen.

    Args:
        path: The file.
        data: Its content, whole or in pieces that are made as they are written.

    Raises:
        InputError: If the file cannot be written.
    """
    with replacing(path) as temporary, temporary.open("xb") as file:
        file.writelines((data,) if isinstance(data, bytes) else data)


def _content(file: BinaryIO, most_bytes: int) -> bytes:
    """All of a file, or somewhat more than the limit; read in parts, since a read allocates all that it is allowed."""
    parts: list[bytes] = []
    left = most_bytes + 1
    while left > 0 and (part := file.read(min(left, _PART_BYTES))):
        parts.append(part)
        left -= len(part)
    return b"".join(parts)


def _flush(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
