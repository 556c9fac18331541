"""Exported CUDA kernels compiled for threads, by way of an emulation of NCCL's device interface."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

import pytest

from support.paths import TESTS


def compiled_for_threads(folder: Path, kernels: Sequence[Path], body: Sequence[str]) -> Path:
    """A program of these kernels and the body of its ``main(int, char** argument)``."""
    compiler = shutil.which("g++") or shutil.which("c++")
    if compiler is None:
        pytest.skip("no C++ compiler")
    lines = ['#include "nccl_device_emulation.h"', *(f'#include "{path}"' for path in kernels)]
    lines += ["int main(int, char** argument) {", *body, "}\n"]
    (folder / "main.cc").write_text("\n".join(lines))
    flags = ("-std=c++20", "-O0", "-Wall", "-Wextra", "-pthread", "-I", str(TESTS / "support"))
    command = [compiler, *flags, "-o", str(folder / "main"), str(folder / "main.cc")]
    made = subprocess.run(command, capture_output=True, text=True, timeout=300)
    if "c++20" in made.stderr or "barrier" in made.stderr:
        pytest.skip("the C++ compiler has no std::barrier")
    assert (made.returncode, made.stderr) == (0, "")
    return folder / "main"
