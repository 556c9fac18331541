"""Shared options of commands that simulate or measure: sizes, processes, engines, time model."""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Annotated, Any

import typer

from coppice.cli.options.completion import model_names
from coppice.errors import InputError
from coppice.simulation.model import Model
from coppice.text import parse_size, parse_sizes, plural

JobsOption = Annotated[
    int | None, typer.Option("--jobs", "-j", min=1, metavar="N", help="Processes [default: one per core].")
]

ModelOption = Annotated[
    str | None,
    typer.Option(
        "--model",
        metavar="NAME|FILE",
        help="What messages cost: nccl-2.30, msccl, mpi-tcp, shm, ideal, or a file (see `coppice model`) "
        "[default: nccl-2.30].",
        autocompletion=model_names,
    ),
]

OverheadOption = Annotated[
    float | None,
    typer.Option(
        "--overhead",
        min=0,
        metavar="US",
        help="Cost of a message beyond its links, in a model without protocols [then: ideal].",
    ),
]


def chosen_model(name: str | None, *, overhead: float | None = None, **changes: Any) -> Model:
    """Time model of the options.

    Args:
        name: Value of ``--model``.
        overhead: Value of ``--overhead``; without a name it means the model ``ideal``.
        changes: Fields of the model that have an option of their own, None where they stay.

    Raises:
        InputError: If there is no such model, or it has protocols and an overhead is given.
    """
    from coppice.simulation.models import model_of

    model = model_of("ideal" if name is None and overhead is not None else name)
    if overhead is not None:
        if model.protocols:
            raise InputError(
                f"expected a model in which messages cost the same, found --overhead with {model.name}, whose "
                "protocols have costs of their own: leave it out, or give `--model ideal`."
            )
        changes["overhead_us"] = overhead
    changes = {key: value for key, value in changes.items() if value is not None}
    return replace(model, **changes) if changes else model


EngineOption = Annotated[
    str | None,
    typer.Option(
        "--engine", metavar="torch|mpi|shm|put-signal", help="What moves the data [default: by the launcher]."
    ),
]

TimeoutOption = Annotated[float, typer.Option("--timeout", min=0.1, help="Longest wait for another rank, s.")]

LauncherWordsOption = Annotated[
    list[str] | None,
    typer.Option(
        "--launcher-option", metavar="WORD", help="Further argument for the launcher; may be repeated."
    ),
]


@dataclass(frozen=True, kw_only=True)
class SteppedSizes:
    """Sizes to measure, in the options of nccl-tests."""

    first: Annotated[str, typer.Option("-b", "--minbytes", help="Smallest size M.")] = "1K"
    last: Annotated[str, typer.Option("-e", "--maxbytes", help="Largest size M.")] = "64M"
    factor: Annotated[int, typer.Option("-f", "--stepfactor", min=2, help="From one size to the next.")] = 4
    listed: Annotated[
        str | None,
        typer.Option(
            "--size",
            "--sizes",
            "-s",
            metavar="LIST",
            help="Instead of -b, -e and -f: a list such as 1K,64K,1M, or FIRST:LAST[:FACTOR].",
        ),
    ] = None

    def sizes(self, *, least: int = 0) -> list[int]:
        """Geometric sequence of sizes, or the listed ones; 0 stands alone.

        Args:
            least: Smallest size that can be measured, in bytes.

        Raises:
            InputError: If the last is below the first, or the first below the least.
        """
        if self.listed is not None:
            chosen = parse_sizes(self.listed, option="--sizes")
            if chosen[0] < least:
                raise InputError(f"expected --sizes of {plural(least, 'byte')} or more, found {self.listed}.")
            return list(chosen)
        low, high = parse_size(self.first, option="-b"), parse_size(self.last, option="-e")
        if low < least:
            raise InputError(f"expected -b of {plural(least, 'byte')} or more, found {self.first}.")
        if high < low:
            raise InputError(
                f"expected -e of at least -b, found {self.last} below {self.first}: exchange them."
            )
        sizes = [low]
        while low and sizes[-1] * self.factor <= high:
            sizes.append(sizes[-1] * self.factor)
        return sizes

    def steps(self, *, least: int = 0) -> tuple[int, int, int]:
        """First size, last size and factor, as in nccl-tests.

        Args:
            least: Smallest size that can be measured, in bytes.

        Raises:
            InputError: If sizes are listed that do not rise by one whole factor, or as :meth:`sizes`.
        """
        sizes = self.sizes(least=least)
        factor = sizes[1] // sizes[0] if len(sizes) > 1 else self.factor
        if any(after != before * factor for before, after in pairwise(sizes)):
            raise InputError(
                f"nccl-tests measures sizes that rise by one factor, found --sizes {self.listed}: give a range such as "
                "1K:64M:4."
            )
        return sizes[0], sizes[-1], factor


SizesOption = Annotated[
    str,
    typer.Option(
        "--sizes",
        "--size",
        "-s",
        metavar="LIST",
        help="Message sizes: a list such as 1K,64K,1M, or FIRST:LAST[:FACTOR], such as 1K:4G or 1K:4G:4 "
        "[factor: 2].",
    ),
]
