"""An iteration of a job under policies, beside the same with nothing overlapped.

Usage: python examples/iteration/policies.py JOB.toml POLICY[+POLICY...] [OPTION=VALUE ...]
"""

from __future__ import annotations

import sys

from coppice.iteration.composing.composed import compose
from coppice.iteration.composing.composition import composition_of
from coppice.iteration.job.file import read_job
from coppice.text import seconds_text


def main(path: str, names: str, *options: str) -> None:
    """Print what an iteration takes."""
    job = read_job(path)
    settings = dict(option.split("=", 1) for option in options)
    before, after = compose(job, composition_of("none")), compose(job, composition_of(names, settings))
    print(f"nothing overlaps  {seconds_text(before.seconds)}")  # noqa: T201 (a script's output)
    print(f"{names}  {seconds_text(after.seconds)}")  # noqa: T201


if __name__ == "__main__":
    main(*sys.argv[1:])
