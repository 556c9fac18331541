"""Shared options of commands that simulate or measure: sizes, processes, engines, time model."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from typing import Annotated, Any

from msgspec import Struct

from coppice.errors import InputError
from coppice.options import option
from coppice.simulation.model import Model
from coppice.text import parse_size, parse_sizes, plural


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


class SteppedSizes(Struct, frozen=True, kw_only=True):
    """Sizes to measure, in the options of nccl-tests."""

    first: Annotated[str, option("Smallest size M.", "-b", "--minbytes")] = "1K"
    last: Annotated[str, option("Largest size M.", "-e", "--maxbytes")] = "64M"
    factor: Annotated[int, option("From one size to the next.", "-f", "--stepfactor", ge=2)] = 4
    listed: Annotated[
        str | None,
        option(
            "Instead of -b, -e and -f: a list such as 1K,64K,1M, or FIRST:LAST[:FACTOR].",
            "--size",
            "--sizes",
            "-s",
            metavar="LIST",
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
