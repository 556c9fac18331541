"""Files read up to a limit, and written whole or not at all."""

from __future__ import annotations

import io
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from coppice.errors import InputError
from coppice.files import (
    AppendedFile,
    decode_utf8,
    file_name,
    read_bytes,
    read_text,
    replacing,
    write_atomically,
)
from support.places import Reader, is_null_device, null_device


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


def test_a_device_is_written_to(tmp_path: Path) -> None:
    device = null_device(tmp_path / "null")
    write_atomically(device, b"x")
    write_atomically(device, iter([b"x", b"y"]))
    with replacing(device) as temporary:
        temporary.write_bytes(b"x")
    grows = AppendedFile(device)
    assert grows.content() == b""
    grows.append(b"x", flush=True)
    assert is_null_device(device)
    assert [each.name for each in tmp_path.iterdir()] == ["null"]


def test_a_fifo_is_written_to(tmp_path: Path) -> None:
    reader = Reader(tmp_path / "one")
    write_atomically(reader.path, iter([b"x", b"y"]))
    assert reader.content() == b"xy"
    reader = Reader(tmp_path / "two")
    with replacing(reader.path) as temporary:
        temporary.write_bytes(b"seek")
    assert reader.content() == b"seek"
    reader = Reader(tmp_path / "three")
    grows = AppendedFile(reader.path)
    assert grows.content() == b""
    for part in (b"a", b"b"):
        grows.append(part, flush=True)
    del grows
    assert reader.content() == b"ab"


def test_links_are_followed(tmp_path: Path) -> None:
    (tmp_path / "inner").mkdir()
    (tmp_path / "link").symlink_to(Path("inner") / "file")
    (tmp_path / "chain").symlink_to("link")
    for content in (b"new", b"replaced"):  # the first one makes the file
        write_atomically(tmp_path / "chain", content)
        assert (tmp_path / "inner" / "file").read_bytes() == content
    with replacing(tmp_path / "link") as temporary:
        temporary.write_bytes(b"again")
        assert temporary.parent == tmp_path / "inner"
    assert (tmp_path / "inner" / "file").read_bytes() == b"again"
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "chain").is_symlink()
    (tmp_path / "loop").symlink_to("loop")
    with pytest.raises(InputError, match="cannot write"):
        write_atomically(tmp_path / "loop", b"x")
    assert (tmp_path / "loop").is_symlink()


def test_a_link_to_a_device_is_followed(tmp_path: Path) -> None:
    device = null_device(tmp_path / "null")
    (tmp_path / "link").symlink_to("null")
    write_atomically(tmp_path / "link", b"x")
    assert is_null_device(device)
    assert (tmp_path / "link").is_symlink()


def test_a_replaced_file_keeps_its_mode(tmp_path: Path) -> None:
    path = tmp_path / "a"
    path.write_bytes(b"old")
    path.chmod(0o640)
    write_atomically(path, b"new")
    assert stat.S_IMODE(path.stat().st_mode) == 0o640


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="open descriptors have no names here")
@pytest.mark.parametrize("into", ["pipe", "file"])
def test_dev_stdout_is_standard_output(into: str, tmp_path: Path) -> None:
    """Also where it is a file that holds something already: nothing of it is lost, and all comes in order."""
    stdout = tmp_path / "stdout"  # as /dev/stdout is; what tests and fails must not replace that
    stdout.symlink_to("/proc/self/fd/1")
    program = (
        "import sys; from coppice.files import write_atomically; print('first'); "
        "write_atomically(sys.argv[1], b'second\\n'); print('third')"
    )
    command = [sys.executable, "-c", program, str(stdout)]
    if into == "pipe":
        assert subprocess.run(command, stdout=subprocess.PIPE, check=True).stdout == b"first\nsecond\nthird\n"
    else:
        path = tmp_path / "a"
        path.write_bytes(b"zeroth\n")
        with path.open("ab") as out:
            subprocess.run(command, stdout=out, check=True)
        assert path.read_bytes() == b"zeroth\nfirst\nsecond\nthird\n"
    assert stdout.is_symlink()


def test_growing_files_are_cut_and_read(tmp_path: Path) -> None:
    grows = AppendedFile(tmp_path / "a")
    assert grows.content() == b""
    grows.append(b"one")
    grows.append(b"two", flush=True)
    grows.keep(4)
    assert grows.content() == b"onet"
