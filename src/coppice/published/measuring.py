"""Measure claims: run their commands, each once, two at a time, and judge what they print."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from time import monotonic
from typing import TYPE_CHECKING, Any, NamedTuple

from coppice.arguments import checked
from coppice.errors import CoppiceError, InputError
from coppice.published.formulas import value_of
from coppice.published.records import Claim, claims_of
from coppice.published.verdicts import Verdict, verdict_on

if TYPE_CHECKING:
    from coppice.outputs.shapes.deploying import ClaimJson

__all__ = ["JudgedClaim", "commands_of", "judged_claims", "measured_claims"]

LONGEST_SECONDS = 300
"""A command that takes longer is ended, and its claim has no figure."""


class JudgedClaim(NamedTuple):
    """A claim with what was found about it.

    Attributes:
        claim: The claim.
        measured: The figure that was measured here; none: there is none.
        verdict: What follows.
        fault: Why there is no figure although one was expected; empty: there is one, or it needs hardware.
        differences: What each difference of its setting brings, as measured; empty: it has none.
    """

    claim: Claim
    measured: float | None
    verdict: Verdict
    fault: str = ""
    differences: str = ""

    @property
    def why(self) -> str:
        """What explains the verdict; empty where it needs no explanation."""
        computed = "; ".join(filter(None, (self.differences, self.claim.why)))
        return self.fault or self.claim.hardware or computed

    def record(self) -> ClaimJson:
        """What `coppice claims --json` prints of it."""
        claim = self.claim
        return {
            "system": claim.system,
            "claim": claim.claim,
            "source": claim.source,
            "evidence": claim.evidence,
            "published": claim.published,
            "measured": self.measured,
            "unit": claim.unit,
            "command": "; ".join(commands_of(claim)),
            "date": None if claim.recorded is None else claim.recorded.date,
            "verdict": self.verdict,
            "why": self.why,
        }


def commands_of(claim: Claim) -> list[str]:
    """Commands that measure a claim, each once."""
    if claim.recorded is not None:
        return [claim.recorded.command]
    if claim.setting is not None:
        return [f"coppice claims {shlex.quote(claim.system)}"]
    return list(dict.fromkeys(run.command for run in claim.runs.values()))


class _CommandOutput(NamedTuple):
    document: Any
    seconds: float


@checked
def measured_claims(system: str | None = None) -> Iterator[JudgedClaim]:
    """Measure what was published about a system, or about all, and judge each claim as it is measured.

    Args:
        system: Name of the system, such as ForestColl or SCCL, or the beginning of it; none: all, which takes minutes.

    Raises:
        InputError: If nothing is claimed of a system of that name.

    Examples:
        >>> print(next(measured_claims("T3")).verdict)
        reached
    """
    return judged_claims(claims_of(system))


def judged_claims(asked: Sequence[Claim]) -> Iterator[JudgedClaim]:
    """Measure claims, and judge them, in order.

    Each distinct command is run once, as a process of its own. Closing the iterator, or Ctrl-C, ends all of them.

    Args:
        asked: The claims.
    """
    running: list[subprocess.Popen[str]] = []
    commands = dict.fromkeys(run.command for claim in asked for run in claim.runs.values())
    pool = ThreadPoolExecutor(max_workers=min(2, os.cpu_count() or 1))
    try:
        answers = {command: pool.submit(_answer, command, running) for command in commands}
        for claim in asked:
            yield _simulated(claim) if claim.setting is not None else _finding(claim, answers)
    finally:
        pool.shutdown(wait=False, cancel_futures=True)
        for process in running:
            process.kill()


def _simulated(claim: Claim) -> JudgedClaim:
    """The claim in its setting, which is simulated here."""
    from coppice.published.settings.gains import setting_gain

    assert claim.setting is not None
    try:
        found = setting_gain(claim.setting)
    except CoppiceError as error:
        return JudgedClaim(claim, None, verdict_on(claim, None), str(error))
    about = f"{found.setting.setting}{f' (here {found.where})' if found.where else ''}"
    assumed = f"; assumed: {found.setting.assumed}" if found.setting.assumed else ""
    differences = f"{about}: {found.why or 'as published'}{assumed}"
    return JudgedClaim(claim, found.value, verdict_on(claim, found.value), differences=differences)


def _finding(claim: Claim, answers: dict[str, Future[_CommandOutput]]) -> JudgedClaim:
    if claim.hardware is not None:
        return JudgedClaim(claim, None, verdict_on(claim, None))
    if claim.recorded is not None:
        figure = claim.recorded.figure
        return JudgedClaim(claim, figure, verdict_on(claim, figure))
    try:
        numbers: dict[str, float] = {}
        for name, run in claim.runs.items():
            answer = answers[run.command].result()
            numbers[name] = answer.seconds if run.value is None else value_of(run.value, answer.document)
        measured = value_of(claim.formula, numbers)
    except CoppiceError as error:
        return JudgedClaim(claim, None, verdict_on(claim, None), str(error))
    return JudgedClaim(claim, measured, verdict_on(claim, measured))


def _answer(command: str, running: list[subprocess.Popen[str]]) -> _CommandOutput:
    words = shlex.split(command)
    if words[0] != "coppice":
        raise InputError(f"expected a command of coppice, found {command}.")
    start = monotonic()
    process = subprocess.Popen(
        [sys.executable, "-m", "coppice", *words[1:], "--json"],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    running.append(process)
    try:
        printed, said = process.communicate(timeout=LONGEST_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        process.communicate()
        raise InputError(
            f"expected an answer within {LONGEST_SECONDS} s, found none: run {command}."
        ) from None
    finally:
        running.remove(process)
    seconds = monotonic() - start
    try:
        return _CommandOutput(json.loads(printed), seconds)
    except ValueError:
        raise InputError(
            f"expected JSON of {command}, found exit code {process.returncode}: {said.strip()[-300:]}"
        ) from None
