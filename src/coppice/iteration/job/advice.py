"""Recommend policies for a job: gain, share of the possible gain, and the framework flag that enables them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from coppice.iteration.job.compared import ComparedPolicies, ComparedPolicy
from coppice.iteration.policies.catalogue import POLICIES
from coppice.iteration.policies.step_plans import BASELINE
from coppice.text import seconds_text

if TYPE_CHECKING:
    from coppice.outputs.shapes.training import AdvisedPolicyJson

WORTH = 0.9
"""A simpler choice is enough if it takes so much of what the best one takes."""
LITTLE = 0.01
"""Gains below this share of the iteration are not worth a change."""


@dataclass(frozen=True, kw_only=True)
class AdvisedPolicies:
    """Policies with the share of the possible gain that they reach."""

    name: str  # The policies
    seconds: float  # Time of an iteration
    share: float  # Share of the way from the baseline to what nothing beats
    assumes: tuple[str, ...]  # What they need
    # What switches each on in PyTorch, DeepSpeed or Megatron-LM as they are; empty: nothing does for one
    stock: tuple[str, ...]

    def record(self) -> AdvisedPolicyJson:
        """The figures as JSON values."""
        return {
            "policy": self.name,
            "iteration_seconds": self.seconds,
            "share_of_possible_gain": self.share,
            "assumes": list(self.assumes),
            "stock": list(self.stock),
        }


@dataclass(frozen=True, kw_only=True)
class Advice:
    """Recommendation for a job."""

    baseline_seconds: float  # Time of an iteration of the baseline
    lower_bound_seconds: float  # What nothing that was compared beats
    # The simplest that takes nine tenths of what the best takes; None: nothing gains a hundredth
    worth: AdvisedPolicies | None
    best: AdvisedPolicies  # The fastest
    stock: AdvisedPolicies | None  # The fastest that flags switch on; None: none that gains

    @property
    def left_seconds(self) -> float:
        """Time above the bound, up to rounding."""
        taken = self.worth.seconds if self.worth else self.baseline_seconds
        return max(0.0, taken - self.lower_bound_seconds)

    def record(self) -> dict[str, Any]:
        """The figures as JSON values."""
        return {
            "baseline_seconds": self.baseline_seconds,
            "lower_bound_seconds": self.lower_bound_seconds,
            "possible_gain_seconds": self.baseline_seconds - self.lower_bound_seconds,
            "worth_its_trouble": self.worth.record() if self.worth else None,
            "left_seconds": self.left_seconds,
            "best": self.best.record(),
            "best_by_flags": self.stock.record() if self.stock else None,
        }

    def sentences(self) -> list[str]:
        """The recommendation as text."""
        possible = self.baseline_seconds - self.lower_bound_seconds
        gained = _percent(possible / self.baseline_seconds if self.baseline_seconds else 0.0)
        least = seconds_text(self.lower_bound_seconds)
        words = f"Without a policy an iteration takes {seconds_text(self.baseline_seconds)}"
        found = [f"{words}, and none takes less than {least}: {gained} can be gained."]
        if self.worth is None:
            found.append("No policy gains 1% of that time: leave it as it is.")
            return found
        found.append(
            f"{self.worth.name} is worth its trouble: {seconds_text(self.worth.seconds)}, which takes "
            f"{_percent(self.worth.share)} of what is possible and leaves {seconds_text(self.left_seconds)}."
        )
        if self.worth.assumes:
            found.append(f"It needs {'; '.join(self.worth.assumes)}.")
        if self.best.name != self.worth.name:
            found.append(
                f"The fastest is {self.best.name} with {seconds_text(self.best.seconds)} ({_percent(self.best.share)})."
            )
        if self.stock is None:
            found.append("Nothing that PyTorch, Megatron-LM or DeepSpeed switch on by a flag gains here.")
        else:
            flags = "; ".join(self.stock.stock)
            found.append(
                f"By flags as they are: {self.stock.name} with {seconds_text(self.stock.seconds)} "
                f"({_percent(self.stock.share)}): {flags}."
            )
        return found


def advise(found: ComparedPolicies) -> Advice:
    """Recommend from a comparison of policies on a job or on a workload of layers.

    Args:
        found: Policies beside each other; those whose gradients are late, or that do not fit, are left out.
    """
    family = next(iter(found.baselines))
    baseline, least = found.baselines[family], found.lower_bound_seconds(family)
    rows = [each for each in found.rows if each.family == family and not each.staleness]
    rows = [each for each in rows if each.fits] or rows

    def advised(row: ComparedPolicy) -> AdvisedPolicies:
        names = _names(row)
        stock = [_stock(name) for name in names]
        return AdvisedPolicies(
            name=row.name,
            seconds=row.seconds,
            share=min(1.0, (baseline.seconds - row.seconds) / (baseline.seconds - least))
            if baseline.seconds > least
            else 0.0,
            assumes=tuple(
                POLICIES[name].assumes for name in names if POLICIES[name].assumes not in ("", "nothing")
            ),
            stock=tuple(each for each in stock if each) if all(stock) else (),
        )

    best = rows[0]
    enough = baseline.seconds - max(WORTH * (baseline.seconds - best.seconds), LITTLE * baseline.seconds)
    worthy = [row for row in rows if row.seconds <= enough and row is not baseline]
    by_flags = [row for row in rows if row.seconds < baseline.seconds * (1 - 1e-9) and advised(row).stock]
    return Advice(
        baseline_seconds=baseline.seconds,
        lower_bound_seconds=least,
        worth=advised(_simplest(worthy)) if worthy else None,
        best=advised(best),
        stock=advised(by_flags[0]) if by_flags else None,
    )


def _simplest(rows: Iterable[ComparedPolicy]) -> ComparedPolicy:
    """Prefer the fewest policies; of these one that a framework flag enables, otherwise the fastest."""
    return min(rows, key=lambda row: (len(_names(row)), not all(map(_stock, _names(row))), row.seconds))


def _names(row: ComparedPolicy) -> list[str]:
    return [] if row.name == BASELINE else row.name.split("+")


def _stock(name: str) -> str | None:
    return POLICIES[name].stock


def _percent(share: float) -> str:
    return f"{100 * share:.3g}%"
