"""Shared options of commands that simulate or measure: sizes, processes, engines, time model."""

from __future__ import annotations

import os
from dataclasses import replace
from itertools import pairwise
from typing import Annotated, Any

from msgspec import Struct

from coppice.errors import InputError
from coppice.options import option
from coppice.options.shared import LEAST_SIZE, MOST_SIZE, SIZE_FACTOR, USUAL_SIZES, SizesOption
from coppice.simulation.models import Model, Sharing
from coppice.text import parse_size, parse_sizes, plural


class Assumptions(Struct, frozen=True, kw_only=True):
    """Assumptions of a model of time that replace its own."""

    overhead: Annotated[
        float | None, option("Time of a message beyond its links in us, in a model without protocols", ge=0)
    ] = None
    sharing: Annotated[
        Sharing | None,
        option("fifo or fair: messages cross a link one at a time, or all at max-min fair rates"),
    ] = None
    store_and_forward: Annotated[bool, option("yes: switches forward whole messages only")] = False
    engines: Annotated[
        int | None, option("concurrent messages from a GPU, and to a GPU, 0 for any number", ge=0)
    ] = None
    reduce_rate: Annotated[
        float | None,
        option("Rate in GB/s at which a GPU adds what it receives, which takes no time otherwise"),
    ] = None
    channel_rate: Annotated[
        float | None, option("Rate in GB/s of a channel, instead of the protocol's for these GPUs")
    ] = None
    gpu: Annotated[
        str | None, option("volta, ampere, hopper or blackwell, instead of that of the topology's name")
    ] = None


AssumeOption = Annotated[Assumptions, option("What the model assumes", "--assume")]


def chosen_model(
    name: Model | str | os.PathLike[str] | None, assumed: Assumptions | None = None, **changes: Any
) -> Model:
    """Time model of the options.

    Args:
        name: Value of ``--model``.
        assumed: Value of ``--assume``; an overhead without a name means the model ``alpha-beta``.
        changes: Fields of the model that have an option of their own, None where they stay.

    Raises:
        InputError: If there is no such model, or it has protocols and an overhead is given.
    """
    from coppice.simulation.models import model_of

    assumed = assumed or Assumptions()
    overhead = assumed.overhead
    model = model_of("alpha-beta" if name is None and overhead is not None else name)
    if overhead is not None and model.protocols:
        raise InputError(
            f"expected a model in which messages cost the same, found an overhead with {model.name}, whose "
            "protocols have costs of their own: leave it out, or give `--model alpha-beta`."
        )
    if assumed.channel_rate is not None and changes.get("channels") is None:
        raise InputError("expected a number of channels with channel_rate, found none: give `--channels`.")
    changes |= {
        "overhead_us": overhead,
        "sharing": assumed.sharing or changes.get("sharing"),
        "store_and_forward": assumed.store_and_forward or None,
        "send_engines": assumed.engines,
        "receive_engines": assumed.engines,
        "reduce_gb_per_s": assumed.reduce_rate,
        "channel_gb_per_s": assumed.channel_rate,
        "generation": assumed.gpu,
    }
    changes = {key: value for key, value in changes.items() if value is not None}
    return replace(model, **changes) if changes else model


class SteppedSizes(Struct, frozen=True, kw_only=True):
    """Sizes to measure, in the options of nccl-tests."""

    first: Annotated[str, option("Smallest size M.", "-b", "--minbytes")] = LEAST_SIZE
    last: Annotated[str, option("Largest size M.", "-e", "--maxbytes")] = MOST_SIZE
    factor: Annotated[int, option("From one size to the next.", "-f", "--stepfactor", ge=2)] = SIZE_FACTOR
    listed: SizesOption | None = None

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
                f"{USUAL_SIZES}."
            )
        return sizes[0], sizes[-1], factor
