"""Plans on disk, so that a cluster plans once: found by topology, collective, root, algorithm and version.

Files are plan files (:mod:`coppice.schedule.files.plan_file`) with their own checksum. One that is damaged, of another
version or for something else is made again; a directory that cannot be written costs time, not the run.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable
from pathlib import Path

import msgspec

from coppice.bounds.problem import Problem
from coppice.errors import InputError
from coppice.files import write_atomically
from coppice.schedule.files.plan_file import decode_plan, encode_plan
from coppice.schedule.plan import Plan

__all__ = ["PlanCache", "cache_directory"]


def cache_directory(given: str | os.PathLike[str] | None = None) -> Path:
    """Where plans are kept: as given, or ``$COPPICE_CACHE``, ``$XDG_CACHE_HOME/coppice`` or ``~/.cache/coppice``.

    Examples:
        >>> cache_directory("/somewhere").as_posix()
        '/somewhere'
    """
    if given is not None:
        return Path(given)
    if os.environ.get("COPPICE_CACHE"):
        return Path(os.environ["COPPICE_CACHE"])
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "coppice"


class PlanCache:
    """Plans in a directory.

    Args:
        directory: Where they are; None as :func:`cache_directory` says. It is made when something is first kept.
    """

    def __init__(self, directory: str | os.PathLike[str] | None = None) -> None:
        self.directory = cache_directory(directory) / "plans"

    def path(self, problem: Problem, algorithm: str) -> Path:
        """File of the plan of ``problem`` by ``algorithm`` made by this version."""
        from coppice.version import __version__

        fields = (
            __version__,
            problem.topology.sha256,
            problem.collective.value,
            problem.root,
            problem.weights,
            problem.demands,
            algorithm,
        )
        name = hashlib.sha256(msgspec.json.encode(fields)).hexdigest()
        return self.directory / f"{problem.collective}-{name[:32]}.json"

    def plan(self, problem: Problem, algorithm: str, make: Callable[[], Plan]) -> Plan:
        """The plan that is kept, or what ``make`` returns, which is then kept.

        Args:
            problem: What is planned.
            algorithm: Name of the planner and its options.
            make: Makes a verified plan.
        """
        path = self.path(problem, algorithm)
        found = _read(path, problem)
        if found is not None:
            return found
        made = make()
        data = encode_plan(made)
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            write_atomically(path, data)
        except (OSError, InputError):
            return made
        return made


def _read(path: Path, problem: Problem) -> Plan | None:
    """The plan in a file, if it is one for ``problem``."""
    try:
        found = decode_plan(path.read_bytes(), name=str(path))
    except (OSError, InputError):
        return None
    theirs, root = found.problem, -1 if problem.root is None else problem.root
    same = (
        theirs.collective is problem.collective
        and (-1 if theirs.root is None else theirs.root) == root
        and theirs.topology.sha256 == problem.topology.sha256
        and theirs.weights == problem.weights
        and theirs.demands == problem.demands
    )
    return found if same else None
