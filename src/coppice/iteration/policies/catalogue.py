"""Every policy by its name."""

from __future__ import annotations

from typing import TypeVar, overload

from coppice.errors import InputError
from coppice.iteration.policies.data_parallel.bytescheduler import ByteScheduler
from coppice.iteration.policies.data_parallel.ddp import Bucketed
from coppice.iteration.policies.data_parallel.dear import DecoupledAllReduce
from coppice.iteration.policies.data_parallel.fusion import MergedGradients, TensorFusion
from coppice.iteration.policies.data_parallel.gradientflow import GradientFlow
from coppice.iteration.policies.data_parallel.horovod import Horovod
from coppice.iteration.policies.data_parallel.ooo import OutOfOrder
from coppice.iteration.policies.data_parallel.overlap import Serial, WaitFree
from coppice.iteration.policies.data_parallel.p3 import PriorityPropagation
from coppice.iteration.policies.data_parallel.pace import Preemptive
from coppice.iteration.policies.data_parallel.poseidon import Poseidon
from coppice.iteration.policies.data_parallel.priority import Priority
from coppice.iteration.policies.data_parallel.servers import ServerRoundTrips
from coppice.iteration.policies.data_parallel.sharded import DistributedOptimizer, FullyShardedData
from coppice.iteration.policies.data_parallel.tictac import TicTac
from coppice.iteration.policies.pipelined.breadth_first import BreadthFirst
from coppice.iteration.policies.pipelined.fold3d import Fold3D
from coppice.iteration.policies.pipelined.orders import (
    DualPipeV,
    GPipe,
    Interleaved,
    OneForwardOneBackward,
    ZeroBubble,
)
from coppice.iteration.policies.pipelined.out_of_order import FastForward, Modulo
from coppice.iteration.policies.pipelined.trirace import TriRace
from coppice.iteration.policies.policy import ConfiguredPolicy, Policy
from coppice.iteration.policies.tensor.decomposition import Decomposition
from coppice.iteration.policies.tensor.fused_collectives import FusedCollectives
from coppice.iteration.policies.tensor.lynx import WindowedRecompute
from coppice.iteration.policies.tensor.oases import TwoHalves
from coppice.iteration.policies.tensor.triggered import Triggered
from coppice.iteration.policies.whole.centauri import Centauri
from coppice.iteration.policies.whole.lina import Lina
from coppice.iteration.policies.whole.syndicate import Syndicate

_Kind = TypeVar("_Kind", bound=ConfiguredPolicy)

POLICIES: dict[str, type[ConfiguredPolicy]] = {
    each.name: each
    for each in (
        *(Serial, WaitFree, Bucketed, TensorFusion, MergedGradients, Poseidon, GradientFlow, Priority),
        *(PriorityPropagation, TicTac, ByteScheduler, Preemptive, DecoupledAllReduce, OutOfOrder, GPipe),
        *(OneForwardOneBackward, Interleaved, BreadthFirst, ZeroBubble, DualPipeV, Fold3D, FastForward),
        *(Modulo, TriRace, Decomposition, FusedCollectives, Triggered, TwoHalves, WindowedRecompute),
        *(Lina, Syndicate, Centauri, DistributedOptimizer, FullyShardedData),
    )
}
"""The policies, kind by kind."""

BASELINES: dict[str, type[Policy]] = {each.name: each for each in (ServerRoundTrips, Horovod)}
"""Systems that publications compare with, by name: no policies to choose, so that `all` leaves them out."""


def policies_of(kind: type[_Kind]) -> dict[str, type[_Kind]]:
    """The policies of a kind.

    Args:
        kind: Their class, such as :class:`~coppice.iteration.policies.tensor.policy.TensorPolicy`; those over layers
            are of :class:`~coppice.iteration.policies.policy.Policy`.

    Examples:
        >>> from coppice.iteration.policies.whole.operations import WholePolicy
        >>> list(policies_of(WholePolicy))
        ['lina', 'syndicate', 'centauri']
    """
    return {name: each for name, each in POLICIES.items() if issubclass(each, kind)}


@overload
def policy_named(name: str) -> type[Policy]: ...
@overload
def policy_named(name: str, kind: type[_Kind]) -> type[_Kind]: ...
def policy_named(name: str, kind: type[ConfiguredPolicy] = Policy) -> type[ConfiguredPolicy]:
    """Look up a policy of a kind, or a baseline; by default of those that run over layers.

    Examples:
        >>> policy_named("horovod").about
        'sums of what is ready at the begin of a cycle, after ranks have agreed on it (Horovod, 2018)'
    """
    baselines = {each: found for each, found in BASELINES.items() if issubclass(found, kind)}
    known = policies_of(kind)
    if name in baselines:
        return baselines[name]
    if name not in known:
        raise InputError(f"expected {kind.kind} ({', '.join(known)}), found {name!r}.")
    return known[name]
