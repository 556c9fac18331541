"""What several tests of the plugins need, made once."""

from __future__ import annotations

from pathlib import Path

import pytest

from coppice.tuning.building import build_plugin


@pytest.fixture(scope="session")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The network plugin for NCCL, built once (nine seconds of a core)."""
    built = tmp_path_factory.mktemp("net") / "libnccl-net-coppice.so"
    build_plugin(built, kind="net")
    return built
