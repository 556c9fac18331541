"""Starting a sweep of an MPI library: on this machine, by a launcher with its own hosts, or in a lab."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec

from coppice.errors import CheckError, InputError
from coppice.run.processes import end_with_parent, stop
from coppice.selection.open_mpi_names import FUNCTIONS
from coppice.tuning.records import reopen
from coppice.tuning.worker import Spec

__all__ = ["COLLECTIVES", "sweep_mpi"]

COLLECTIVES = tuple(FUNCTIONS)
"""Collectives of MPI that can be tuned."""

_LAUNCHERS = {"open-mpi": "mpirun", "mpich": "mpiexec"}
_LAST_WORDS_S = 5.0


def sweep_mpi(
    spec: Spec,
    *,
    ranks: int = 0,
    lab: str | None = None,
    launcher: str | None = None,
    options: Sequence[str] = (),
    environment: Mapping[str, str] | None = None,
    timeout_s: float | None = None,
) -> None:
    """Measure; what the output file has already is not measured again.

    Args:
        spec: What to measure.
        ranks: Number of ranks; in a lab, all of its ranks take part.
        lab: Name of a lab, None starts the launcher as it is.
        launcher: Path of the launcher (default: ``mpirun`` or ``mpiexec`` on PATH).
        options: Further words for the launcher, such as ``--hostfile hosts``.
        environment: Further variables, such as those of a rules file to check.
        timeout_s: After so many seconds all is stopped.

    Raises:
        InputError: If something asked for has no meaning, or the launcher is missing.
        CheckError: If the launcher failed; what was measured until then is in the file.
    """
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
        msg = (
            f"expected `ranks` of 2 or more, or `lab`, found {ranks}: there is nothing to tune for one rank."
        )
        raise InputError(msg)
    words = [launcher or _LAUNCHERS[spec.library], "-n", str(ranks), *options, *command]
    if spec.library == "open-mpi":
        words[1:1] = ["--oversubscribe"] if ranks > (os.cpu_count() or 1) and not options else []
        words[1:1] = ["--allow-run-as-root"] if os.geteuid() == 0 else []
    _run(words, variables, timeout_s)


def _check(spec: Spec) -> None:
    if spec.library not in _LAUNCHERS:
        msg = f"expected the library open-mpi or mpich, found {spec.library!r}."
        raise InputError(msg)
    wrong = [collective for collective in spec.collectives if collective not in COLLECTIVES]
    if wrong or not spec.collectives or not spec.sizes or spec.rounds < 1:
        known = ", ".join(COLLECTIVES)
        found = f"found {', '.join(wrong)}" if wrong else "found nothing to measure"
        msg = f"expected collectives out of {known}, sizes and a round at least, {found}."
        raise InputError(msg)


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
        msg = f"cannot start {words[0]} ({error.strerror or error}): give its path with `launcher`."
        raise InputError(msg) from None
    try:
        process.wait(timeout_s)
    except subprocess.TimeoutExpired:
        msg = f"the sweep still ran after {timeout_s:g} s and was stopped: start it again to go on."
        raise CheckError(msg) from None
    finally:
        stop([process], last_words_s=_LAST_WORDS_S)
    if process.returncode:
        msg = (
            f"expected {words[0]} to exit with 0, found {process.returncode}: see its words above; what was measured "
            "is kept, start again to go on."
        )
        raise CheckError(msg)
