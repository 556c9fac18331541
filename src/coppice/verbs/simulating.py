"""Simulate a plan at a size, or at many."""

from __future__ import annotations

import os
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Any

from msgspec import Struct

from coppice.errors import InputError
from coppice.options import ANYTHING, AnySizes, argument, option
from coppice.options.calls import verb
from coppice.options.shared import ModelOption

if TYPE_CHECKING:
    from coppice.simulation.model import Model

    AnyModel = Model | str | os.PathLike[str]
else:
    AnyModel = Any


class SimulateOptions(Struct, frozen=True, kw_only=True):
    """Options of a simulation."""

    pieces: Annotated[int | str, option("Number of sub-chunks per chunk.", metavar="N|best")] = "best"
    model: Annotated[AnyModel | None, ANYTHING, *ModelOption.__metadata__] = None
    protocol: Annotated[str | None, option("Only this protocol of the model.", metavar="simple|ll|ll128")] = (
        None
    )
    channels: Annotated[
        int | None, option("Channels of a GPU [default: as many as it takes].", metavar="N")
    ] = None
    seeds: Annotated[
        int,
        option("Hash default routes in N ways: median and 99th percentile of the time.", metavar="N", ge=0),
    ] = 0
    multipath: Annotated[bool, option("Spread default routes evenly over all equally good ones.")] = False

    def count(self) -> int | None:
        """Pieces of every chunk; None for the number that is fastest."""
        text = str(self.pieces)
        if text == "best":
            return None
        if not text.isdecimal() or len(text) > 7 or int(text) < 1:
            raise InputError(
                f"expected `pieces` to be a number of 1 or more, or best, found {self.pieces!r}."
            )
        return int(text)


class SimulateCall(SimulateOptions, frozen=True):
    """A simulation: what is carried out, at which sizes."""

    plan: Annotated[
        Any,
        argument(
            "What is carried out; it should have been verified: a plan, what holds one, the name of a plan file, a "
            "schedule, or a forest."
        ),
    ]
    size_bytes: Annotated[
        AnySizes,
        argument("M in bytes or as text such as 64M; a list or a range such as 1K:1G for several."),
    ]


@verb(SimulateCall)
def simulate(asked: SimulateCall) -> Any:
    """Simulate a plan: start and arrival of every message.

    One size gives a :class:`Timeline`. Several, or hashes of default routes, give a list with what is known at each
    (:class:`coppice.simulation.simulated.Simulated`): the timeline, its distance from the optimum, and the times under
    the hashes. Of the model's protocols the fastest is taken at each size.

    Raises:
        InputError: If the plan is malformed, a size or the number of pieces out of range, or there is no such model.
        UnreachableError: If a transfer names no path and there is none.

    Examples:
        >>> import coppice
        >>> made = coppice.plan("dgx-a100", "all_gather")
        >>> coppice.simulate(made, "64M", protocol="simple").protocol
        'simple'
        >>> rows = coppice.simulate(made, "1K:1M:32")
        >>> [row.timeline.size_bytes for row in rows], rows[0].share_of_least < rows[-1].share_of_least
        ([1024, 32768, 1048576], True)
        >>> ring = coppice.plan(coppice.load("fat-tree"), "all_gather", algorithm="ring")
        >>> coppice.simulate(ring, "1M", seeds=4)[0].hashed.median_us > 0
        True
    """
    from coppice.schedule.files.plan_file import body_of, plan_of
    from coppice.simulation.models import model_of
    from coppice.simulation.simulated import simulate_sizes
    from coppice.simulation.simulator import fastest
    from coppice.text import sizes_of

    changes: dict[str, Any] = {"channels": asked.channels}
    changes["protocols"] = None if asked.protocol is None else (asked.protocol.lower(),)
    model = replace(
        model_of(asked.model), **{name: value for name, value in changes.items() if value is not None}
    )
    if asked.seeds and asked.multipath:
        raise InputError("`seeds` shows ideal multipath beside the seeds: leave out `multipath`.")
    size = asked.size_bytes
    one = isinstance(size, int) or (isinstance(size, str) and not {":", ","} & set(size))
    if one and not asked.seeds and not asked.multipath:
        return fastest(
            body_of(asked.plan),
            sizes_of(size)[0],
            model=model,
            pieces=asked.count(),
        )
    return simulate_sizes(
        plan_of(asked.plan),
        sizes_of(size),
        model=model,
        pieces=asked.count(),
        seeds=asked.seeds,
        multipath=asked.multipath,
    )
