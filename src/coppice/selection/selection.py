"""What a library would pick, and why."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from coppice.collectives import Collective
from coppice.planners.algorithms.algorithm import Value
from coppice.selection.nccl_model import CostCell
from coppice.selection.rules import RuleTest

__all__ = ["Selection", "SelectionPart"]


@dataclass(frozen=True, kw_only=True)
class SelectionPart:
    """A pick inside a composition, such as the reduction within each box."""

    role: str
    selection: Selection


@dataclass(frozen=True, kw_only=True, repr=False)
class Selection:
    """The pick of a library for one call.

    Attributes:
        library: Name of the library, as it writes it.
        version: Version whose rules these are.
        source: File of the library that holds them.
        function: The library's own function.
        collective: What it performs.
        ranks: Number of ranks, P.
        size_bytes: M (see :mod:`coppice.collectives`).
        component: Part of the library that decides.
        algorithm: The library's own name of the algorithm.
        id: Number that the library gives it, or None where it has none.
        runs_as: The algorithm that the library then runs: another one where the chosen one falls back on it.
        ours: Name in the catalogue of what runs, or None where that has no such schedule.
        parameters: Parameters of the algorithm of the catalogue.
        reason: Why ``ours`` is None.
        why: Trail of the rules that were tested.
        parts: Picks inside a composition.
        assumptions: What was not given and had to be assumed.
        notes: What differs between the pick and the schedule, and other traps.
        cells: Predicted times of a library with a cost model, in its own order.
    """

    library: str
    version: str
    source: str
    function: str
    collective: Collective
    ranks: int
    size_bytes: int
    component: str
    algorithm: str
    id: int | None = None
    runs_as: str = ""
    ours: str | None = None
    parameters: Mapping[str, Value] = field(default_factory=dict)
    reason: str | None = None
    why: tuple[RuleTest, ...] = ()
    parts: tuple[SelectionPart, ...] = ()
    assumptions: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    cells: tuple[CostCell, ...] = ()

    def __repr__(self) -> str:
        runs = f", which runs {self.runs_as}" if self.runs_as not in ("", self.algorithm) else ""
        return (
            f"Selection({self.library}: {self.function} of {self.size_bytes:,} bytes "
            f"among {self.ranks:,} ranks by {self.algorithm}{runs})"
        )

    @property
    def cell(self) -> CostCell | None:
        """The cell that was chosen, None without a cost model."""
        timed = [cell for cell in self.cells if cell.time_us is not None]
        return min(timed, key=lambda cell: cell.time_us or 0.0, default=None)

    def record(self) -> dict[str, Any]:
        """All of it as JSON values."""
        return {
            "library": self.library,
            "version": self.version,
            "source": self.source,
            "function": self.function,
            "collective": self.collective.value,
            "ranks": self.ranks,
            "size_bytes": self.size_bytes,
            "component": self.component,
            "algorithm": self.algorithm,
            "id": self.id,
            "runs_as": self.runs_as or self.algorithm,
            "protocol": None if self.cell is None else self.cell.protocol,
            "time_us": None if self.cell is None else self.cell.time_us,
            "ours": self.ours,
            "parameters": dict(self.parameters),
            "reason": self.reason,
            "why": [
                {"table": s.table, "rule": s.rule, "values": s.values, "held": s.held, "depth": s.depth}
                for s in self.why
            ],
            "parts": [{"role": part.role, **part.selection.record()} for part in self.parts],
            "assumptions": list(self.assumptions),
            "notes": list(self.notes),
            "cells": [cell.record() for cell in self.cells],
        }
