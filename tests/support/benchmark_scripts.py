"""Scripts of the folders of benchmarks and docs, which are no packages, as modules for tests."""

from __future__ import annotations

import importlib.util
import sys
from types import ModuleType

from support.paths import ROOT

BENCHMARKS = ROOT / "benchmarks"


def load_benchmark(name: str, *, folder: str = "benchmarks") -> ModuleType:
    """A script, imported once under a name of its own: several are called as packages of tests are."""
    unique = f"{folder}_{name}"
    if unique not in sys.modules:
        spec = importlib.util.spec_from_file_location(unique, ROOT / folder / f"{name}.py")
        sys.modules[unique] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(sys.modules[unique])
    return sys.modules[unique]
