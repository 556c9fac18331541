"""Where reference data (oracles, real topology files) lies, for the tests that use it.

The data is not part of this repository: set COPPICE_SHARED, or keep a directory `shared` beside the checkout.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from support.paths import ROOT

SHARED = Path(os.environ.get("COPPICE_SHARED", ROOT.parent / "shared"))

needs_shared = pytest.mark.skipif(
    not SHARED.is_dir(), reason=f"reference data not found at {SHARED}: set COPPICE_SHARED to its directory"
)


def forest_oracle() -> list[dict[str, Any]]:
    """Entries of the forest oracle, or none where it is absent."""
    path = SHARED / "oracles" / "forest_oracle.json"
    if not path.is_file():
        return []
    entries: list[dict[str, Any]] = json.loads(path.read_text())["topologies"]
    return entries
