"""All-to-all exchanges of tokens in a process group, pipelined with the experts chunk by chunk.

An exchange takes rows for each rank out and rows of each rank in. In pieces, forward, all pieces are sent off at once;
as soon as one is there its experts run, and what they make is sent back. Backward it is the same the other way round:
gradients of all pieces are sent to the experts, and each goes back when these are through. The order in which a rank
asks for exchanges depends on nothing but the number of pieces. To autograd it is one operation: gradients of experts'
parameters are added up over the pieces and handed over once.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol
from weakref import WeakKeyDictionary

import torch
import torch.distributed as dist

from coppice.errors import InputError
from coppice.training.torch.core.agree import lost_rank
from coppice.training.torch.core.measure import slowest_seconds

TASK = "exchange tokens and sum gradients"
"""What ranks of a mixture do together."""
Start = Callable[[torch.Tensor, torch.Tensor, Sequence[int], Sequence[int], Any], Any]
"""Starts an exchange: output, input, rows from and for each rank, group; gives something to wait for."""


def all_to_all(
    output: torch.Tensor, given: torch.Tensor, received: Sequence[int], sent: Sequence[int], group: Any
) -> Any:
    """All-to-all by torch."""
    return dist.all_to_all_single(output, given, list(received), list(sent), group=group, async_op=True)


class PostedExchange(Protocol):
    """A posted exchange."""

    def wait(self) -> torch.Tensor:
        """Received tokens; on a device ordered behind the exchange."""


class Exchanges(Protocol):
    """Interface of executors of exchanges."""

    def post(
        self, name: str, rows: torch.Tensor, sent: Sequence[int], received: Sequence[int], group: Any
    ) -> PostedExchange:
        """Post an exchange; in the same order on all ranks.

        Args:
            rows: Rows, those for the first rank first.
            group: The ranks; None: this rank is alone.
        """

    def backward_starts(self) -> None:
        """Called when a layer's backward pass is about to post exchanges."""

    def note(self, name: str) -> None:
        """Record other work for a trace, such as the experts of a chunk."""


class _Direct:
    """Outstanding all-to-all."""

    def __init__(self, work: Any, output: torch.Tensor, given: torch.Tensor) -> None:
        self._work, self._output, self._given = work, output, given

    def wait(self) -> torch.Tensor:
        """See :meth:`PostedExchange.wait`."""
        if self._work is not None:
            try:
                self._work.wait()
            except RuntimeError as error:
                raise lost_rank(error, TASK) from error
        return self._output


class DirectExchanges:
    """Exchanges started when posted.

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
            raise lost_rank(error, TASK) from error

    def backward_starts(self) -> None:
        """See :meth:`Exchanges.backward_starts`."""

    def note(self, name: str) -> None:
        """See :meth:`Exchanges.note`."""


_GROUPS: WeakKeyDictionary[Any, dict[tuple[int, ...], Any]] = WeakKeyDictionary()


def group_of_ranks(parent: Any, ranks: Sequence[int]) -> Any:
    """Process group of some ranks of a group; None: there is only one.

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
    """Latency of a nearly empty exchange: median over rounds, of the slowest rank."""
    size = dist.get_world_size(group)
    given, output = torch.zeros(size, device=device), torch.zeros(size, device=device)
    return slowest_seconds(
        lambda: dist.all_to_all_single(output, given, group=group), group, device, rounds=rounds
    )


Run = Callable[[int, torch.Tensor, Mapping[str, torch.Tensor]], torch.Tensor]
"""Runs the expert of a place on rows with some parameters."""


@dataclass(frozen=True, eq=False)
class PipelinedExperts:
    """Autograd function of the experts of a rank with their exchanges."""

    exchanges: Exchanges  # What carries exchanges
    group: Any  # Ranks that exchange; None: this one alone
    sent: torch.Tensor  # Rows of each piece for each place of each rank, pieces x ranks x places, on the host
    received: torch.Tensor  # Rows of each piece of each rank for each place here
    run: Run  # Runs an expert
    # For each place the names of its parameters that are trained, in the order in which they are given
    names: Sequence[Sequence[str]]
    scale: float  # Gradients of the experts' parameters are multiplied by it
    label: str  # Name of the layer

    def __call__(self, rows: torch.Tensor, parameters: Sequence[torch.Tensor]) -> torch.Tensor:
        """Expert output of rows, in their order.

        Args:
            rows: Rows by piece, rank, place and token.
        """
        if torch.is_grad_enabled() and any(each.requires_grad for each in (rows, *parameters)):
            return _Pipeline.apply(self, rows, *parameters)  # type: ignore[no-any-return,no-untyped-call]
        return self._forward(rows, parameters, None)

    def _by_place(self, parameters: Sequence[torch.Tensor]) -> list[dict[str, torch.Tensor]]:
        found, begin = [], 0
        for names in self.names:
            found.append(dict(zip(names, parameters[begin : begin + len(names)], strict=True)))
            begin += len(names)
        return found

    def _experts_first(self, piece: int, device: torch.device) -> tuple[torch.Tensor, list[int]] | None:
        """Row order by expert instead of by rank, with row counts; None where it is the same."""
        counts = self.received[piece]
        ranks, places = counts.shape
        if ranks == 1 or places == 1:
            return None
        place = torch.arange(places).repeat(ranks).repeat_interleave(counts.reshape(-1))
        return torch.argsort(place, stable=True).to(device), counts.sum(dim=0).tolist()

    def _sizes(self, counts: torch.Tensor, piece: int) -> list[int]:
        return counts[piece].sum(dim=1).tolist()

    def _post(self, name: str, piece: int, rows: torch.Tensor, *, out: bool) -> Any:
        sent, received = self._sizes(self.sent, piece), self._sizes(self.received, piece)
        sizes = (sent, received) if out else (received, sent)
        return self.exchanges.post(f"{self.label} {name} {piece}", rows, *sizes, self.group)

    def _forward(
        self,
        rows: torch.Tensor,
        parameters: Sequence[torch.Tensor],
        graphs: list[tuple[torch.Tensor, torch.Tensor | None]] | None,
    ) -> torch.Tensor:
        """Forward pass; `graphs` collects the experts' inputs and outputs per chunk."""
        own = self._by_place(parameters)
        pieces = torch.split(rows, self.sent.sum(dim=(1, 2)).tolist())
        going = [self._post("dispatch", at, piece, out=True) for at, piece in enumerate(pieces)]
        coming = []
        for at, exchange in enumerate(going):
            given = exchange.wait()
            self.exchanges.note(f"{self.label} experts {at}")
            order = self._experts_first(at, given.device)
            counts = self.received[at].sum(dim=0).tolist()
            given = given if order is None else given.index_select(0, order[0])
            with torch.set_grad_enabled(graphs is not None):
                if graphs is not None:
                    given = given.detach().requires_grad_(rows.requires_grad)
                made = self._run(given, counts, own)
            if graphs is not None:
                graphs.append((given, made))
            back = torch.empty_like(given) if made is None else made.detach()
            if order is not None:
                back = torch.empty_like(back).index_copy_(0, order[0], back)
            coming.append(self._post("combine", at, back, out=False))
        return torch.cat([exchange.wait() for exchange in coming])

    def _run(
        self, given: torch.Tensor, counts: Sequence[int], own: Sequence[Mapping[str, torch.Tensor]]
    ) -> torch.Tensor | None:
        """Run experts on rows by expert; None without rows."""
        made = []
        for place, part in enumerate(torch.split(given, list(counts))):
            if not len(part):
                continue
            output = self.run(place, part, own[place])
            if output.shape != part.shape:
                raise InputError(
                    f"expected experts that keep the shape of their rows {list(part.shape)}, found "
                    f"{list(output.shape)} of {self.label}."
                )
            made.append(output.to(given.dtype))
        return torch.cat(made) if made else None

    def backward(
        self,
        gradient: torch.Tensor,
        # Inputs and outputs of each piece; they are let go of
        graphs: list[tuple[torch.Tensor, torch.Tensor | None]],
        aliases: Sequence[torch.Tensor],
        *,
        inputs: bool,
    ) -> tuple[torch.Tensor | None, list[torch.Tensor]]:
        """Gradients of rows and parameters."""
        self.exchanges.backward_starts()
        pieces = torch.split(gradient, self.sent.sum(dim=(1, 2)).tolist())
        going = [self._post("combine gradient", at, piece, out=True) for at, piece in enumerate(pieces)]
        sums = [torch.zeros_like(alias) for alias in aliases]
        coming = []
        for at, exchange in enumerate(going):
            given = exchange.wait()
            self.exchanges.note(f"{self.label} experts gradient {at}")
            order = self._experts_first(at, given.device)
            if order is not None:
                given = given.index_select(0, order[0])
            back = self._run_backward(graphs, at, given, aliases, sums, inputs=inputs)
            if back is None:
                continue
            if order is not None:
                back = torch.empty_like(back).index_copy_(0, order[0], back)
            coming.append(self._post("dispatch gradient", at, back, out=False))
        found = torch.cat([exchange.wait() for exchange in coming]) if inputs else None
        return found, [each.mul_(self.scale) for each in sums]

    def _run_backward(
        self,
        graphs: list[tuple[torch.Tensor, torch.Tensor | None]],
        at: int,
        gradient: torch.Tensor,
        aliases: Sequence[torch.Tensor],
        sums: Sequence[torch.Tensor],
        *,
        inputs: bool,
    ) -> torch.Tensor | None:
        """Input gradient of a chunk, None where not needed; parameter gradients accumulate."""
        given, made = graphs[at]
        graphs[at] = (given.detach(), None)
        if made is None:
            return torch.zeros_like(gradient) if inputs else None
        wanted = [given, *aliases] if inputs else list(aliases)
        found = list(torch.autograd.grad(made, wanted, gradient, allow_unused=True))
        back = found.pop(0) if inputs else None
        for total, own in zip(sums, found, strict=True):
            if own is not None:
                total.add_(own)
        return torch.zeros_like(gradient) if inputs and back is None else back


class _Pipeline(torch.autograd.Function):
    """All experts as one autograd function."""

    @staticmethod
    def forward(
        ctx: Any, experts: PipelinedExperts, rows: torch.Tensor, *parameters: torch.Tensor
    ) -> torch.Tensor:
        ctx.experts, ctx.graphs = experts, []
        ctx.aliases = [each.detach().requires_grad_() for each in parameters]
        return experts._forward(rows, ctx.aliases, ctx.graphs)  # noqa: SLF001 (the class behind it)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, gradient: torch.Tensor) -> Any:
        found, sums = ctx.experts.backward(gradient, ctx.graphs, ctx.aliases, inputs=ctx.needs_input_grad[1])
        return None, found, *sums
