"""The options of commands that simulate or measure: sizes, processes, engines, what a message costs."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Annotated, Any

import typer

from coppice.errors import InputError
from coppice.simulation.model import Model
from coppice.simulation.models import model_of
from coppice.text import parse_size, plural

__all__ = [
    "EngineOption",
    "JobsOption",
    "LauncherWordsOption",
    "ModelOption",
    "OverheadOption",
    "SizeOption",
    "SizesOption",
    "SteppedSizes",
    "TimeoutOption",
    "chosen_model",
]


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
    """The model that the options of a command ask for.

    Args:
        name: Value of ``--model``.
        overhead: Value of ``--overhead``; without a name it means the model ``ideal``.
        changes: Fields of the model that have an option of their own, None where they stay.

    Raises:
        InputError: If there is no such model, or it has protocols and an overhead is given.
    """
    model = model_of("ideal" if name is None and overhead is not None else name)
    if overhead is not None:
        if model.protocols:
            msg = (
                f"expected a model in which messages cost the same, found --overhead with {model.name}, whose "
                "protocols have costs of their own: leave it out, or give `--model ideal`."
            )
            raise InputError(msg)
        changes["overhead_us"] = overhead
    changes = {key: value for key, value in changes.items() if value is not None}
    return replace(model, **changes) if changes else model


EngineOption = Annotated[
    str | None,
    typer.Option("--engine", metavar="torch|mpi|shm", help="What moves the data [default: by the launcher]."),
]

TimeoutOption = Annotated[float, typer.Option("--timeout", min=0.1, help="Longest wait for another rank, s.")]

LauncherWordsOption = Annotated[
    list[str] | None,
    typer.Option("--launcher-option", metavar="WORD", help="Further word for the launcher; may be repeated."),
]


@dataclass(frozen=True, kw_only=True)
class SteppedSizes:
    """Sizes that are measured, in the options of nccl-tests."""

    first: Annotated[str, typer.Option("-b", "--minbytes", help="Smallest size M.")] = "1K"
    last: Annotated[str, typer.Option("-e", "--maxbytes", help="Largest size M.")] = "64M"
    factor: Annotated[int, typer.Option("-f", "--stepfactor", min=2, help="From one size to the next.")] = 4

    def sizes(self, *, least: int = 0) -> list[int]:
        """Sizes from the first to the last, each ``factor`` times the one before; 0 stands alone.

        Args:
            least: Smallest size that can be measured, in bytes.

        Raises:
            InputError: If the last is below the first, or the first below the least.
        """
        low, high = parse_size(self.first, option="-b"), parse_size(self.last, option="-e")
        if low < least:
            msg = f"expected -b of {plural(least, 'byte')} or more, found {self.first}."
            raise InputError(msg)
        if high < low:
            msg = f"expected -e of at least -b, found {self.last} below {self.first}: exchange them."
            raise InputError(msg)
        sizes = [low]
        while low and sizes[-1] * self.factor <= high:
            sizes.append(sizes[-1] * self.factor)
        return sizes


SizeOption = Annotated[
    str,
    typer.Option(
        "--size",
        "-s",
        metavar="BYTES",
        help="Message size M of the collective: bytes, or with K, M, G, T in powers of 1024, such as 64M.",
    ),
]

SizesOption = Annotated[
    str,
    typer.Option(
        "--sizes",
        metavar="LIST",
        help="Message sizes: a list such as 1K,64K,1M, or FIRST:LAST[:FACTOR], such as 1K:4G or 1K:4G:4 "
        "[factor: 2].",
    ),
]
