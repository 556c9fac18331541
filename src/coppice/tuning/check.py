"""Regression check of a tuning: no size may be slower with the rules than by default, beyond noise."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from coppice.errors import InputError
from coppice.tuning.mpi_switch import DEPLOYED
from coppice.tuning.records import CallShape, TimedRun
from coppice.tuning.statistics import Verdict, compare, holm
from coppice.tuning.table import RuleTable

__all__ = ["Checked", "check_runs"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Checked:
    """A size that has a rule, or was measured with the rules in use.

    Attributes:
        shape: Collective, nodes and ranks.
        size_bytes: M.
        rule: What the table says, in words.
        verdict: The rule beside the default.
        p_slower: Probability of such a loss by chance, corrected for the number of sizes.
        slower: It is slower than the default beyond noise.
    """

    shape: CallShape
    size_bytes: int
    rule: str
    verdict: Verdict
    p_slower: float
    slower: bool


def check_runs(
    table: RuleTable, runs: Sequence[TimedRun], *, alpha: float = 0.05, tolerance: float = 0.03, seed: int = 0
) -> tuple[Checked, ...]:
    """Compare what a table says with the default, at every size that was measured.

    Measurements with the rules in use (choice ``deployed``) count for every size; others where they are of the choice
    that the table names.

    Args:
        table: The table.
        runs: Measurements made after the fit.
        alpha: Probability with which a table that loses nothing may fail.
        tolerance: Relative loss that is no failure.
        seed: For everything random.

    Raises:
        InputError: If the measurements are of another library, or no rule was measured.
    """
    if runs and runs[0].library != table.library:
        msg = f"expected measurements of {table.library}, found {runs[0].library}: check the table of that library."
        raise InputError(msg)
    found: list[tuple[TimedRun, str]] = []
    for run in runs:
        rule = next(
            (
                each
                for each in table.rules
                if each.shape == run.shape and each.first_bytes <= run.size_bytes <= each.last_bytes
            ),
            None,
        )
        named = None if rule is None else rule.choice
        deployed = run.choice.algorithm == DEPLOYED
        if not run.refusal and (deployed or (named is not None and run.choice == named)):
            found.append((run, str(named or "default")))
    if not found:
        msg = "no rule of the table was measured: measure it again with `ranks=N` or `lab=NAME`."
        raise InputError(msg)
    verdicts = [compare(run.default_us, run.time_us, paired=run.paired, seed=seed) for run, _ in found]
    corrected = holm([verdict.p_slower for verdict in verdicts])
    return tuple(
        Checked(
            shape=run.shape,
            size_bytes=run.size_bytes,
            rule=words,
            verdict=verdict,
            p_slower=p_value,
            slower=bool(run.wrong) or (p_value <= alpha and verdict.gain < 1 - tolerance),
        )
        for (run, words), verdict, p_value in zip(found, verdicts, corrected, strict=True)
    )
