"""Several threads meet a type for the first time."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from coppice.decoding import JSON_FAULTS, json_fault


def test_types_are_met_by_one_thread_at_a_time() -> None:
    """msgspec 0.22 crashes where two threads decode a type for the first time at once."""
    decoding = re.compile(r"msgspec\.(?:(?:json|msgpack)\.decode\([^\n]*type=|json\.Decoder\(|convert\()")
    for file in (Path(__file__).parents[1] / "src").rglob("*.py"):
        text = file.read_text()
        for found in decoding.finditer(text):
            line = text[text.rfind("\n", 0, found.start()) : text.find("\n\n", found.end())]
            assert (
                "decodable(" in line or ">>>" in line or "Decoder(list," in line or file.name == "decoding.py"
            ), f"{file.name}: {found.group()} without decodable"


def test_what_is_wrong_with_json_has_a_line_and_a_column() -> None:
    """Nobody finds a byte; so no message takes the words of msgspec as they are."""
    for file in (Path(__file__).parents[1] / "src").rglob("*.py"):
        text = file.read_text()
        for found in re.finditer(r"except [^\n]*(msgspec\.DecodeError|JSON_FAULTS)[^\n]* as error:\n", text):
            assert "json_fault(" in text[found.end() : found.end() + 400], (
                f"{file.name}: {found.group().strip()}"
            )
    for text, words in (
        (b'{"a":\n  1 2}', "not JSON: expected ',' or '}' at line 2, column 5"),
        ('{"\u00e4\u00f6": nan}', "not JSON: nan, which JSON has no number for, at line 1, column 8"),
        (b'{"a": -Infinity}', "not JSON: -Infinity, which JSON has no number for, at line 1, column 7"),
        (b'{"a": [1, 2,]}', "not JSON: trailing comma in array at line 1, column 13"),
        (b"[1]\n\nmore", "not JSON: trailing characters at line 3, column 1"),
        (b"\xef\xbb\xbf{}", "not JSON: a byte order mark at line 1, column 1"),
        (b" \n", "not JSON: empty"),
        (b"[\n[", "not JSON: cut off at line 2, column 2"),
        (b'["\xc3\xa4\xff"]', "not JSON: not UTF-8 text at line 1, column 4"),
    ):
        with pytest.raises(JSON_FAULTS) as caught:
            msgspec.json.decode(text)
        assert json_fault(caught.value, text) == words
    for error in (
        UnicodeDecodeError(
            "utf-8", b"\xff", 0, 1, "invalid start byte"
        ),  # msgspec 0.22, from the string's start
        msgspec.DecodeError("Invalid UTF-8 encoded string"),  # msgspec 0.23
    ):
        assert json_fault(error, b'["a", "\xff"]') == "not JSON: not UTF-8 text at line 1, column 8"


def test_threads_may_decode_a_type_for_the_first_time_at_once() -> None:
    run = """
import sys, threading, msgspec
from coppice.decoding import decodable
sys.setswitchinterval(1e-6)
for number in range(60):
    inner = msgspec.defstruct(f"Inner{number}", [(f"f{each}", int | None, None) for each in range(40)])
    outer = msgspec.defstruct(f"Outer{number}", [(f"g{each}", list[inner] | None, None) for each in range(20)])
    data = msgspec.json.encode({f"g{each}": [{"f0": 1, "f39": 2}] for each in range(20)})
    together = threading.Barrier(3)
    def decode():
        together.wait()
        assert msgspec.json.decode(data, type=decodable(outer)).g19[0].f39 == 2
    threads = [threading.Thread(target=decode) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
"""
    done = subprocess.run(
        [sys.executable, "-c", run], capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stderr
