"""Modules of the folder of benchmarks, which is no package, for tests of them and of the tables that they keep."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

BENCHMARKS = Path(__file__).resolve().parents[2] / "benchmarks"


def load_benchmark(name: str) -> ModuleType:
    """A module of the folder, imported once under a name of its own: several are called as packages of tests are."""
    unique = f"benchmark_{name}"
    if unique not in sys.modules:
        spec = importlib.util.spec_from_file_location(unique, BENCHMARKS / f"{name}.py")
        sys.modules[unique] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(sys.modules[unique])
    return sys.modules[unique]
