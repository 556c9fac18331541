"""Interface of synthesis methods: options, request and result.

The methods of synthesis by name; a method's module is loaded when it is asked for.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from importlib import import_module
from typing import Any

import msgspec

from coppice.bounds.problem import Problem
from coppice.collectives import Collective
from coppice.decoding import decodable
from coppice.errors import InputError
from coppice.schedule.forest import Forest
from coppice.schedule.plan import Parameter
from coppice.schedule.schedule import Schedule


class Status(StrEnum):
    """Outcome of a search."""

    SAT = "sat"
    """There is a schedule, and here it is."""
    UNSAT = "unsat"
    """It is proved that there is none of the kind that was asked for."""
    UNKNOWN = "unknown"
    """The search ended before it knew: a time limit, or Ctrl-C."""


@dataclass(frozen=True, kw_only=True)
class Request:
    """Request to a method."""

    problem: Problem  # The collective on its topology
    options: Any  # The method's own options, an instance of its :attr:`SynthesisMethod.options`
    # Where random choices begin; the same seed gives the same schedule, whatever the number of cores
    seed: int = 0
    # Of :func:`time.monotonic`, when to stop and give the best found so far; None: when it is done
    deadline: float | None = None
    on_progress: Callable[[str], None] | None = None  # Called with a few words now and then

    @property
    def seconds_left(self) -> float | None:
        """Seconds until the deadline, at least 0; None without one."""
        return None if self.deadline is None else max(0.0, self.deadline - time.monotonic())

    def report(self, words: str) -> None:
        """Report progress."""
        if self.on_progress is not None:
            self.on_progress(words)


@dataclass(frozen=True, eq=False, kw_only=True)
class Synthesis:
    """Result of a method."""

    status: Status  # What it found out
    # The schedule or forest; None where there is none, or none was found in time
    body: Schedule | Forest | None = None
    # What a plan file says about how it was made: what the answer depends on, so no seconds
    parameters: Mapping[str, Parameter] = field(default_factory=dict)
    interrupted: bool = False  # Ctrl-C ended the search; the body is the best found until then
    # What the method has to say beside, as JSON values
    details: Mapping[str, Any] = field(default_factory=dict)
    words: tuple[tuple[str, str], ...] = ()  # The same for people, label and text


@dataclass(frozen=True, kw_only=True)
class SynthesisMethod:
    """A method of synthesis."""

    name: str  # What users call it
    about: str  # What it is, in a line, with its publication
    collectives: tuple[Collective, ...]  # What it synthesises
    # A `msgspec.Struct` (frozen, keyword-only) with its own options and their defaults
    options: type[msgspec.Struct]
    # The search. It raises InputError for what it cannot be asked, UnreachableError where ranks are not
    # connected, and on Ctrl-C gives the best found so far as an interrupted :class:`Synthesis`, or lets
    # KeyboardInterrupt pass if there is none yet.
    run: Callable[[Request], Synthesis]

    def read_options(self, given: Mapping[str, Any]) -> msgspec.Struct:
        """Parse options from values by name, texts from the command line included."""
        known = self.options.__struct_fields__
        for name in given:
            if name not in known:
                has = f"it takes {', '.join(f'`{each}`' for each in known)}" if known else "it takes none"
                raise InputError(f"expected options of method {self.name}, found `{name}`: {has}.")
        try:
            return msgspec.convert(dict(given), decodable(self.options), strict=False)
        except msgspec.ValidationError as error:
            raise InputError(
                f"expected options that method {self.name} can use, found otherwise: {error}."
            ) from None


METHODS = {
    "sccl": "coppice.planners.synthesis.sccl.search",
    "taccl": "coppice.planners.synthesis.taccl.stages",
    "te-ccl": "coppice.planners.synthesis.te_ccl.search",
    "tacos": "coppice.planners.synthesis.tacos",
    "syccl": "coppice.planners.synthesis.syccl.sketches",
    "blink": "coppice.planners.synthesis.blink.packing",
}
"""Module of each method; it has the :class:`SynthesisMethod` as ``METHOD``."""


def method_named(name: str) -> SynthesisMethod:
    """Look up a method by name."""
    if name not in METHODS:
        raise InputError(f"expected a method of synthesis ({', '.join(METHODS)}), found {name!r}.")
    method: SynthesisMethod = import_module(METHODS[name]).METHOD
    return method
