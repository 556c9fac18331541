"""How far a command walks through the code: calls from one file of the package to another.

    python tests/walks.py plan dgx-a100 --boxes 2 --collective all_reduce

Loading a module, with its classes and decorators, is no call. Calls that pass through other packages, or through code
that Python makes, count too: what counts is the last file of the package on the way.
"""

from __future__ import annotations

import inspect
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType

PACKAGE = f"{Path(__file__).resolve().parents[1] / 'src' / 'coppice'}/"


def loads(frame: FrameType) -> bool:
    """Whether a frame is the body of a module or of a class."""
    return not frame.f_code.co_flags & inspect.CO_OPTIMIZED


@contextmanager
def watching() -> Iterator[Counter[tuple[str, str, str]]]:
    """Count how often a file calls a function of another one meanwhile."""
    moves: Counter[tuple[str, str, str]] = Counter()

    def on_event(frame: FrameType, event: str, _: object) -> None:
        code = frame.f_code
        if event != "call" or loads(frame) or not code.co_filename.startswith(PACKAGE):
            return
        caller = frame.f_back
        while caller is not None and not caller.f_code.co_filename.startswith(PACKAGE):
            caller = caller.f_back
        if caller is not None and not loads(caller) and caller.f_code.co_filename != code.co_filename:
            files = (caller.f_code.co_filename, code.co_filename)
            moves[files[0][len(PACKAGE) :], files[1][len(PACKAGE) :], code.co_qualname] += 1

    sys.setprofile(on_event)
    try:
        yield moves
    finally:
        sys.setprofile(None)


def walk(arguments: Sequence[str]) -> Counter[tuple[str, str, str]]:
    """Run a command of `coppice` in this process, and count its moves between files."""
    from coppice.cli import main

    sys.argv = ["coppice", *arguments]
    with watching() as moves, suppress(SystemExit):
        main()
    return moves


if __name__ == "__main__":
    found = walk(sys.argv[1:])
    print(f"{found.total()} moves between files", file=sys.stderr)
    rooms = Counter(file.split("/")[0] for file in {each for ends in found for each in ends[:2]})
    print(
        "files visited:",
        ", ".join(f"{count} of {room}" for room, count in rooms.most_common()),
        file=sys.stderr,
    )
    for (caller, file, function), times in found.most_common(40):
        print(f"{times:6} {caller} -> {file}: {function}", file=sys.stderr)
