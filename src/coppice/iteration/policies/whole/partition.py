"""Three ways to partition a collective: by primitives, by groups of ranks, by the surrounding computation.

Source: Chen et al., "Centauri: Enabling Efficient Scheduling for Communication-Computation Overlap in Large Model
Training via Communication Partitioning" (ASPLOS 2024), after its abstract; the times below are derived.

*Primitive substitution*: an all-reduce is a reduce-scatter and an all-gather, an all-gather or an exchange a set of
sends. *Group partitioning*: a collective of N nodes with k ranks each is one between nodes among ranks of one place (k
side by side, each with a k-th) and one inside nodes. With S bytes gathered, a NIC of B_x a rank and links of B_i
inside, an all-gather takes S (N - 1) / (N k B_x) and then S (k - 1) / (k B_i), with N - 1 + k - 1 steps instead of
N k - 1; a reduce-scatter the same backwards; an all-reduce between nodes 2 (N - 1) / N of S / k. *Workload
partitioning*: with t_c of computation before it, t_n of its own and a cost of alpha a piece, m pieces of both take
t_c / m + t_n + m alpha where communication takes longer, least with m = sqrt(t_c / alpha).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from types import MappingProxyType

from coppice.errors import InputError
from coppice.iteration.policies.whole.operations import CollectivePhase

AXES = ("substitution", "group", "workload")
"""The three."""
PLAIN, SUBSTITUTED, GROUPED = "plain", "substituted", "grouped"
GROUPED_AND_SUBSTITUTED = "substituted and grouped"
AXES_OF_LABEL: Mapping[str, frozenset[str]] = MappingProxyType(
    {
        PLAIN: frozenset(),
        SUBSTITUTED: frozenset({"substitution"}),
        GROUPED: frozenset({"group"}),
        GROUPED_AND_SUBSTITUTED: frozenset({"substitution", "group"}),
    }
)
"""What the label of a decomposition says of it."""


def collective_decompositions(
    # `all_reduce`, `all_gather`, `reduce_scatter`, `all_to_all`, `broadcast`, or `send`, from one rank to
    # another, between nodes if there are several
    collective: str,
    size_bytes: float,  # Bytes of the whole buffer of a rank
    *,
    nodes: int,
    ranks_of_node: int,  # Ranks of the group on each
    inside: tuple[str, ...] = ("NVLink",),  # Channels inside a node; a rank has its own
    between: tuple[str, ...] = ("NIC",),  # Channels between nodes; a rank has its own
    axes: Iterable[str] = AXES,  # What may be done, of `substitution` and `group`
) -> tuple[tuple[tuple[CollectivePhase, ...], ...], tuple[str, ...]]:
    """Decompositions of a collective of ranks on nodes, with names; the plain one, by rings, first.

    Examples:
        >>> decompositions, labels = collective_decompositions("all_gather", 16.0, nodes=2, ranks_of_node=4)
        >>> [(phase.kind, phase.amount, phase.starts) for phase in decompositions[labels.index("grouped")]]
        [('all_gather', 2.0, 1), ('all_gather', 12.0, 3)]
    """
    n, k = nodes, ranks_of_node
    ranks = n * k
    if n < 1 or k < 1 or ranks < 2:
        raise InputError(f"expected a group of two ranks or more, found {n} nodes of {k}.")

    def ring(kind: str, size: float, group: int, channels: tuple[str, ...]) -> CollectivePhase:
        rounds = 2 if kind == "all_reduce" else 1
        amount = rounds * size * (group - 1) / group
        return CollectivePhase(kind=kind, amount=amount, channels=channels, starts=rounds * (group - 1))

    flat = inside if n == 1 else between
    split = n > 1 and k > 1
    decompositions: dict[str, tuple[CollectivePhase, ...]] = {}
    if collective == "all_reduce":
        scatter, gather = (ring(kind, size_bytes, ranks, flat) for kind in ("reduce_scatter", "all_gather"))
        decompositions = {
            PLAIN: (ring("all_reduce", size_bytes, ranks, flat),),
            SUBSTITUTED: (scatter, gather),
        }
        if split:
            part = size_bytes / k
            down, up = (ring(kind, size_bytes, k, inside) for kind in ("reduce_scatter", "all_gather"))
            halves = tuple(ring(kind, part, n, between) for kind in ("reduce_scatter", "all_gather"))
            decompositions[GROUPED] = (down, ring("all_reduce", part, n, between), up)
            decompositions[GROUPED_AND_SUBSTITUTED] = (down, *halves, up)
    elif collective in {"all_gather", "reduce_scatter"}:
        decompositions = {PLAIN: (ring(collective, size_bytes, ranks, flat),)}
        if split:
            stages = (ring(collective, size_bytes / k, n, between), ring(collective, size_bytes, k, inside))
            decompositions[GROUPED] = stages if collective == "all_gather" else stages[::-1]
        if collective == "all_gather":
            decompositions[SUBSTITUTED] = _sends(size_bytes, n, k, inside, between)
    elif collective == "all_to_all":
        far = size_bytes * (n - 1) / n if n > 1 else size_bytes * (k - 1) / k
        decompositions = {
            PLAIN: (CollectivePhase(kind="all_to_all", amount=far, channels=flat, starts=ranks - 1),),
            SUBSTITUTED: _sends(size_bytes, n, k, inside, between),
        }
        if split:
            decompositions[GROUPED] = (
                ring("all_to_all", size_bytes, k, inside),
                ring("all_to_all", size_bytes, n, between),
            )
    elif collective == "broadcast":
        decompositions = {
            PLAIN: (CollectivePhase(kind="broadcast", amount=size_bytes, channels=flat, starts=ranks - 1),),
            SUBSTITUTED: _sends(size_bytes * ranks, n, k, inside, between),
        }
        if split:
            decompositions[GROUPED] = (
                CollectivePhase(kind="broadcast", amount=size_bytes, channels=between, starts=n - 1),
                CollectivePhase(kind="broadcast", amount=size_bytes, channels=inside, starts=k - 1),
            )
    elif collective == "send":
        decompositions = {PLAIN: (CollectivePhase(kind="send", amount=size_bytes, channels=flat),)}
    else:
        raise InputError(
            "expected all_reduce, all_gather, reduce_scatter, all_to_all, broadcast or send, found "
            f"{collective!r}."
        )
    kept = [label for label in AXES_OF_LABEL if label in decompositions and AXES_OF_LABEL[label] <= set(axes)]
    return tuple(decompositions[label] for label in kept), tuple(kept)


def _sends(
    size: float, nodes: int, ranks_of_node: int, inside: tuple[str, ...], between: tuple[str, ...]
) -> tuple[CollectivePhase, ...]:
    """Send of one part of a rank's buffer to, or from, each other rank."""
    part = size / (nodes * ranks_of_node)
    far, near = (nodes - 1) * ranks_of_node, ranks_of_node - 1
    found = [
        CollectivePhase(kind="send", amount=part * count, channels=channels, starts=count)
        for count, channels in ((far, between), (near, inside))
        if count
    ]
    return tuple(found)
