"""Settings of all tests: what a busy machine takes long for is no failure, and each process keeps to one core."""

from __future__ import annotations

import gc
import os
import signal
from collections import Counter
from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, settings

from coppice.cli import output
from support.outputs import checked_document

# Read when numpy or torch is loaded. Arrays of tests are small: threads that share them out would mostly spin.
os.environ.setdefault("OMP_NUM_THREADS", "1")

# By default the collector looks for cycles after every 700 new objects, and thus often through all that tests which
# parse files or build schedules hold: up to two thirds of their time, for next to nothing that it finds.
gc.set_threshold(50_000, 20, 50)

# What a shell starts in the background ignores Ctrl-C, and so would all programs that tests start and interrupt.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# Draws of `make test` are the same each time, so that it says of a change what it says again; slow runs draw anew.
settings.register_profile("patient", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("repeatable", parent=settings.get_profile("patient"), derandomize=True)
settings.load_profile("patient" if os.environ.get("COPPICE_DRAWS") == "new" else "repeatable")


@pytest.fixture(autouse=True, scope="session")
def outputs_are_valid() -> Iterator[None]:
    """Hold every JSON that a command prints in this process to its schema."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(output, "document", checked_document)
        yield


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Of the cases of a test that is marked `spread(n)`, every n-th one is quick, and the others are slow."""
    seen: Counter[str] = Counter()
    for item in items:
        marker = item.get_closest_marker("spread")
        if marker is None or item.get_closest_marker("slow"):
            continue
        test = item.nodeid.partition("[")[0]
        if seen[test] % marker.args[0]:
            item.add_marker(pytest.mark.slow)
        seen[test] += 1


def pytest_collection_finish() -> None:
    """Let the garbage collector pass over what was collected: a million objects that live until the end."""
    gc.freeze()
