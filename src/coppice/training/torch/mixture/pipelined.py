"""Experts and exchanges piece by piece: the experts compute one piece while the next one is exchanged.

Forward, all pieces are sent off at once; as soon as one is there its experts run, and what they make is sent back.
Backward it is the same the other way round: gradients of all pieces are sent to the experts, and each goes back when
these are through. The order in which a rank asks for exchanges depends on nothing but the number of pieces. To
autograd it is one operation: gradients of experts' parameters are added up over the pieces and handed over once.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from coppice.errors import InputError
from coppice.training.torch.mixture.exchanges import Exchanges

Run = Callable[[int, torch.Tensor, Mapping[str, torch.Tensor]], torch.Tensor]
"""Runs the expert of a place on rows with some parameters."""


@dataclass(frozen=True, eq=False)
class PipelinedExperts:
    """The experts of a rank, and what is exchanged for them."""

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
        """What the experts make of rows, in their order.

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
        """Order of the rows of a piece by place instead of by rank, and how many each place has; None: as they are."""
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
        """Forward; `graphs` gets the inputs and outputs of the experts of each piece."""
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
        """The experts on rows by place; None: there are no rows."""
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
        """Gradients of rows and of parameters."""
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
        """Gradient of the input of a piece, None where nobody wants it; those of parameters are added up."""
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
    """The experts as one operation."""

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
