"""Published inputs are answered rightly; `python tests/cases.py` prints the same as a table."""

from __future__ import annotations

import pytest

from cases import all_checks
from published.check import Check
from support.shared_data import SHARED

CASES = SHARED / "cases"


@pytest.mark.skipif(not CASES.is_dir(), reason=f"published inputs not found at {CASES}: set COPPICE_SHARED")
@pytest.mark.parametrize("check", all_checks(), ids=lambda check: f"{check.case}:{check.wants}")
def test_published_input_is_answered_rightly(check: Check) -> None:
    assert not check.run(CASES)
