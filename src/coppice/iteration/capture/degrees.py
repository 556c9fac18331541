"""Parallel degrees of a captured job, and which of its parameters are shards.

A process group is told by what it carries: activations of all tokens inside layers (tensor parallelism), sends
(stages), all-to-alls (experts); names of device meshes say it outright.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from coppice.iteration.capture.request import CapturedRank, ParameterFact

_DIMENSIONS = (
    ("tp", re.compile(r"^(tp|tensor.*|mp|model.*)$")),
    ("pp", re.compile(r"^(pp|pipe.*|stage.*)$")),
    ("cp", re.compile(r"^(cp|context.*|sp)$")),
    ("ep", re.compile(r"^(ep|expert.*)$")),
    ("dp", re.compile(r"^(dp.*|ddp|fsdp|hsdp|data.*|replicate|shard)$")),
)


@dataclass(kw_only=True)
class Degrees:
    """Parallel degrees, and the groups that have them."""

    tp: int = 1
    pp: int = 1
    cp: int = 1
    ep: int = 1
    dp: int = 1
    rank: int = 0  # The rank whose groups they are
    tp_ranks: tuple[int, ...] = ()


def table_of_words(stages: Sequence[CapturedRank]) -> ParameterFact | None:
    """Table of words."""
    for stage in stages:
        for each in stage.facts.parameters:
            if len(each.shape) == 2 and each.block < 0 and "embed" in f"{each.kind}.{each.name}".lower():
                rows = stage.facts.embedding_rows
                if each.whole or not rows or each.shape[0] == rows:
                    return each
    return None


def degrees_of(stages: Sequence[CapturedRank], ranks: int, hidden: int, notes: list[str]) -> Degrees:
    """Parallel degrees, by names of meshes, otherwise by what groups carry."""
    first = stages[0]
    found = Degrees(rank=first.rank)
    named = _named(first.facts.mesh)
    for name, size in named.items():
        if name != "dp":
            setattr(found, name, size)
    carried = _carrying_activations(first, hidden)
    found.tp_ranks = next(
        (tuple(group) for group, name in first.facts.mesh_groups if re.match(_DIMENSIONS[0][1], name)), ()
    )
    if "tp" not in named and carried:
        found.tp_ranks = carried
        found.tp = len(carried)
    if "ep" not in named:
        groups = [each.ranks for each in first.collectives if each.collective == "all_to_all"]
        found.ep = len(groups[0]) if groups else 1
    if "pp" not in named and first.facts.pipeline_ranks:
        found.pp = len(first.facts.pipeline_ranks)
        if ranks % (found.pp * found.tp * found.cp) and found.tp > 1:
            found.pp = ranks // found.tp  # stages send in a group that has others too
    product = found.tp * found.pp * found.cp
    if ranks % product:
        notes.append(
            f"degrees that divide {ranks} ranks, as tp {found.tp}, pp {found.pp}, cp {found.cp} do not"
        )
        return found
    found.dp = ranks // product
    if "dp" in named and named["dp"] not in (found.dp, found.dp * found.cp):
        notes.append(
            f"what a mesh of {named['dp']} replicas is for, beside tp {found.tp}, pp {found.pp}, cp {found.cp}"
        )
    return found


def _named(mesh: Mapping[str, int]) -> dict[str, int]:
    """Degrees by the names of meshes; the product of the parts of replicas, not of what is flattened from them."""
    found: dict[str, int] = {}
    parts = [name for name in ("dp_replicate", "dp_shard") if name in mesh]
    for name, size in mesh.items():
        for degree, pattern in _DIMENSIONS:
            if pattern.match(name) and (degree != "dp" or not parts):
                found.setdefault(degree, size)
    if parts:
        found["dp"] = math.prod(mesh[name] for name in parts)
    return found


def _carrying_activations(stage: CapturedRank, hidden: int) -> tuple[int, ...]:
    """Group whose collectives carry all tokens of a micro-batch inside forward passes."""
    tokens = _tokens(stage)
    sizes = {tokens * hidden * width for width in (2, 4)}
    sharded = {tuple(each) for each in stage.facts.sharded_ranks}
    counts = Counter(
        tuple(each.ranks)
        for each in stage.collectives
        if each.collective in ("all_reduce", "all_gather", "reduce_scatter")
        and not each.backward
        and not each.update
        and each.layer >= 0
        and each.size_bytes in sizes
        and tuple(each.ranks) not in sharded
    )
    return counts.most_common(1)[0][0] if counts else ()


def _tokens(stage: CapturedRank) -> int:
    """Tokens of a micro-batch."""
    if stage.facts.embeddings:
        return math.prod(stage.facts.embeddings[0])
    query = stage.facts.attention[0].query if stage.facts.attention else [0, 0, 0, 0]
    return query[0] * query[-2] if len(query) == 4 else 0


def _sharded_words(stage: CapturedRank, degrees: Degrees, hidden: int) -> bool:
    """Whether the table of words is sharded by hand: its rows are summed."""
    size = _tokens(stage) * hidden
    return any(
        each.layer == stage.facts.embedding_layer
        and is_of_tensors(each.ranks, stage, degrees)
        and each.collective in ("all_reduce", "reduce_scatter")
        and not each.backward
        and each.size_bytes in (2 * size, 4 * size)
        for each in stage.collectives
    )


def whole_elements(each: ParameterFact, stage: CapturedRank, degrees: Degrees, hidden: int) -> int:
    """Elements of a parameter on all ranks together."""
    count = math.prod(each.shape)
    if each.whole:
        return count
    if len(each.shape) == 3 or expert_of(each.name) is not None:
        return count * degrees.ep
    if degrees.tp == 1:
        return count
    return count * (degrees.tp if is_sharded(each, stage, degrees, hidden) else 1)


def is_sharded(each: ParameterFact, stage: CapturedRank, degrees: Degrees, hidden: int) -> bool:
    """Whether a parameter is one of several shards of tensor parallelism by hand."""
    if each.whole or degrees.tp == 1:
        return False
    if len(each.shape) == 1:
        owner = each.name.rpartition(".")[0] + ".weight"
        weight = next(
            (one for one in stage.facts.parameters if one.name == owner and len(one.shape) == 2), None
        )
        # Of a matrix whose columns are sharded the bias is as well.
        return weight is not None and weight.shape[1] == hidden and is_sharded(weight, stage, degrees, hidden)
    if len(each.shape) != 2:
        return False
    if each.block >= 0:
        return each.shape[0] != stage.facts.top_k[1] if stage.facts.top_k else True
    table = table_of_words([stage])
    if table is not None and each.name == table.name:
        return _sharded_words(stage, degrees, hidden)
    if table is not None:  # the output layer is sharded as the table is
        return _sharded_words(stage, degrees, hidden)
    # Of sharded scores ranks sum a number for each token.
    return any(
        is_of_tensors(one.ranks, stage, degrees)
        and one.size_bytes in (4 * _tokens(stage), 2 * _tokens(stage))
        for one in stage.collectives
    )


def is_of_tensors(ranks: Sequence[int], stage: CapturedRank, degrees: Degrees) -> bool:
    """Whether a group is the one of tensor parallelism of a stage."""
    away = stage.rank - degrees.rank
    return bool(degrees.tp_ranks) and tuple(each - away for each in ranks) == degrees.tp_ranks


def expert_of(name: str) -> int | None:
    """Number of the expert that a parameter is of."""
    found = re.search(r"experts?\.(?:.*\.)?(\d+)\.", name)
    return int(found.group(1)) if found else None
