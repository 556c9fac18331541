"""A solver of mixed-integer programs that is interrupted before it finds anything."""

from __future__ import annotations

import pytest

from coppice.planners.synthesis.mip.program import MixedProgram, MixedSolution


@pytest.fixture
def interrupted_solver(monkeypatch: pytest.MonkeyPatch) -> None:
    infinity = float("inf")
    nothing = MixedSolution(
        values=None, objective=infinity, bound=-infinity, infeasible=False, optimal=False, interrupted=True
    )
    monkeypatch.setattr(MixedProgram, "solve", lambda *_, **__: nothing)
