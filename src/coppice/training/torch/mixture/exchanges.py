"""Exchanges of tokens over a process group: rows for each rank out, rows of each rank in."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any, Protocol
from weakref import WeakKeyDictionary

import torch
import torch.distributed as dist

from coppice.errors import CheckError

Start = Callable[[torch.Tensor, torch.Tensor, Sequence[int], Sequence[int], Any], Any]
"""Starts an exchange: output, input, rows from and for each rank, group; gives something to wait for."""


def all_to_all(
    output: torch.Tensor, given: torch.Tensor, received: Sequence[int], sent: Sequence[int], group: Any
) -> Any:
    """The exchange of torch."""
    return dist.all_to_all_single(output, given, list(received), list(sent), group=group, async_op=True)


class PostedExchange(Protocol):
    """An exchange that was asked for."""

    def wait(self) -> torch.Tensor:
        """What other ranks have sent; on a device it is ordered behind the exchange."""


class Exchanges(Protocol):
    """What carries exchanges."""

    def post(
        self, name: str, rows: torch.Tensor, sent: Sequence[int], received: Sequence[int], group: Any
    ) -> PostedExchange:
        """Ask for an exchange; all ranks ask in one order.

        Args:
            rows: Rows, those for the first rank first.
            group: The ranks; None: this rank is alone.
        """

    def backward_starts(self) -> None:
        """The backward pass of a layer is about to post exchanges."""

    def note(self, name: str) -> None:
        """Something else begins that a record may tell: the experts of a piece."""


class _Direct:
    """An exchange under way."""

    def __init__(self, work: Any, output: torch.Tensor, given: torch.Tensor) -> None:
        self._work, self._output, self._given = work, output, given

    def wait(self) -> torch.Tensor:
        """See :meth:`PostedExchange.wait`."""
        if self._work is not None:
            try:
                self._work.wait()
            except RuntimeError as error:
                raise lost_rank(error) from error
        return self._output


class DirectExchanges:
    """Exchanges started when they are asked for, as torch does them.

    Args:
        start: Starts one; if not given, ``all_to_all_single``.
    """

    def __init__(self, start: Start = all_to_all) -> None:
        self._start = start

    def post(
        self, name: str, rows: torch.Tensor, sent: Sequence[int], received: Sequence[int], group: Any
    ) -> PostedExchange:
        """See :meth:`Exchanges.post`."""
        del name
        if group is None:
            return _Direct(None, rows, rows)
        rows = rows.contiguous()
        output = rows.new_empty((sum(received), *rows.shape[1:]))
        try:
            return _Direct(self._start(output, rows, received, sent, group), output, rows)
        except RuntimeError as error:
            raise lost_rank(error) from error

    def backward_starts(self) -> None:
        """See :meth:`Exchanges.backward_starts`."""

    def note(self, name: str) -> None:
        """See :meth:`Exchanges.note`."""


def lost_rank(error: BaseException) -> CheckError:
    """The error of ranks that find one gone."""
    reason = str(error).strip().splitlines()
    return CheckError(
        "expected all ranks to exchange tokens and sum gradients, found one that does not answer "
        f"({reason[0] if reason else type(error).__name__}): start the training again from its last checkpoint."
    )


_GROUPS: WeakKeyDictionary[Any, dict[tuple[int, ...], Any]] = WeakKeyDictionary()


def group_of_ranks(parent: Any, ranks: Sequence[int]) -> Any:
    """The process group of some ranks of a group, by their place in it; None: there is one rank only.

    All ranks that are in it ask for it, and get one for every layer.
    """
    if len(ranks) == 1:
        return None
    whole = parent if parent is not None else dist.group.WORLD
    everyone = dist.get_process_group_ranks(whole)
    if len(ranks) == len(everyone):
        return whole
    known = _GROUPS.setdefault(whole, {})
    key = tuple(ranks)
    if key not in known:
        known[key] = dist.new_group(
            [everyone[rank] for rank in ranks],
            backend=dist.get_backend(whole),
            use_local_synchronization=True,
        )
    return known[key]


def exchange_start_seconds(group: Any, device: torch.device, rounds: int = 7) -> float:
    """Time of an exchange of next to nothing, median of some rounds, of the slowest rank."""
    size = dist.get_world_size(group)
    given, output = torch.zeros(size, device=device), torch.zeros(size, device=device)
    times = torch.zeros(rounds, dtype=torch.float64, device=device)
    for turn in range(-1, rounds):
        dist.barrier(group=group)
        begin = time.perf_counter()
        dist.all_to_all_single(output, given, group=group)
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        if turn >= 0:
            times[turn] = time.perf_counter() - begin
    dist.all_reduce(times, op=dist.ReduceOp.MAX, group=group)
    return float(times.median())
