"""Rules of a tuner table for communicators that were not asked about: by equal bytes per rank.

Where an all-gather or a reduce-scatter changes its protocol depends on the bytes of one rank more than on the number of
ranks, so that the rules of the largest communicator serve others when their sizes are counted per rank. All-reduce,
broadcast and reduce have no such rule. Rules that were asked for come first, and the first one that holds counts.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace

from coppice.collectives import Collective
from coppice.errors import InputError
from coppice.fitting.nccl_tuner.rules import NO_END, TunerRule

__all__ = ["further_rules"]

_SHAPE = re.compile(r"([0-9]{1,6})x([0-9]{1,7})")
_ANY = "any"
_PER_RANK = (Collective.ALL_GATHER, Collective.REDUCE_SCATTER)


def further_rules(
    rules: Sequence[TunerRule], shapes: Sequence[str], *, any_allowed: bool
) -> tuple[TunerRule, ...]:
    """Rules for further shapes, from those of the largest communicator.

    Args:
        rules: Rules of a table, for exact shapes.
        shapes: ``NODESxRANKS`` such as ``4x32`` (32 ranks in all), or ``any``.
        any_allowed: The dialect counts bytes per rank, and has a word for any shape.

    Raises:
        InputError: If a shape cannot be read, or there are no rules to begin with.

    Examples:
        >>> rule = TunerRule(collective=Collective.ALL_GATHER, first_bytes=0, last_bytes=1599, nodes=2, ranks=16,
        ...             algorithm="ring", protocol="ll")
        >>> made, = further_rules([rule], ["4x32"], any_allowed=False)
        >>> made.last_bytes, made.nodes, made.ranks
        (3199, 4, 32)
    """
    if not shapes:
        return ()
    known = {(rule.nodes, rule.ranks) for rule in rules}
    largest = max(known, key=lambda shape: (shape[1] or 0, shape[0] or 0))
    base = [rule for rule in rules if (rule.nodes, rule.ranks) == largest and rule.collective in _PER_RANK]
    if not base:
        msg = "no rule of all_gather or reduce_scatter is there to derive others from: leave out shapes."
        raise InputError(msg)
    found: list[TunerRule] = []
    for shape in dict.fromkeys(shapes):
        if shape == _ANY:
            if not any_allowed:
                msg = "a table for any shape needs sizes per rank, as only ncclx has them: list shapes such as 4x32."
                raise InputError(msg)
            found += [replace(rule, nodes=None, any_shape=True, gain=None) for rule in base]
            continue
        match = _SHAPE.fullmatch(shape)
        if match is None or not 1 <= int(match[1]) <= int(match[2]) or int(match[2]) < 2:
            msg = f"expected shapes as NODESxRANKS such as 4x32 (32 ranks in all) or any, found {shape!r}."
            raise InputError(msg)
        nodes, ranks = int(match[1]), int(match[2])
        if (nodes, ranks) not in known:
            found += [_scaled(rule, nodes, ranks) for rule in base]
    return tuple(found)


def _scaled(rule: TunerRule, nodes: int, ranks: int) -> TunerRule:
    """The rule with as many bytes per rank; neighbours still meet without gap or overlap."""
    own = rule.ranks or 1
    last = NO_END if rule.last_bytes == NO_END else -(-(rule.last_bytes + 1) * ranks // own) - 1
    return replace(
        rule,
        first_bytes=-(-rule.first_bytes * ranks // own),
        last_bytes=min(last, NO_END),
        nodes=nodes,
        ranks=ranks,
        gain=None,
    )
