"""The policies by name."""

from __future__ import annotations

from coppice.errors import InputError
from coppice.iteration.policies.data_parallel.overlap import Bucketed, Serial, WaitFree
from coppice.iteration.policies.pipelined.breadth_first import BreadthFirst
from coppice.iteration.policies.pipelined.fold3d import Fold3D
from coppice.iteration.policies.pipelined.orders import (
    GPipe,
    Interleaved,
    OneForwardOneBackward,
    ZeroBubble,
)
from coppice.iteration.policies.pipelined.out_of_order import FastForward, Modulo
from coppice.iteration.policies.pipelined.trirace import TriRace
from coppice.iteration.policies.policy import Policy

__all__ = ["POLICIES", "policy_named"]

POLICIES: dict[str, type[Policy]] = {
    each.name: each
    for each in (
        Serial,
        WaitFree,
        Bucketed,
        GPipe,
        OneForwardOneBackward,
        Interleaved,
        BreadthFirst,
        ZeroBubble,
        Fold3D,
        FastForward,
        Modulo,
        TriRace,
    )
}


def policy_named(name: str) -> type[Policy]:
    """The policy of a name.

    Raises:
        InputError: If there is none.
    """
    if name not in POLICIES:
        msg = f"expected a policy ({', '.join(POLICIES)}), found {name!r}."
        raise InputError(msg)
    return POLICIES[name]
