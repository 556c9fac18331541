"""Time of the cores as the kernel writes it down."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from coppice.run.bench.measuring import busy_share, core_times

STAT = "cpu  40 1 9 800 100 20 5 25 30 7\ncpu0 40 1 9 800 100 20 5 25 30 7\nintr 12345\n"


def test_all_cores_together_guests_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Path, "read_text", lambda _: STAT)
    assert core_times() == (900, 1000)


@pytest.mark.parametrize("text", ["", "cpu", "cpu  1 2 3", "cpu  a b c d e f g h"])
def test_what_cannot_be_read_is_not_known(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Path, "read_text", lambda _: text)
    assert core_times() is None


def test_a_system_that_does_not_tell(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(_: Path) -> str:
        raise FileNotFoundError

    monkeypatch.setattr(Path, "read_text", missing)
    assert core_times() is None
    assert busy_share((0.0, 1.0), core_times()) == -1


def test_no_time_has_passed() -> None:
    assert busy_share((900.0, 1000.0), (900.0, 1000.0)) == -1


@pytest.mark.skipif(sys.platform != "linux", reason="Linux tells")
def test_here() -> None:
    found = core_times()
    assert found is not None
    assert 0 < found[0] <= found[1]
