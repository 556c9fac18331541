"""All-to-alls made for one size: over rails in few messages, with every block on one way, and of ranks all alike."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property
from math import ceil

import numpy as np

from coppice.bounds.problem import Problem
from coppice.bounds.result import Bound
from coppice.collectives import Collective
from coppice.comparison.sizes.candidates import NEARBY, Candidate, about_us, for_size
from coppice.comparison.sizes.effort import MOST_RANKS
from coppice.planners.alternatives import Alternative
from coppice.planners.choice import PlannerOutput
from coppice.planners.exchanges_over_rails import WAYS, exchanged_on_rails
from coppice.planners.over_boxes import rails
from coppice.planners.translated import AlikeMoves, moves_of, translated
from coppice.planners.whole_routes import WholeRoutes, least_waiting, whole_routes
from coppice.schedule.plan import Parameter
from coppice.simulation.channels import TransportProfile, transport_profiles
from coppice.simulation.known_times import KnownTimes
from coppice.simulation.models import Model
from coppice.text import plural

_MOST_PARTS, _MOST_ROWS = 4, 2**14
"""Parts of a block that go ways of their own, and transfers that they make at most."""
_LEAST_PART_BYTES = 256
_LIKELY = 1.25
"""Protocols are looked at that may take so many times the least time of all."""


def exchanges_on_rails(problem: Problem) -> Iterator[Alternative]:
    """All-to-alls over rails, each way that there is.

    Examples:
        >>> from coppice.topology.presets import preset
        >>> [one.name for one in exchanges_on_rails(Problem(preset("dgx-h100", boxes=2), "all_to_all"))]
        ['rail first', 'both ways over rails']
    """
    joined = rails(problem.topology)
    for way in WAYS if joined is not None else ():
        body = exchanged_on_rails(problem, way, joined=joined)
        if body is not None:
            name = way if "rail" in way else f"{way} over rails"
            yield Alternative(name=name, made=PlannerOutput(body=body, parameters={"over_rails": way}))


class ExchangeCandidates:
    """All-to-alls for one size: those over rails, and those of which blocks go one way whole.

    Args:
        plain: The problem's bound on the rate.
    """

    def __init__(self, problem: Problem, times: KnownTimes, plain: Bound) -> None:
        self.problem, self.times, self.plain = problem, times, plain

    def at(self, size_bytes: int, best_us: float, limit_us: float) -> list[Candidate]:
        """What there is with its time at a size.

        Whole blocks are left out where what goes over rails takes no longer than ``limit_us``.
        """
        problem = self.problem
        if problem.collective is not Collective.ALL_TO_ALL or problem.demands is not None:
            return []
        if not 2 < problem.topology.num_ranks <= MOST_RANKS:
            return []
        found: list[Candidate] = []
        for make in (lambda: self._on_rails, lambda: self._whole_blocks.at(size_bytes)):
            for one in make():
                time_us = about_us(one.made.body, size_bytes, self.times, best_us * NEARBY, best_us)
                found.append(Candidate(time_us, for_size(one, size_bytes)))
            if found and min(each.time_us for each in found) <= limit_us:
                break
        return found

    @cached_property
    def _on_rails(self) -> list[Alternative]:
        return list(exchanges_on_rails(self.problem))

    @cached_property
    def _whole_blocks(self) -> WholeBlocks:
        return WholeBlocks(self.problem, self.times.model, self.plain)


class WholeBlocks:
    """All-to-alls of which each part of a block goes one way, in an order for a size.

    Args:
        plain: The problem's bound on the rate.
    """

    def __init__(self, problem: Problem, model: Model, plain: Bound) -> None:
        self.problem, self.model, self.plain = problem, model, plain
        self._routes: dict[int, WholeRoutes] = {}

    def at(self, size_bytes: int) -> Iterator[Alternative]:
        """In one part and more, in the order for each protocol that may be the fastest one.

        Where all ranks are alike and joined by links of their own, they do alike instead.

        Examples:
            >>> from coppice.bounds.optimum import bound_of
            >>> from coppice.simulation.models import model_of
            >>> from coppice.topology.presets import preset
            >>> problem = Problem(preset("mi250"), "all_to_all")
            >>> whole = WholeBlocks(problem, model_of("ideal"), bound_of(problem))
            >>> [one.name for one in whole.at(2**16)]
            ['whole blocks', 'blocks in 2 parts', 'blocks in 4 parts']
        """
        if self._moves is not None:
            yield from self._alike(self._moves, size_bytes)
            return
        block, parts = size_bytes / self.problem.shards, 1
        while parts <= _MOST_PARTS and (parts == 1 or block >= parts * _LEAST_PART_BYTES):
            if parts not in self._routes:
                self._routes[parts] = whole_routes(self.problem, self.plain, parts=parts)
            routes = self._routes[parts]
            if parts > 1 and routes.transfers > _MOST_ROWS:
                break
            yield from self._ordered(routes, size_bytes, float(block) / parts)
            parts *= 2

    @cached_property
    def _moves(self) -> AlikeMoves | None:
        return moves_of(self.problem)

    def _alike(self, moves: AlikeMoves, size_bytes: int) -> Iterator[Alternative]:
        """All ranks do alike, for each protocol."""
        block = np.array([ceil(size_bytes / self.problem.shards)])
        for profile in self._likely(size_bytes):
            wire = block if profile.protocol is None else profile.protocol.wire_bytes_of(block)
            block_us = [int(wire[0]) / self.model.efficiency / rate / 1000 for rate in moves.rate]
            body = translated(moves, block_us, _message_us(self.model, profile))
            parameters: dict[str, Parameter] = {"alike": True, "ordered_for": size_bytes}
            if profile.name is not None:
                parameters["protocol"] = profile.name
            made = PlannerOutput(body=body, parameters=parameters)
            yield Alternative(name="all ranks alike", made=made, size_bytes=size_bytes)

    def _ordered(self, routes: WholeRoutes, size_bytes: int, part_bytes: float) -> Iterator[Alternative]:
        topology, parts = self.problem.topology, routes.parts
        rate = topology.capacity / topology.denominator
        for profile in self._likely(size_bytes):
            part_us = part_bytes * float(profile.expansion) / self.model.efficiency / rate / 1000
            body = least_waiting(routes, np.asarray(part_us), _message_us(self.model, profile))
            parameters: dict[str, Parameter] = {"parts": parts, "ordered_for": size_bytes}
            if profile.name is not None:
                parameters["protocol"] = profile.name
            name = "whole blocks" if parts == 1 else f"blocks in {plural(parts, 'part')}"
            yield Alternative(
                name=name, made=PlannerOutput(body=body, parameters=parameters), size_bytes=size_bytes
            )

    def _likely(self, size_bytes: int) -> list[TransportProfile]:
        """Protocols that may be the fastest, by their start, one message, and the links that are full."""
        busy_us = size_bytes * float(self.plain.inv_rate / self.problem.shards) / 1000
        rows = []
        for profile in transport_profiles(self.model, self.problem.topology):
            start_us = 0.0 if profile.protocol is None else profile.protocol.start_us
            moving_us = busy_us * float(profile.expansion)
            if profile.gpu_gb_per_s is not None:
                moving_us = max(moving_us, size_bytes / float(profile.gpu_gb_per_s) / 1000)
            rows.append((start_us + _message_us(self.model, profile) + moving_us, profile))
        least_us = min(each for each, _ in rows)
        return [profile for about_us, profile in rows if about_us <= _LIKELY * least_us]


def _message_us(model: Model, profile: TransportProfile) -> float:
    """What a message between boxes takes beside its bytes and its links."""
    if profile.protocol is not None:
        return profile.protocol.network_us
    return model.overhead_us + model.send_us + model.receive_us
