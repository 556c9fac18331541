"""Small right programs of every collective, in place and not, fused and not."""

from __future__ import annotations

from coppice.bounds.problem import Problem
from coppice.collectives import Collective
from coppice.planners.algorithms.catalogue import algorithms
from coppice.planners.planning import plan
from coppice.program.dialects.thread_blocks.lower import lower_to_program
from coppice.program.dialects.thread_blocks.program import Program
from coppice.topology.presets import preset
from reference.catalogue import made_on_a_star
from reference.programs import pair_all_reduce, ring_all_gather, ring_all_reduce
from support.msccl_samples import all_pairs, gather
from support.msccl_samples import ring_all_reduce as kept_ring


def lowered(name: str, collective: Collective, *, in_place: bool, fused: bool, **options: int) -> Program:
    """The program of a forest with a few channels."""
    root = 1 if collective.rooted else None
    problem = Problem(topology=preset(name, **options), collective=collective, root=root)
    body = plan(problem, trees=1 if collective.made_of_trees else None, ring=False).plan.body
    return lower_to_program(body, in_place=in_place, fused=fused, channels=2)


def catalogue(
    name: str, collective: Collective, ranks: int, *, in_place: bool, fused: bool
) -> Program | None:
    """The program of an algorithm, where it serves so many ranks."""
    body = made_on_a_star(algorithms()[name, collective], ranks, ranks - 1)
    return body and lower_to_program(body, in_place=in_place, fused=fused, channels=2)


def _samples() -> list[Program]:
    """Small programs of every collective, in place and not, fused and not."""
    found: list[Program | None] = [
        ring_all_gather(4), ring_all_reduce(3), pair_all_reduce(), gather(4), gather(3, in_place=False),
        all_pairs(4), kept_ring(5),
    ]  # fmt: skip
    for in_place in (True, False):
        for fused in (True, False):
            for collective in Collective:
                if collective is Collective.BARRIER or (in_place and collective is Collective.ALL_TO_ALL):
                    continue
                for topology, gpus in (("ring", 4), ("star", 3)):
                    if collective.made_of_trees:
                        found.append(lowered(topology, collective, in_place=in_place, fused=fused, gpus=gpus))
                for name, served in algorithms():
                    if served is collective:
                        found.append(catalogue(name, collective, 4, in_place=in_place, fused=fused))
    return [program for program in found if program is not None]


SAMPLES = _samples()
