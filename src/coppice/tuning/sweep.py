"""Sweep an MPI library locally, by a launcher or in a lab, and check its rules by a second sweep."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from coppice.errors import CheckError, InputError
from coppice.run.processes import end_with_parent, stop
from coppice.selection.tables import FUNCTIONS
from coppice.tuning.exports import deployed_environment
from coppice.tuning.mpi_switch import DEPLOYED
from coppice.tuning.records import CallShape, TimedRun, read_runs, reopen
from coppice.tuning.statistics import ChoiceVerdict, compare, holm
from coppice.tuning.table import RuleTable
from coppice.tuning.worker import Spec

if TYPE_CHECKING:
    from coppice.outputs.shapes.deploying import CheckedRuleJson

COLLECTIVES = tuple(FUNCTIONS)
"""Collectives of MPI that can be tuned."""

_LAUNCHERS = {"open-mpi": "mpirun", "mpich": "mpiexec"}

_LAST_WORDS_S = 5.0


def sweep_mpi(
    spec: Spec,
    *,
    ranks: int = 0,  # Number of ranks; in a lab, all of its ranks take part
    lab: str | None = None,  # Name of a lab, None starts the launcher as it is
    launcher: str | None = None,  # Path of the launcher (default: `mpirun` or `mpiexec` on PATH)
    options: Sequence[str] = (),  # Further words for the launcher, such as `--hostfile hosts`
    environment: Mapping[str, str] | None = None,  # Further variables, such as those of a rules file to check
    timeout_s: float | None = None,  # After so many seconds all is stopped
) -> None:
    """Run a sweep; runs already in the output file are skipped."""
    output = Path(spec.output).absolute()
    spec = msgspec.structs.replace(spec, output=str(output))
    _check(spec)
    reopen(output)
    command = [sys.executable, "-m", "coppice.tuning.worker", msgspec.json.encode(spec).decode()]
    variables = {"OMP_NUM_THREADS": "1", **(environment or {})}
    if spec.library == "open-mpi":
        variables = {
            "OMPI_MCA_coll_tuned_use_dynamic_rules": "1",
            "OMPI_MCA_mpi_yield_when_idle": "1",
            **variables,
        }
    if lab is not None:
        from coppice.run.lab.launch import launch_mpi
        from coppice.run.lab.namespaces import find

        launch_mpi(
            find(lab),
            spec.library,
            command,
            launcher=launcher,
            options=options,
            environment=variables,
            timeout_s=timeout_s,
        )
        return
    if ranks < 2:
        raise InputError(
            f"expected `ranks` of 2 or more, or `lab`, found {ranks}: there is nothing to tune for one rank."
        )
    words = [launcher or _LAUNCHERS[spec.library], "-n", str(ranks), *options, *command]
    if spec.library == "open-mpi":
        words[1:1] = ["--oversubscribe"] if ranks > (os.cpu_count() or 1) and not options else []
        words[1:1] = ["--allow-run-as-root"] if os.geteuid() == 0 else []
    _run(words, variables, timeout_s)


def _check(spec: Spec) -> None:
    if spec.library not in _LAUNCHERS:
        raise InputError(f"expected the library open-mpi or mpich, found {spec.library!r}.")
    wrong = [collective for collective in spec.collectives if collective not in COLLECTIVES]
    if wrong or not spec.collectives or not spec.sizes or spec.rounds < 1:
        known = ", ".join(COLLECTIVES)
        found = f"found {', '.join(wrong)}" if wrong else "found nothing to measure"
        raise InputError(f"expected collectives out of {known}, sizes and a round at least, {found}.")


def _run(words: Sequence[str], variables: Mapping[str, str], timeout_s: float | None) -> None:
    try:
        process = subprocess.Popen(
            words,
            env={**os.environ, **variables},
            stdin=subprocess.DEVNULL,
            start_new_session=True,
            preexec_fn=end_with_parent(signal.SIGTERM),
        )
    except OSError as error:
        raise InputError(
            f"cannot start {words[0]} ({error.strerror or error}): give its path with `launcher`."
        ) from None
    try:
        process.wait(timeout_s)
    except subprocess.TimeoutExpired:
        raise CheckError(
            f"the sweep still ran after {timeout_s:g} s and was stopped: start it again to go on."
        ) from None
    finally:
        stop([process], last_words_s=_LAST_WORDS_S)
    if process.returncode:
        raise CheckError(
            f"expected {words[0]} to exit with 0, found {process.returncode}: see its words above; what was measured "
            "is kept, start again to go on."
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class Checked:
    """A size with a rule, or measured with the rules in use."""

    shape: CallShape  # Collective, nodes and ranks
    size_bytes: int  # M
    rule: str  # What the table says, in words
    verdict: ChoiceVerdict  # The rule beside the default
    p_slower: float  # Probability of such a loss by chance, corrected for the number of sizes
    slower: bool  # It is slower than the default beyond noise

    def record(self) -> CheckedRuleJson:
        """The check as JSON values."""
        return {
            **self.shape.record(),
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
    """Compare the rules of a table with the default at every measured size.

    Measurements with the rules in use (choice ``deployed``) count for every size; others where they are of the choice
    that the table names.

    Args:
        alpha: Probability with which a table that loses nothing may fail.
        tolerance: Relative loss that is no failure.
    """
    if runs and runs[0].library != table.library:
        raise InputError(
            f"expected measurements of {table.library}, found {runs[0].library}: check the table of that library."
        )
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
        raise InputError("no rule of the table was measured: measure it again with `ranks=N` or `lab=NAME`.")
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
    ranks: int = 0,  # Number of ranks, see :func:`coppice.tuning.sweep.sweep_mpi`
    lab: str | None = None,
    launcher: str | None = None,
    options: Sequence[str] = (),
) -> tuple[TimedRun, ...]:
    """Measure the library with the rules in use at the collectives and sizes of an earlier sweep."""
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
