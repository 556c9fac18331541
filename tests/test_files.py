"""Files read up to a limit, and written whole or not at all."""

from __future__ import annotations

import io
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from coppice.errors import InputError
from coppice.files import decode_utf8, file_name, read_bytes, read_text, replacing, write_atomically


def test_reads_a_file_and_standard_input(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "a.txt"
    path.write_bytes(b"\xef\xbb\xbfabc")
    assert read_bytes(path) == b"\xef\xbb\xbfabc"
    assert read_text(path) == "abc"
    assert file_name(path) == str(path)
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"from a pipe")))
    assert read_bytes("-", most_bytes=11) == b"from a pipe"


def test_reads_up_to_a_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What has more is refused however much more, also where the file is read in parts."""
    monkeypatch.setattr("coppice.files._PART_BYTES", 3)
    path = tmp_path / "a.txt"
    path.write_bytes(b"x" * 10)
    assert read_bytes(path, most_bytes=10) == b"x" * 10
    for most in (0, 1, 8, 9):
        with pytest.raises(InputError, match="is larger than 0 MiB: split it"):
            read_bytes(path, most_bytes=most, too_large="split it.")
    with pytest.raises(InputError, match="larger than 1 MiB"):
        read_bytes("/dev/zero", most_bytes=2**20)


def test_says_why_it_cannot_read(tmp_path: Path) -> None:
    with pytest.raises(
        InputError, match=r"cannot read the plan .*x \(No such file or directory\): look again\."
    ):
        read_bytes(tmp_path / "x", what="the plan", hint="look again")
    with pytest.raises(InputError, match=r"cannot read .*\(Is a directory\)"):
        read_bytes(tmp_path)
    with pytest.raises(InputError, match=r"cannot read .*null"):
        read_bytes("a\0b")
    with pytest.raises(InputError, match=r"a\.csv is not UTF-8 text \(byte 1\)"):
        decode_utf8(b"a\xff", file="a.csv")


def test_writes_whole_or_pieces(tmp_path: Path) -> None:
    path = tmp_path / "a"
    write_atomically(path, b"one")
    assert path.read_bytes() == b"one"
    write_atomically(path, iter([b"t", b"wo"]))
    assert path.read_bytes() == b"two"
    assert [each.name for each in tmp_path.iterdir()] == ["a"]


def test_what_fails_leaves_the_old_file(tmp_path: Path) -> None:
    path = tmp_path / "a"
    path.write_bytes(b"old")

    def pieces(error: Exception) -> Iterator[bytes]:
        yield b"half"
        raise error

    with pytest.raises(ValueError, match="no more"):
        write_atomically(path, pieces(ValueError("no more")))
    with pytest.raises(InputError, match="No space left"):
        write_atomically(path, pieces(OSError(28, "No space left")))
    assert path.read_bytes() == b"old"
    assert [each.name for each in tmp_path.iterdir()] == ["a"]


def test_the_file_appears_at_the_end(tmp_path: Path) -> None:
    path = tmp_path / "a"
    with replacing(path) as temporary:
        temporary.write_bytes(b"new")
        assert temporary.parent == tmp_path
        assert not path.exists()
    assert path.read_bytes() == b"new"


def test_says_why_it_cannot_write(tmp_path: Path) -> None:
    for path in (tmp_path / "absent" / "a", tmp_path):
        with pytest.raises(InputError, match=r"cannot write .*: choose another place\."):
            write_atomically(path, b"x")
    with pytest.raises(InputError, match="cannot write"), replacing(tmp_path / "a"):
        pass  # nothing was written under the temporary name
    assert not list(tmp_path.iterdir())
