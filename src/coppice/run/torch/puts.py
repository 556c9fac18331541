"""Collectives of the torch backend by puts and signals, with the library as fallback.

Whether it takes a call is decided in the thread that makes it, so that all ranks issue what is left to the library in
one order. A call that is new is planned first, by all ranks together.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from coppice.collectives import Collective
from coppice.errors import CoppiceError, InputError
from coppice.run.communicator.communicator import Communicator
from coppice.run.engines.datatype import DataType, ReduceOp
from coppice.run.engines.put_signal.engine import PutSignalEngine
from coppice.run.engines.put_signal.opening import put_signal_engine
from coppice.run.engines.torch.engine import TorchEngine
from coppice.run.planned import FOREST, AlgorithmRules

_LOG = logging.getLogger("coppice")
_LIBRARIES = {"cpu": "gloo", "cuda": "NCCL"}
_DEVICES = {"cpu": ("emulated",), "cuda": ("nccl", "symmetric")}
"""What puts tensors of a kind: on CPUs only the emulated device, which has to be asked for."""


@dataclass(frozen=True, kw_only=True, slots=True)
class CollectiveCall:
    """Key of a collective call for its program."""

    collective: Collective  # The collective
    count: int  # M in elements
    dtype: DataType  # Type of the elements
    op: ReduceOp = ReduceOp.SUM  # The reduction
    root: int = -1  # Root rank, or -1
    in_place: bool = False  # Nothing is given beside the output


class PutChoice:
    """Choose the group that runs a call by puts, if any.

    Args:
        engine: Puts and signals.
        groups: Makes the group of an algorithm; all ranks call it alike.
        algorithm: What is planned where no rule says it.
        rules: Rules by size, or None.
        nodes: Hosts that the ranks are on.
    """

    def __init__(
        self,
        engine: PutSignalEngine,
        groups: Callable[[str], Communicator],
        *,
        algorithm: str,
        rules: AlgorithmRules | None,
        nodes: int,
    ) -> None:
        self.engine, self._make = engine, groups
        self._algorithm, self._rules, self._nodes = algorithm, rules, nodes
        self._groups: dict[str, Communicator] = {}
        self._known: dict[CollectiveCall, Communicator | None] = {}

    @property
    def tuned(self) -> bool:
        """Whether rules decide, instead of a threshold."""
        return self._rules is not None

    def knows(self, call: CollectiveCall) -> bool:
        """Whether the call is planned, or needs no plan."""
        return call in self._known or self._named(call) is None

    def group_for(self, call: CollectiveCall) -> Communicator | None:
        """Communicator of a known call; None for the library."""
        return self._known.get(call)

    def plan(self, call: CollectiveCall) -> None:
        """Plan a call, if puts can perform it; collective over the ranks."""
        named = self._named(call)
        tried = [name for name in (named, None if self.tuned else FOREST) if name is not None]
        reason = ""
        for name in tried:
            try:
                if name not in self._groups:
                    self._groups[name] = self._make(name)
                group = self._groups[name]
                program = group.prepare(
                    call.collective,
                    call.count,
                    dtype=call.dtype,
                    op=call.op,
                    root=call.root if call.collective.rooted else None,
                    in_place=call.in_place,
                )
            except InputError as error:  # the same on every rank: the algorithm is not for this
                reason = str(error)
                continue
            taken = not self.engine.obstacle(program, call.dtype, call.op)
            self._known[call] = group if taken else None
            return
        self._known[call] = None
        if reason:
            self.engine.leave(reason)

    def _named(self, call: CollectiveCall) -> str | None:
        """The algorithm of a call, None for the library's own collective."""
        if self._rules is None:
            return self._algorithm
        size = call.count * call.dtype.itemsize
        return self._rules.choice(
            call.collective, nodes=self._nodes, ranks=self.engine.ranks, size_bytes=size
        )


def open_puts(
    store: Any, rank: int, ranks: int, *, device: str, timeout_s: float, asked: bool = True
) -> PutSignalEngine | None:
    """Open the put engine of a device type, or None where no device puts; collective over the ranks.

    Rank 0 logs the reason.

    Args:
        store: A store of these ranks alone.
        device: ``cpu`` for the emulated device, or ``cuda``.
        timeout_s: Longest wait for another rank, in seconds.
        asked: Puts were asked for, so that the library carries out all calls where there are none.
    """
    library = _LIBRARIES[device]
    below = TorchEngine(store, rank, ranks, exchange_timeout_s=timeout_s)
    try:
        return put_signal_engine(
            below, timeout_s=timeout_s, devices=_DEVICES[device], store=store, left_to=library
        )
    except InputError as error:
        if rank == 0:
            instead = (
                "carries out all collectives" if asked else "sends and receives for all planned collectives"
            )
            _LOG.warning("%s %s, none is put: %s", library, instead, error)
    except CoppiceError:
        below.close()
        raise
    below.close()
    return None
