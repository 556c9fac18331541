"""The marker of the tests that need published files."""

from __future__ import annotations

import pytest


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line(
        "markers", "corpora: needs COPPICE_CORPORA=DIRECTORY with clones of published schedule collections"
    )
