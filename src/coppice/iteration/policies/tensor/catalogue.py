"""Tensor-parallel policies by name, and their composition."""

from __future__ import annotations

from collections.abc import Sequence

from coppice.errors import InputError
from coppice.iteration.policies.tensor.decomposition import Decomposition
from coppice.iteration.policies.tensor.fused_collectives import FusedCollectives
from coppice.iteration.policies.tensor.lynx import WindowedRecompute
from coppice.iteration.policies.tensor.oases import TwoHalves
from coppice.iteration.policies.tensor.policy import TensorPolicy
from coppice.iteration.policies.tensor.triggered import Triggered
from coppice.iteration.step.block import Step

TENSOR_POLICIES: dict[str, type[TensorPolicy]] = {
    each.name: each for each in (Decomposition, FusedCollectives, Triggered, TwoHalves, WindowedRecompute)
}


def tensor_policy_named(name: str) -> type[TensorPolicy]:
    """Look up a tensor-parallel policy."""
    if name not in TENSOR_POLICIES:
        raise InputError(f"expected a policy inside layers ({', '.join(TENSOR_POLICIES)}), found {name!r}.")
    return TENSOR_POLICIES[name]


def tensor_policies(names: str, *, ranks: int) -> list[TensorPolicy]:
    """Look up policies with their defaults.

    Args:
        names: Their names, joined by ``+``.

    Examples:
        >>> [policy.name for policy in tensor_policies("decomposition+lynx", ranks=8)]
        ['decomposition', 'lynx']
    """
    found = []
    for name in names.split("+"):
        policy = tensor_policy_named(name.strip())
        takes_ranks = "ranks" in policy.options.__struct_fields__
        # A group of one exchanges nothing, whatever the policy.
        found.append(policy.of(**({"ranks": max(2, ranks)} if takes_ranks else {})))
    return found


def transformed(step: Step, policies: Sequence[TensorPolicy]) -> Step:
    """Apply several policies to a step, those on collectives before those on recomputation."""
    decided: dict[str, str] = {}
    for policy in policies:
        for question in sorted(policy.decides):
            if question in decided:
                both = f"{decided[question]} and {policy.name}, which both decide {question}"
                raise InputError(f"expected policies that decide different things, found {both}.")
            decided[question] = policy.name
    for policy in sorted(policies, key=lambda each: "tensor" not in each.decides):
        step = policy.transform(step)
    return step
