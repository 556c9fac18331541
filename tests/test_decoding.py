"""Several threads meet a type for the first time."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path


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
