"""What several tests of the plugins need, made once."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path

import pytest

from coppice.tuning.building import build_plugin


@pytest.fixture(scope="session")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The network plugin for NCCL, built once for all processes that share the tests (nine seconds of a core).

    Files of its tests lie apart in the order of names, so that no process waits while another builds it.
    """
    run = tmp_path_factory.getbasetemp()
    shared = run.parent if "PYTEST_XDIST_WORKER" in os.environ else run
    built = shared / "libnccl-net-coppice.so"
    with (shared / "net.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not built.exists():
            build_plugin(built, kind="net")
    return built
