"""Regression check of a tuning: no size may be slower with the rules than by default, beyond noise."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from coppice.errors import InputError
from coppice.tuning.exports import deployed_environment
from coppice.tuning.mpi_switch import DEPLOYED
from coppice.tuning.records import CallShape, TimedRun, read_runs
from coppice.tuning.statistics import Verdict, compare, holm
from coppice.tuning.sweep import sweep_mpi
from coppice.tuning.table import RuleTable
from coppice.tuning.worker import Spec

__all__ = ["Checked", "check_runs", "measured_again"]


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

    def record(self) -> dict[str, Any]:
        """Everything as JSON values."""
        return {
            "collective": self.shape.collective.value,
            "nodes": self.shape.nodes,
            "ranks": self.shape.ranks,
            "size_bytes": self.size_bytes,
            "rule": self.rule,
            "gain": self.verdict.gain,
            "low": self.verdict.low,
            "high": self.verdict.high,
            "p_slower": self.p_slower,
            "slower": self.slower,
        }


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


def measured_again(
    rules: RuleTable,
    known: Sequence[TimedRun],
    *,
    rounds: int,
    ranks: int = 0,
    lab: str | None = None,
    launcher: str | None = None,
    options: Sequence[str] = (),
) -> tuple[TimedRun, ...]:
    """Measurements of the library with the rules in use, at the collectives and sizes of others.

    Args:
        rules: The rules.
        known: The others.
        rounds: Rounds of the sweep.
        ranks: Number of ranks, see :func:`coppice.tuning.sweep.sweep_mpi`.
        lab: Lab to run in.
        launcher: Path of the launcher.
        options: Further words for the launcher.
    """
    with tempfile.TemporaryDirectory(prefix="coppice-tune-") as directory:
        output = Path(directory) / "runs.jsonl"
        sweep_mpi(
            Spec(
                library=rules.library,
                collectives=list(dict.fromkeys(run.collective for run in known)),
                sizes=sorted({run.size_bytes for run in known}),
                rounds=rounds,
                output=str(output),
                deployed=True,
            ),
            ranks=ranks,
            lab=lab,
            launcher=launcher,
            options=options,
            environment=deployed_environment(rules, Path(directory)),
        )
        return read_runs([output])
