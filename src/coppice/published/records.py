"""Read the records of published claims: what was published, which commands ask for it here, how both compare."""

from __future__ import annotations

import re
import tomllib
from functools import cache
from importlib.resources import files
from typing import Literal

import msgspec

from coppice.decoding import decodable
from coppice.errors import InputError
from coppice.published.formulas import names_in, value_of
from coppice.text import suggestion

__all__ = ["Claim", "Recorded", "Run", "anchor", "claims", "claims_of"]

Sense = Literal["more", "less", "equal"]


class Run(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A command of ours, and the number that is taken out of its JSON.

    Attributes:
        command: The command as people type it; it is run with `--json`.
        value: A path or a formula over paths (:mod:`coppice.published.formulas`); none: the seconds of wall-clock time
            that the command takes.
    """

    command: str
    value: str | None = None


class Recorded(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A figure that a benchmark measured, for what takes longer than a command may, or needs hardware.

    Attributes:
        value: The figure, or a formula over figures of the page.
        benchmark: Page of `benchmarks/` that has it.
        quote: What stands there, from which a reader and a test find the figure.
        command: What measures it anew.
        date: When it was measured, as YYYY-MM-DD.
    """

    value: float | str
    benchmark: str
    quote: str
    command: str
    date: str

    @property
    def figure(self) -> float:
        """The value as a number.

        >>> Recorded(value="9 / 3", benchmark="a.md", quote="9", command="b", date="2026-01-01").figure
        3.0
        """
        return value_of(self.value, {}) if isinstance(self.value, str) else self.value


class Claim(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A published claim.

    Attributes:
        system: Name of the system, as `docs/survey.md` has it.
        claim: What is claimed, and in which setting, in a sentence without its figure.
        source: Where: paper, and section, table, abstract or repository.
        published: The figure; none: what is claimed is not a figure, and `value` 1 says that it holds.
        most: The end of the range where one was published, which begins at that figure.
        unit: Unit of the figure, such as times, GB/s, steps, s.
        evidence: How the figure is known: `read` in the paper, its abstract or its code; `derived` from its formulas;
            `reported` by others.
        sense: Whether `more` or `less` of it is better, or it has to be `equal`.
        neutral: The figure that would say that nothing is gained; none: 0.
        tolerance: Relative difference from the figure, counted from the neutral one, that counts as reached.
        runs: Commands by name; their numbers are the names of the formula.
        measured: The formula over names of runs; none: the only run's number.
        recorded: The figure of a benchmark instead of runs.
        setting: Name of the published setting that is simulated instead (:mod:`coppice.published.settings`).
        hardware: The hardware without which this cannot be measured.
        why: What explains a difference, or how the setting here differs.
    """

    system: str
    claim: str
    source: str
    published: float | None = None
    most: float | None = None
    unit: str = ""
    evidence: Literal["read", "derived", "reported"] = "read"
    sense: Sense = "equal"
    neutral: float = 0.0
    tolerance: float = 0.25
    runs: dict[str, Run] = {}
    measured: str | None = None
    recorded: Recorded | None = None
    setting: str | None = None
    hardware: str | None = None
    why: str = ""

    def __post_init__(self) -> None:
        ways = [self.runs or None, self.recorded, self.setting, self.hardware]
        if sum(way is not None for way in ways) != 1:
            raise ValueError(
                "expected one of `runs`, `recorded`, `setting` and `hardware`, found none or several"
            )
        if self.runs and set(names_in(self.formula)) - set(self.runs):
            raise ValueError(f"expected a formula over {', '.join(self.runs)}, found {self.formula}")

    @property
    def formula(self) -> str:
        """What is computed from the numbers of the runs.

        >>> Claim(system="a", claim="b", source="c", runs={"ring": Run(command="coppice schema")}).formula
        'ring'
        """
        return self.measured if self.measured is not None else next(iter(self.runs))


class _File(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    claim: list[Claim]


@cache
def claims() -> tuple[Claim, ...]:
    """All claims, in the order of the survey."""
    text = files("coppice.published").joinpath("claims.toml").read_text(encoding="utf-8")
    return tuple(msgspec.convert(tomllib.loads(text), decodable(_File)).claim)


def claims_of(system: str | None) -> tuple[Claim, ...]:
    """The claims of a system, or of all.

    Args:
        system: Its name or the beginning of it, in any case; none: all systems.

    Raises:
        InputError: If no system is called so.
    """
    found = claims()
    if system is None:
        return found
    named = tuple(each for each in found if each.system.casefold() == system.casefold()) or tuple(
        each for each in found if each.system.casefold().startswith(system.casefold())
    )
    if not named:
        known = dict.fromkeys(each.system for each in found)
        others = "docs/survey.md lists them."
        raise InputError(
            f"there is no system {system!r} with claims: {suggestion(system, known, otherwise=others)}"
        )
    return named


def anchor(system: str) -> str:
    """Anchor of a system's section on the page of claims, as Markdown makes it of the heading.

    >>> anchor("GC3 / MSCCLang")
    'gc3--mscclang'
    """
    return re.sub(r"[^\w -]", "", system.lower()).replace(" ", "-")
