"""The programs of examples/language, and the numbers of ranks that each of them serves."""

from __future__ import annotations

from functools import cache
from typing import Any

from coppice.language import CompiledProgram, compile_program
from support.paths import ROOT

FOLDER = ROOT / "examples" / "language"
NAMES = sorted(path.stem for path in FOLDER.glob("*.py"))
RANKS = (1, 2, 3, 5)
POWERS_ONLY = ("all_gather_recursive_doubling", "all_reduce_halving_doubling")
WITH_BOXES = ("all_reduce_hierarchical", "all_to_all_two_step", "all_to_all_three_step", "all_to_next")
NO_RUNTIME = ("all_to_next",)
"""All-to-alls with demands, which runtimes have no call for."""


def serves(name: str, ranks: int) -> bool:
    if name == "all_to_next":
        return ranks > 1
    return name not in POWERS_ONLY or not ranks & (ranks - 1)


@cache
def compiled(name: str, ranks: int, boxes: int | None = None) -> CompiledProgram:
    """An example, compiled."""
    parameters: dict[str, Any] = {"ranks": ranks}
    if name in WITH_BOXES:
        parameters["boxes"] = boxes or (2 if ranks % 2 == 0 else 1)
    return compile_program(FOLDER / f"{name}.py", parameters=parameters)
