"""Adapt a group to a network that became slower: find out what is slow, and agree on the network that is left.

Every few calls, at the same one on all ranks, the ranks tell each other whether their calls became slower for good, or
take longer than the simulation of their plan says. Where most say so, they measure probes between two calls, rank 0
infers what is slow and proposes the network that is left, and all take it, by its digest. A collective is never torn:
it has ended everywhere, or has not begun.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from fractions import Fraction

import msgspec
import numpy as np

from coppice.decoding import decodable
from coppice.diagnosis.design import ProbeDesign, design_probes
from coppice.diagnosis.inference import Diagnosed, infer
from coppice.diagnosis.probes import parts_of
from coppice.errors import CoppiceError, InputError
from coppice.program.dialects.rank.program import RankProgram
from coppice.run.adapting.watching import CallTimes
from coppice.run.communicator.groups import agree
from coppice.run.engines.engine import Engine
from coppice.run.probe.flows import measure_design
from coppice.text import short_size
from coppice.topology.load import load
from coppice.topology.model import Topology
from coppice.topology.operations import set_link_rate
from coppice.topology.readers.document import topology_json

ADAPT_VARIABLE = "COPPICE_ADAPT"
"""Variable that turns adapting on: 1."""

EVERY = 8
"""Calls after which the ranks tell each other."""

SECONDS = 0.1
"""Time of a round of probes in which nothing is slow."""

ROUNDS = 3
"""Measurements of each flow."""


class _Proposal(msgspec.Struct, frozen=True):
    """What rank 0 proposes."""

    words: str  # What it saw
    document: bytes = b""  # The network that is left; empty: the plan stays


class NetworkWatch:
    """Watches the calls of one group, and proposes the network that is left.

    Args:
        engine: The group.
        topology: The network with nothing slow.
        timeout_s: Longest wait for another rank, in seconds.
        say: Prints a line, on rank 0.
    """

    def __init__(
        self,
        engine: Engine,
        topology: Topology,
        *,
        timeout_s: float,
        say: Callable[[str], None] | None = None,
    ) -> None:
        self.engine, self.healthy, self.timeout_s = engine, topology, timeout_s
        self.times = CallTimes()
        self._say = say or _to_stderr
        self._calls = 0
        self._design: ProbeDesign | None = None

    def after(
        self, program: RankProgram, seconds: float, current: Topology, *, simulated_s: float = 0.0
    ) -> Topology | None:
        """Take the time of a call; collective over the ranks.

        Args:
            program: What was called.
            seconds: What it took.
            current: The network that it was planned for.
            simulated_s: What it takes by the simulation, in seconds; 0 where that is not known.

        Returns:
            The network to plan for from now on, None where it stays.
        """
        self._calls += 1
        self.times.add((program.collective, program.count), seconds, simulated_s)
        if self._calls % EVERY:
            return None
        ratio = self.times.slower()
        told = [float(each) for each in self.engine.exchange(f"{ratio:.4g}".encode())]
        if 2 * sum(each > 1 for each in told) <= len(told):
            return None
        self.times.forget()
        begin = time.perf_counter()
        if self._design is None and self.engine.rank == 0:
            self._design = design_probes(self.healthy)
        rates = measure_design(
            self.engine, self._design, rounds=ROUNDS, seconds=SECONDS, timeout_s=self.timeout_s
        )
        mine = b""
        if self._design is not None:
            found = infer(self._design, [np.median(each, axis=1) for each in rates])
            mine = msgspec.msgpack.encode(self._proposal(found, current))
        answer = msgspec.msgpack.decode(self.engine.exchange(mine)[0], type=decodable(_Proposal))
        if self.engine.rank == 0:
            size = short_size(max(1, program.count))
            self._say(
                f"coppice: calls take {max(told):.3g} times as long {self.times.yardstick} ({program.collective} of "
                f"{size} elements); {answer.words}; {time.perf_counter() - begin:.2f} s"
            )
        return None if not answer.document else load(answer.document)

    def _proposal(self, found: Diagnosed, current: Topology) -> _Proposal:
        """What rank 0 makes of its measurement."""
        if not found.culprits:
            return _Proposal(f"probes find nothing slow ({100 * found.confidence:.3g}% sure): the plan stays")
        slow = ", ".join(
            f"{each.kind} {each.name} at {100 * each.share:.2g}% of its rate" for each in found.culprits
        )
        words = f"slow: {slow} ({100 * found.confidence:.3g}% sure)"
        left = slowed(self.healthy, {each.name: each.share for each in found.culprits})
        if left.sha256 == current.sha256:
            return _Proposal(f"{words}, as before: the plan stays")
        return _Proposal(f"{words}: planned anew", topology_json(left))


def _to_stderr(words: str) -> None:
    sys.stderr.write(f"{words}\n")
    sys.stderr.flush()


def slowed(topology: Topology, shares: dict[str, float]) -> Topology:
    """The network with slow parts, by their names; shares are rounded to a hundredth.

    Examples:
        >>> from coppice.topology.presets import preset
        >>> left = slowed(preset("ring", gpus=3), {"gpu0 -> gpu1": 0.304})
        >>> sorted(float(left.gb_per_s(link)) for link in range(left.num_links))[:2]
        [0.3, 1.0]
    """
    parts = parts_of(topology)
    left: dict[int, Fraction] = {}
    for name, share in shares.items():
        part = parts.names.index(name)
        kept = Fraction(max(1, round(100 * share)), 100)
        for link in parts.links[parts.first[part] : parts.first[part + 1]].tolist():
            left[link] = min(kept, left.get(link, kept))
    ids = topology.node_ids
    found = topology
    for link, kept in left.items():
        ends = ids[topology.src[link]], ids[topology.dst[link]]
        found = set_link_rate(found, *ends, topology.gb_per_s(link) * kept, one_way=True)
    return found


def agreed_network(engine: Engine, topology: Topology | None, *, ranks: int) -> Topology:
    """The network that rank 0 proposes, on all ranks; collective over them.

    Args:
        engine: The group.
        topology: Needed on rank 0; on others what they expect, or None.
        ranks: Ranks that it has to have.

    Raises:
        Mismatch: On every rank, if a rank expects another network, or the one proposed does not suit the group.
    """
    mine = b"" if topology is None or engine.rank else topology_json(topology)
    proposed = engine.exchange(mine)[0]
    error, digest = "", ""
    try:
        found = load(proposed) if proposed else None
        if found is None:
            raise InputError("rank 0 proposes no network")
        if found.num_ranks != ranks:
            raise InputError(f"expected a network of {ranks} ranks, found {found.num_ranks} in {found.name}")
        digest = found.sha256 if topology is None else topology.sha256
    except CoppiceError as problem:
        found, error = None, str(problem)
    agree(engine.exchange, "a new network", {"topology": digest}, error=error)
    assert found is not None  # an error has been raised on all ranks
    return found
