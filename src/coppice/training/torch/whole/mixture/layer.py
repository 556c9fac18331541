"""Expert-parallel layer: ``MixtureOfExperts``.

With E experts on P ranks every rank has E / P of them, or every expert is on P / E ranks. Packing doubles the experts
of a rank: it takes over those of its partner, so nothing that a rank has is given away. Ranks that have all experts
between them are a *token group*, within which tokens are exchanged; ranks with the same experts are *replicas*, which
sum the gradients of these.

Gates say which experts a token takes, how much of each, and in which rows it is sent to them: top-1 as in the Switch
Transformer (Fedus et al., JMLR 2022), whose output is weighted with the probability of its expert; top-2 as in GShard
(Lepikhin et al., ICLR 2021), whose two weights add up to one. With a capacity an expert takes at most so many tokens of
a rank, first choices before second ones, by their place; the rest pass it by.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal, Protocol

import torch
import torch.distributed as dist
from torch import nn
from torch.func import functional_call

from coppice.arguments import checked
from coppice.errors import InputError
from coppice.training.torch.whole.mixture.exchanges import (
    DirectExchanges,
    Exchanges,
    PipelinedExperts,
    group_of_ranks,
)


@dataclass(frozen=True)
class ExpertLayout:
    """Assignment of experts to ranks.

    Raises:
        InputError: If experts cannot be dealt evenly.

    Examples:
        >>> plain = ExpertLayout(experts=4, ranks=4)
        >>> packed = plain.doubled()
        >>> [list(packed.own(rank)) for rank in range(4)]
        [[0, 1], [0, 1], [2, 3], [2, 3]]
        >>> packed.token_group(0), packed.replicas(0)
        ([0, 2], [0, 1])
    """

    experts: int  # Experts of a layer
    ranks: int  # Ranks
    of_rank: int = 0  # Experts that each rank has; 0: as few as there can be

    def __post_init__(self) -> None:
        if self.experts < 1 or self.ranks < 1 or (self.experts % self.ranks and self.ranks % self.experts):
            raise InputError(
                f"expected experts of which every rank has as many, or each expert as many ranks, found {self.experts} "
                f"experts on {self.ranks} ranks."
            )
        if not self.of_rank:
            object.__setattr__(self, "of_rank", self._least)
        copies = self.of_rank // self._least
        if self.of_rank % self._least or copies & (copies - 1) or copies < 1 or self._span % copies:
            raise InputError(
                f"expected {self._least} experts on a rank, or that doubled while the ranks of a group can be halved, "
                f"found {self.of_rank}."
            )

    @property
    def _least(self) -> int:
        return max(1, self.experts // self.ranks)

    @property
    def _span(self) -> int:
        """Consecutive ranks that together hold all experts without packing."""
        return self.experts // self._least

    @property
    def _copies(self) -> int:
        """Consecutive ranks that hold the same experts after packing."""
        return self.of_rank // self._least

    def position(self, rank: int) -> int:
        """Index of a rank in its token group."""
        return rank % self._span // self._copies

    def own(self, rank: int) -> range:
        """Experts of a rank."""
        first = self.position(rank) * self.of_rank
        return range(first, first + self.of_rank)

    def token_group(self, rank: int) -> list[int]:
        """Ranks that exchange tokens with a rank, by index."""
        first = rank - rank % self._span + rank % self._copies
        return list(range(first, first + self._span, self._copies))

    def replicas(self, rank: int) -> list[int]:
        """Ranks with the same experts as a rank."""
        return [other for other in range(self.ranks) if self.position(other) == self.position(rank)]

    def home(self, expert: int, rank: int) -> int:
        """Rank with an expert in the token group of a rank."""
        return self.token_group(rank)[expert // self.of_rank]

    @checked
    def doubled(self) -> ExpertLayout | None:
        """Layout with twice as many experts per rank; None where that is impossible."""
        group = self._span // self._copies
        return None if group % 2 else replace(self, of_rank=2 * self.of_rank)

    def partner(self, rank: int) -> int:
        """Rank that a rank merges experts with when they are doubled."""
        first = rank - rank % self._span
        return first + (rank % self._span ^ self._copies)


@dataclass(frozen=True)
class ExpertRoutes:
    """Routing of T tokens by a gate."""

    experts: torch.Tensor  # Experts of each token, T x top
    weights: torch.Tensor  # How much of each, T x top
    kept: torch.Tensor  # Which of them take it, T x top
    probabilities: torch.Tensor  # Of all experts, T x experts


def route(logits: torch.Tensor, top: int, capacity: int | None) -> ExpertRoutes:
    """Route tokens to experts.

    Args:
        logits: Of T tokens, T x experts.
        capacity: Tokens that an expert takes; None: all.

    Examples:
        >>> found = route(torch.tensor([[2.0, 1.0], [3.0, 0.0]]), 1, 1)
        >>> found.experts.tolist(), found.kept.tolist()
        ([[0], [0]], [[True], [False]])
    """
    probabilities = torch.softmax(logits.float(), dim=1)
    weights, experts = torch.topk(probabilities, top, dim=1)
    if top > 1:
        weights = weights / weights.sum(dim=1, keepdim=True)
    if capacity is None:
        kept = torch.ones_like(experts, dtype=torch.bool)
    else:
        flat = experts.t().reshape(-1)  # all first choices, then all second ones
        order = torch.argsort(flat, stable=True)
        counts = torch.bincount(flat, minlength=logits.shape[1])
        first = torch.cumsum(counts, 0) - counts
        place = torch.empty_like(flat)
        place[order] = torch.arange(len(flat), device=flat.device) - first[flat[order]]
        kept = (place < capacity).view(top, -1).t()
    return ExpertRoutes(experts, weights, kept, probabilities)


def balance_loss(routes: ExpertRoutes) -> torch.Tensor:
    """Load-balancing loss: 1 at perfect balance (Switch Transformer, section 2.2)."""
    experts = routes.probabilities.shape[1]
    taken = torch.bincount(routes.experts[:, 0], minlength=experts).to(routes.probabilities.dtype)
    share = taken / max(1, len(routes.experts))
    return experts * (share * routes.probabilities.mean(dim=0)).sum()


@dataclass(frozen=True)
class RoutedRows:
    """Rows in sending order: by chunk, rank, local expert, and token."""

    order: torch.Tensor  # Number of each row among all T x top choices
    # Rows of each piece for each expert of each rank, pieces x ranks x experts of a rank
    counts: torch.Tensor


def routed_rows(
    ranks: torch.Tensor, places: torch.Tensor, kept: torch.Tensor, *, pieces: int, shape: tuple[int, int]
) -> RoutedRows:
    """Rows of T tokens.

    Args:
        ranks: Rank that each choice goes to, T x top.
        places: Place there of its expert, T x top.
        kept: Choices that are sent, T x top.
        pieces: Tokens are cut in so many pieces in a row.

    Examples:
        >>> ranks, places = torch.tensor([[1], [0], [1], [0]]), torch.zeros(4, 1, dtype=torch.long)
        >>> found = routed_rows(ranks, places, places == 0, pieces=2, shape=(2, 1))
        >>> found.order.tolist(), found.counts.flatten().tolist()
        ([1, 0, 3, 2], [1, 1, 1, 1])
    """
    tokens = len(ranks)
    piece = torch.arange(tokens, device=ranks.device) * pieces // max(1, tokens)
    key = ((piece[:, None] * shape[0] + ranks) * shape[1] + places).reshape(-1)
    sent = torch.nonzero(kept.reshape(-1)).flatten()
    order = sent[torch.argsort(key[sent], stable=True)]
    counts = torch.bincount(key[sent], minlength=pieces * shape[0] * shape[1])
    return RoutedRows(order, counts.view(pieces, *shape))


class ExpertDirector(Protocol):
    """Interface of replacements that run a layer's experts, without gradients."""

    def mixed(self, layer: MixtureOfExperts, tokens: torch.Tensor, routes: ExpertRoutes) -> torch.Tensor:
        """Expert output for tokens."""


class MixtureOfExperts(nn.Module):
    """Expert-parallel layer: tokens go to the ranks of their experts and come back.

    Takes the place of a feed-forward layer. Each rank has its own tokens, and E / P of the E experts. Every rank makes
    every expert in turn and keeps its own, so that with one seed weights are those of one process; keys of the state
    are those of a model with all experts (``experts.5.weight``), of which a rank has some. A state with all of them
    can be loaded by any rank.

    Losses are averaged over ranks, as with DistributedDataParallel: gradients of an expert's parameters come out of
    the backward pass as those of the mean loss, and must not be summed over ranks. Where several ranks have an expert
    (fewer experts than ranks, or packed ones), those sum its gradients; ``schedule(policy="lina")`` does that.

    Args:
        width: Size of a token.
        expert: Makes an expert, a module that keeps the shape of its rows (any number x width).
        experts: Number of experts; as many on each rank, or each on as many ranks.
        top: Experts of a token, 1 or 2.
        capacity_factor: An expert takes at most so many times its even share of the tokens of a rank, and the others
            pass it by; None: none is dropped.
        group: The ranks; None: all.
        pieces: Tokens are cut in so many pieces, exchanged one after the other; ``schedule(policy="lina")`` sets it.
        of_rank: Experts of a rank; 0: as few as there can be.
        gate: Makes logits from tokens; None: a linear layer without bias.

    Raises:
        InputError: If the numbers do not fit.

    Source: Shazeer et al. (ICLR 2017); gates as in GShard and the Switch Transformer.

    Examples:
        >>> layer = MixtureOfExperts(8, lambda: torch.nn.Linear(8, 8), experts=4, top=2)
        >>> layer(torch.ones(2, 3, 8)).shape
        torch.Size([2, 3, 8])
    """

    @checked
    def __init__(
        self,
        width: int,
        expert: Callable[[], nn.Module],
        *,
        experts: int,
        top: Literal[1, 2] = 1,
        capacity_factor: float | None = None,
        group: Any = None,
        pieces: int = 1,
        of_rank: int = 0,
        gate: nn.Module | None = None,
    ) -> None:
        super().__init__()
        joined = dist.is_available() and dist.is_initialized()
        self.rank = dist.get_rank(group) if joined else 0
        # Which ranks have which experts
        self.layout = ExpertLayout(experts, dist.get_world_size(group) if joined else 1, of_rank)
        if top > experts or pieces < 1 or (capacity_factor is not None and capacity_factor <= 0):
            raise InputError(
                f"expected a piece or more, a capacity above 0 and as many experts as a token takes, found "
                f"`pieces={pieces}`, `capacity_factor={capacity_factor}` and {experts} experts for `top={top}`."
            )
        self.width, self.top, self.capacity_factor, self.group = width, top, capacity_factor, group
        self.pieces = pieces  # Pieces of tokens
        self.gate = gate if gate is not None else nn.Linear(width, experts, bias=False)
        self.experts = nn.ModuleDict()
        own = set(self.layout.own(self.rank))
        for number in range(experts):
            made = expert()
            if number in own:
                self.experts[str(number)] = made
        self.exchanges: Exchanges = DirectExchanges()  # What carries exchanges
        # What takes the place of the experts in inference; None: they run where they are
        self.director: ExpertDirector | None = None
        # The loss that keeps experts equally busy, of the last forward pass with gradients; 1 where they are
        self.balance: torch.Tensor | None = None
        self.taken: torch.Tensor | None = None  # Experts of the tokens of the last forward pass, tokens x top
        self.label = "mixture"

    def __getstate__(self) -> dict[str, Any]:
        """State of copies, without the schedule and leftovers of the last pass."""
        own = {"exchanges": DirectExchanges(), "director": None, "balance": None, "taken": None}
        return {**vars(self), **own}

    def extra_repr(self) -> str:
        """Text of the layer in torch's repr."""
        return f"experts={self.layout.experts}, top={self.top}, own={list(self.layout.own(self.rank))}"

    def capacity(self, tokens: int) -> int | None:
        """Capacity of an expert for tokens of one rank; None: unlimited."""
        if self.capacity_factor is None:
            return None
        return max(1, math.ceil(self.capacity_factor * self.top * tokens / self.layout.experts))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Weighted expert output; 0 for tokens dropped by all their experts.

        Args:
            x: Tokens, any shape that ends in the width.
        """
        tokens = x.reshape(-1, self.width)
        routes = route(self.gate(tokens), self.top, self.capacity(len(tokens)))
        self.taken = routes.experts
        if torch.is_grad_enabled():
            self.balance = balance_loss(routes)
        elif self.director is not None:
            return self.director.mixed(self, tokens, routes).reshape(x.shape)
        of_rank = self.layout.of_rank
        members = self.layout.token_group(self.rank)
        rows = routed_rows(
            routes.experts // of_rank,
            routes.experts % of_rank,
            routes.kept,
            pieces=self.pieces,
            shape=(len(members), of_rank),
        )
        group = group_of_ranks(self.group, members)
        parameters, names = [], []
        for module in self.experts.values():
            own = {name: each for name, each in module.named_parameters() if each.requires_grad}
            parameters += list(own.values())
            names.append(list(own))
        experts = PipelinedExperts(
            exchanges=self.exchanges,
            group=group,
            sent=rows.counts.cpu(),
            received=self.received_counts(rows.counts, group),
            run=self._run,
            names=names,
            scale=1 / self.layout.ranks,
            label=self.label,
        )
        return self.combined(tokens, routes, rows, lambda given: experts(given, parameters)).reshape(x.shape)

    def received_counts(self, counts: torch.Tensor, group: Any) -> torch.Tensor:
        """Rows received from each rank, chunks x ranks x places, on the host."""
        if group is None:
            return counts.cpu()
        pieces, ranks, places = counts.shape
        told = counts.transpose(0, 1).reshape(ranks * pieces * places)
        each = [pieces * places] * ranks
        got = self.exchanges.post(f"{self.label} counts", told, each, each, group).wait()
        return got.view(ranks, pieces, places).transpose(0, 1).cpu()

    def combined(
        self,
        tokens: torch.Tensor,
        routes: ExpertRoutes,
        rows: RoutedRows,
        experts: Callable[[torch.Tensor], torch.Tensor],
    ) -> torch.Tensor:
        """Exchange tokens as rows, and combine the weighted results."""
        token = rows.order // self.top
        made = experts(tokens.index_select(0, token))
        weights = routes.weights.reshape(-1).index_select(0, rows.order)
        weighted = made * weights[:, None].to(made.dtype)
        return torch.zeros_like(tokens, dtype=made.dtype).index_add(0, token, weighted)

    def _run(self, place: int, rows: torch.Tensor, parameters: Mapping[str, torch.Tensor]) -> torch.Tensor:
        module = self.experts[str(self.layout.own(self.rank)[place])]
        return functional_call(module, dict(parameters), (rows,)) if parameters else module(rows)  # type: ignore[no-any-return]

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *rest: Any) -> None:
        """Drop experts of other ranks from a full state."""
        own = {str(number) for number in self.layout.own(self.rank)}
        start = f"{prefix}experts."
        for key in [each for each in state_dict if each.startswith(start)]:
            number = key[len(start) :].split(".")[0]
            if number not in own and number.isdecimal() and int(number) < self.layout.experts:
                del state_dict[key]
        super()._load_from_state_dict(state_dict, prefix, *rest)


def mixture_layers(model: nn.Module) -> dict[str, MixtureOfExperts]:
    """Expert layers of a model by name, which becomes their label."""
    found = {name: each for name, each in model.named_modules() if isinstance(each, MixtureOfExperts)}
    for name, layer in found.items():
        layer.label = name or "mixture"
    return found


@checked
def expert_parameter_names(model: nn.Module) -> list[str]:
    """Names of expert parameters, which are not replicated.

    For DistributedDataParallel, which must leave them alone:
    ``DistributedDataParallel._set_params_and_buffers_to_ignore_for_model(model, expert_parameter_names(model))``.

    Examples:
        >>> expert_parameter_names(MixtureOfExperts(2, lambda: torch.nn.Linear(2, 2, bias=False), experts=2))
        ['experts.0.weight', 'experts.1.weight']
    """
    own = {
        id(parameter)
        for layer in model.modules()
        if isinstance(layer, MixtureOfExperts)
        for parameter in layer.experts.parameters()
    }
    return [name for name, parameter in model.named_parameters() if id(parameter) in own]
