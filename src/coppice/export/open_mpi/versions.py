"""Versions of Open MPI: supported formats of rules files, and the installed version."""

from __future__ import annotations

import re
import subprocess

from coppice.arguments import expect_one_of
from coppice.errors import InputError
from coppice.export.formats import OMPI_FORMS

_FIRST_JSON = (6, 0)
_USUAL = {"classic": (5, 0), "json": _FIRST_JSON}
"""Version for which a form is written where nothing tells."""
_VERSION = re.compile(r"([0-9]{1,3}(?:\.[0-9]{1,3}){1,2})(?:(?:a|b|rc|amzn)[0-9]{1,3})?")
_INSTALLED = re.compile(r"\(Open MPI\)\s+([0-9]{1,3}(?:\.[0-9]{1,3}){1,2})")
_TIMEOUT_S = 10


def form_of(version: tuple[int, ...]) -> str:
    """Format of rules files that a version supports.

    Before 6.0 none reads JSON; from then on lists of the classic form hold for other ranks than before.

    Examples:
        >>> form_of((5, 0, 11)), form_of((6, 0))
        ('classic', 'json')
    """
    return "json" if version >= _FIRST_JSON else "classic"


def version_of(text: str | None, form: str | None = None, *, launcher: str = "mpirun") -> tuple[int, ...]:
    """Target version of rules: the option, the installed one if it supports the format, or the default.

    Args:
        text: What the user says, None to ask the launcher.
        form: One of :data:`~coppice.export.formats.OMPI_FORMS`, None for that of the version.

    Examples:
        >>> version_of("5.0.11"), version_of(None, "json", launcher="no-such-launcher")
        ((5, 0, 11), (6, 0))
    """
    if form is not None:
        expect_one_of("form", form, OMPI_FORMS)
    if text is None:
        found = installed_version(launcher)
        fits = found is not None and form in (None, form_of(found))
        return found if found is not None and fits else _USUAL[form or "classic"]
    told = _VERSION.fullmatch(text)
    if told is None:
        raise InputError(f"expected a version of Open MPI such as 5.0.11, found {text[:40]!r}.")
    version = tuple(map(int, told[1].split(".")))
    if form not in (None, form_of(version)):
        raise InputError(
            f"Open MPI {text} reads rules as {form_of(version)}, found `form={form}`: leave one of the options out."
        )
    return version


def installed_version(launcher: str = "mpirun") -> tuple[int, ...] | None:
    """Version of Open MPI whose launcher is on PATH, None where there is none, or another library's."""
    try:
        words = subprocess.run(
            [launcher, "--version"],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=_TIMEOUT_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    found = _INSTALLED.search(words.stdout.decode(errors="replace"))
    return None if found is None else tuple(map(int, found[1].split(".")))
