"""Policies by name."""

from __future__ import annotations

from coppice.errors import InputError
from coppice.iteration.policies.data_parallel.bytescheduler import ByteScheduler
from coppice.iteration.policies.data_parallel.ddp import Bucketed
from coppice.iteration.policies.data_parallel.dear import DecoupledAllReduce
from coppice.iteration.policies.data_parallel.fusion import MergedGradients, TensorFusion
from coppice.iteration.policies.data_parallel.gradientflow import GradientFlow
from coppice.iteration.policies.data_parallel.ooo import OutOfOrder
from coppice.iteration.policies.data_parallel.overlap import Serial, WaitFree
from coppice.iteration.policies.data_parallel.p3 import PriorityPropagation
from coppice.iteration.policies.data_parallel.pace import Preemptive
from coppice.iteration.policies.data_parallel.poseidon import Poseidon
from coppice.iteration.policies.data_parallel.priority import Priority
from coppice.iteration.policies.data_parallel.tictac import TicTac
from coppice.iteration.policies.pipelined.breadth_first import BreadthFirst
from coppice.iteration.policies.pipelined.fold3d import Fold3D
from coppice.iteration.policies.pipelined.orders import GPipe, Interleaved, OneForwardOneBackward, ZeroBubble
from coppice.iteration.policies.pipelined.out_of_order import FastForward, Modulo
from coppice.iteration.policies.pipelined.trirace import TriRace
from coppice.iteration.policies.policy import Policy

POLICIES: dict[str, type[Policy]] = {
    each.name: each
    for each in (
        *(Serial, WaitFree, Bucketed, TensorFusion, MergedGradients, Poseidon, GradientFlow, Priority),
        *(PriorityPropagation, TicTac, ByteScheduler, Preemptive, DecoupledAllReduce, OutOfOrder, GPipe),
        *(OneForwardOneBackward, Interleaved, BreadthFirst, ZeroBubble, Fold3D, FastForward, Modulo),
        TriRace,
    )
}


def policy_named(name: str) -> type[Policy]:
    """Look up a policy."""
    if name not in POLICIES:
        raise InputError(f"expected a policy ({', '.join(POLICIES)}), found {name!r}.")
    return POLICIES[name]
