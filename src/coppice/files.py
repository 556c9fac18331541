"""Read files whole, up to a size limit, and write them atomically.

An output is written beside its place under a temporary name, flushed to the disk and then renamed, so that a crash at
any moment leaves the old file or the new one, never half of one. A symbolic link is followed: the file that it leads to
is replaced, not the link. What is no regular file (a device such as ``/dev/null``, a FIFO, an open descriptor such as
``/dev/stdout``) stays and is written to.
"""

from __future__ import annotations

import os
import shutil
import stat
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

from coppice.errors import InputError

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
        raise InputError(f"cannot read {what}{' ' if what else ''}{name} ({reason}): {hint}.") from None
    if len(data) > most_bytes:
        raise InputError(f"{name} is larger than {most_bytes >> 20} MiB: {too_large}")
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
        raise InputError(f"{file} is not UTF-8 text (byte {error.start}): save it as UTF-8.") from None


@contextmanager
def replacing(path: str | os.PathLike[str]) -> Iterator[Path]:
    """Temporary file that replaces ``path`` (or the file it links to) when the block ends.

    Args:
        path: The file. Where the block fails, it stays as it was.

    Raises:
        InputError: If the file cannot be written.
    """
    target = Path(path)
    try:
        file = _replaceable(target)
        if file is not None:
            with _beside(file) as temporary:
                yield temporary
            return
        from tempfile import TemporaryDirectory  # brings more than a command that writes no link needs

        with TemporaryDirectory(prefix="coppice-") as folder:
            temporary = Path(folder) / "content"
            yield temporary
            with temporary.open("rb") as written, _through(target) as out:
                shutil.copyfileobj(written, out)
    except OSError as error:
        raise _cannot_write(target, error) from None


def write_atomically(path: str | os.PathLike[str], data: bytes | Iterable[bytes]) -> None:
    """Write ``data`` to ``path`` atomically.

    Args:
        path: The file; what is no regular file gets the bytes as they come.
        data: Its content, whole or in pieces that are made as they are written.

    Raises:
        InputError: If the file cannot be written.
    """
    target = Path(path)
    pieces = (data,) if isinstance(data, bytes) else data
    try:
        file = _replaceable(target)
        if file is None:
            with _through(target) as out:
                out.writelines(pieces)
        else:
            with _beside(file) as temporary, temporary.open("xb") as out:
                out.writelines(pieces)
    except OSError as error:
        raise _cannot_write(target, error) from None


class AppendedFile:
    """An append-only file: each addition is one write, so that an interruption leaves whole additions.

    What is no regular file has nothing to read back and nothing to cut off; it is opened once and stays open, so that
    the reader of a FIFO sees one stream.

    Args:
        path: The file, which need not be there.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        self._stream: BinaryIO | None = None

    def __del__(self) -> None:
        if self._stream is not None:
            self._stream.close()

    @property
    def is_stream(self) -> bool:
        """Whether the path exists and is no regular file."""
        try:
            return not stat.S_ISREG(self.path.stat().st_mode)
        except FileNotFoundError:
            return False

    def content(self) -> bytes:
        """Content of the file; empty where it does not exist, or is no regular file.

        Raises:
            OSError: If it cannot be read.
        """
        return self.path.read_bytes() if self.path.exists() and not self.is_stream else b""

    def keep(self, most_bytes: int) -> None:
        """Truncate to ``most_bytes``.

        Raises:
            OSError: If that cannot be done.
        """
        if self.path.exists() and not self.is_stream:
            os.truncate(self.path, most_bytes)

    def append(self, data: bytes, *, flush: bool = False) -> None:
        """Add ``data`` at the end.

        Args:
            data: What to add.
            flush: It shall be on the disk before this returns.

        Raises:
            OSError: If the file cannot be written.
        """
        if self._stream is None and self.is_stream:
            self._stream = _through(self.path)
        if self._stream is not None:
            self._stream.write(data)
            self._stream.flush()
            return
        with self.path.open("ab", buffering=0) as file:
            file.write(data)
            if flush:
                os.fsync(file.fileno())


def _replaceable(target: Path) -> Path | None:
    """The regular file that a rename may replace, links followed; None for what has to be written to where it is."""
    place = Path(os.path.realpath(target))
    try:
        found = target.stat()
    except FileNotFoundError:
        return place
    if not stat.S_ISREG(found.st_mode):
        return None
    try:
        same = os.path.samestat(found, place.lstat())
    except FileNotFoundError:  # an open descriptor of a file that has lost its name
        same = False
    return place if same and _descriptor_of(found) is None else None


def _descriptor_of(found: os.stat_result) -> int | None:
    """Standard output or standard error, where it is the regular file ``found``."""
    for descriptor in (1, 2):
        with suppress(OSError):
            if os.path.samestat(found, os.fstat(descriptor)):
                return descriptor
    return None


def _through(target: Path) -> BinaryIO:
    """What is no regular file, or is held open, for writing: neither made nor replaced."""
    descriptor = _descriptor_of(target.stat())
    if descriptor is not None:
        (sys.stdout if descriptor == 1 else sys.stderr).flush()  # what was printed before stands before
        handle = os.dup(descriptor)
    else:
        handle = os.open(target, os.O_WRONLY | os.O_TRUNC)
    return os.fdopen(handle, "wb")


@contextmanager
def _beside(file: Path) -> Iterator[Path]:
    """A temporary name beside a regular file, which is replaced when the block ends and keeps its mode and owner."""
    temporary = file.with_name(f".{file.name}.{os.urandom(4).hex()}.tmp")
    try:
        yield temporary
        _flush(temporary)
        with suppress(FileNotFoundError):
            _like(temporary, file.stat())
        temporary.replace(file)
    finally:
        temporary.unlink(missing_ok=True)
    with suppress(OSError):
        _flush(file.parent)  # a rename is on the disk only once its directory is


def _like(temporary: Path, old: os.stat_result) -> None:
    """Give a new file the mode of the old one, and its owner where that is allowed."""
    with suppress(OSError):
        if os.geteuid() == 0:
            os.chown(temporary, old.st_uid, old.st_gid)
    with suppress(OSError):
        temporary.chmod(old.st_mode & 0o777)


def _cannot_write(target: Path, error: OSError) -> InputError:
    return InputError(f"cannot write {target} ({error.strerror or error}): choose another place.")


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
