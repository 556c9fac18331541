"""Fused sharded optimizer: reduce-scatter gradients, update shards, all-gather weights.

Source: CoCoNet (ASPLOS 2022), whose transforms split, reorder and *as slice* make it of an all-reduce and an optimizer;
the tuner says whether that is quicker here, on the program of simulation. Parameters are cut into chunks, which follow
each other: while one is updated the gradients of the next are under way, and the weights of the one before.

The slice of a chunk is a parameter of an optimizer of the same class, whose updates are element by element: with the
same sums the weights are those of the plain optimizer bit for bit.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist

from coppice.arguments import checked
from coppice.errors import InputError
from coppice.iteration.machine import Cluster
from coppice.iteration.policies.tensor.coconet.costs import Tuned, autotune
from coppice.iteration.policies.tensor.coconet.program import OpKind, adam, momentum
from coppice.topology.model import Topology
from coppice.training.torch.core.agree import lost_rank
from coppice.training.torch.core.optimizer import clip, partitioned_norm
from coppice.training.torch.tensor.passes_hops import (
    MeasuredCosts,
    MeasuredMachine,
    all_gather_single,
    measured_costs,
    modelled_costs,
    reduce_scatter_single,
)

_STEP = "step"
"""The only state of these optimizers that has not an element for each of the parameter."""
_PROGRAMS = {torch.optim.SGD: momentum, torch.optim.Adam: adam, torch.optim.AdamW: adam}


@dataclass(eq=False)
class _Chunk:
    """Contiguous parameters of one group and type."""

    number: int  # Which chunk it is
    group: int  # Number of their group
    parameters: list[torch.nn.Parameter]  # The parameters; their memory is in `flat`
    flat: torch.Tensor  # All of them, filled up so that ranks divide it
    gradient: torch.Tensor  # Their gradients, likewise
    own: torch.nn.Parameter  # What this rank updates

    def views(self, flat: torch.Tensor) -> list[torch.Tensor]:
        """Views of each parameter in a flat tensor."""
        sizes = [each.numel() for each in self.parameters]
        parts = torch.split(flat[: sum(sizes)], sizes)
        return [part.view(each.shape) for part, each in zip(parts, self.parameters, strict=True)]


class FusedOptimizer(torch.optim.Optimizer):
    """Sharded optimizer made by :func:`fused_optimizer`, used like the original."""

    _step_supports_amp_scaling = (
        True  # a GradScaler then leaves it to step(), on all ranks alike, what it does
    )

    def __init__(
        self,
        optimizer: torch.optim.Optimizer,
        group: dist.ProcessGroup | None,
        tuned: Tuned,
        chunk_bytes: int,
        max_norm: float | None,
    ) -> None:
        super().__init__(optimizer.param_groups, optimizer.defaults)
        # The transforms that the tuner chose, and what it expects; nothing split means plain all-reduces
        self.tuned = tuned
        # What the last step did, in order: `start`, `wait` or `run` of operations of the tuned program, and
        # the chunk
        self.tasks: list[str] = []
        # Norm of the averaged gradients of the last step, where it is clipped
        self.gradient_norm: torch.Tensor | None = None
        self._group, self._max_norm = group, max_norm
        self._ranks, self._rank = dist.get_world_size(group), dist.get_rank(group)
        ops = tuned.program.ops
        self._sliced = ops["step"].kind is OpKind.ALL_GATHER
        self._sum = "sum.scatter" if self._sliced else "sum"
        kernels = tuned.program.in_order() or []
        self._computed = " ".join(
            name for kernel in kernels for name in kernel if ops[name].kind is OpKind.UPDATE
        )
        self._chunks: list[_Chunk] = []
        with _all_answer():
            for place, each in enumerate(self.param_groups):
                for frozen in (each for each in each["params"] if not each.requires_grad):
                    dist.broadcast(frozen.detach(), src=self._root, group=group)
                for parameters in _cut(each["params"], chunk_bytes):
                    self._chunks.append(self._chunk(len(self._chunks), place, parameters))
        groups: list[dict[str, Any]] = [
            {**_settings(each), "params": [chunk.own for chunk in self._chunks if chunk.group == number]}
            for number, each in enumerate(self.param_groups)
        ]
        kind: Any = type(optimizer)
        self._inner = kind([each for each in groups if each["params"]])
        self._numbers = [number for number, each in enumerate(groups) if each["params"]]

    @property
    def _root(self) -> int:
        """The first rank."""
        return dist.get_global_rank(self._group, 0) if self._group is not None else 0

    def _chunk(self, number: int, place: int, parameters: list[torch.nn.Parameter]) -> _Chunk:
        whole = sum(each.numel() for each in parameters)
        padded = -(-whole // self._ranks) * self._ranks
        flat = parameters[0].detach().new_zeros(padded)
        own = torch.nn.Parameter(torch.empty_like(self._slice(flat)) if self._sliced else flat)
        chunk = _Chunk(number, place, parameters, flat, torch.zeros_like(flat), own)
        for parameter, view in zip(parameters, chunk.views(flat), strict=True):
            view.copy_(parameter.detach())
            parameter.data = view
        dist.broadcast(flat, src=self._root, group=self._group)
        return chunk

    def _slice(self, flat: torch.Tensor) -> torch.Tensor:
        """This rank's shard."""
        each = len(flat) // self._ranks
        return flat[self._rank * each : (self._rank + 1) * each]

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Supported only before chunks are made."""
        if hasattr(self, "_chunks"):
            raise InputError(
                "expected all parameters when the optimizer is fused, found more: add them to the plain one before."
            )
        super().add_param_group(param_group)

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        """Average gradients over the ranks, and update."""
        if closure is not None or getattr(self, "found_inf", None) is not None:
            found = "a GradScaler" if closure is None else "a closure"
            raise InputError(
                f"expected plain calls of step(), found {found}: gradients are summed here, once a step, so train in "
                "bfloat16 or float32."
            )
        self._take()
        self.tasks = []
        with _all_answer():
            sums = [self._scatter(chunk) for chunk in self._chunks]
            if self._max_norm is not None:
                self._clip(sums, self._max_norm)
            gathers = []
            for chunk, (summed, work) in zip(self._chunks, sums, strict=True):
                if self._max_norm is None:
                    self._wait(chunk, work)
                self._update(chunk, summed)
                if self._sliced:
                    own = chunk.own.detach()
                    gathers.append(all_gather_single(chunk.flat, own, group=self._group, async_op=True))
                    self.tasks.append(f"start step {chunk.number}")
            for number, work in enumerate(gathers):
                work.wait()
                self.tasks.append(f"wait step {number}")

    def _take(self) -> None:
        """Copy gradients into their places, divided by the number of ranks."""
        for chunk in self._chunks:
            places = zip(chunk.parameters, chunk.views(chunk.flat), chunk.views(chunk.gradient), strict=True)
            for parameter, weights, view in places:
                shape = list(parameter.shape)
                if parameter.grad is None or parameter.grad.is_sparse:
                    found = "none" if parameter.grad is None else "a sparse one"
                    raise InputError(
                        f"expected a gradient of each parameter, found {found} of one of shape {shape}: freeze what "
                        "is not used before the optimizer is fused."
                    )
                if parameter.data_ptr() != weights.data_ptr():
                    raise InputError(
                        f"expected parameters where the optimizer put them, found one of shape {shape} elsewhere: fuse "
                        "the optimizer behind what moves or replaces them."
                    )
                torch.div(parameter.grad, self._ranks, out=view)

    def _scatter(self, chunk: _Chunk) -> tuple[torch.Tensor, Any]:
        """Start the reduce-scatter of a chunk's gradients; return its buffer and work."""
        self.tasks.append(f"start {self._sum} {chunk.number}")
        whole = chunk.gradient
        if not self._sliced:
            return whole, dist.all_reduce(whole, group=self._group, async_op=True)
        own = whole.new_empty(len(whole) // self._ranks)
        return own, reduce_scatter_single(own, whole, group=self._group, async_op=True)

    def _wait(self, chunk: _Chunk, work: Any) -> None:
        work.wait()
        self.tasks.append(f"wait {self._sum} {chunk.number}")

    def _clip(self, sums: list[tuple[torch.Tensor, Any]], most: float) -> None:
        """Clip the norm of averaged gradients; that of shards needs an all-reduce of one number."""
        for chunk, (_, work) in zip(self._chunks, sums, strict=True):
            self._wait(chunk, work)
        gradients = [each for each, _ in sums]
        holders = 1 if self._sliced else None
        self.gradient_norm = partitioned_norm(
            [(each, holders) for each in gradients], 2.0, self._group, gradients[0].device
        )
        self.tasks.append("run norm")
        clip(gradients, self.gradient_norm, most)

    def _update(self, chunk: _Chunk, summed: torch.Tensor) -> None:
        """Update this rank's shard of a chunk; parameters without gradients are unchanged."""
        for place, inner in zip(self._numbers, self._inner.param_groups, strict=True):
            inner.update(_settings(self.param_groups[place]))
        if self._sliced:  # whatever changed weights in between
            chunk.own.copy_(self._slice(chunk.flat))
        chunk.own.grad = summed
        self._inner.step()
        chunk.own.grad = None
        self.tasks.append(f"run {self._computed} {chunk.number}")

    def state_dict(self) -> dict[str, Any]:
        """Unsharded state of the original optimizer; collective over the ranks."""
        numbers: dict[int, int] = {}
        for each in self.param_groups:
            for parameter in each["params"]:
                numbers[id(parameter)] = len(numbers)
        state: dict[int, dict[str, Any]] = {}
        with _all_answer():
            for chunk in self._chunks:
                for key, value in sorted(self._inner.state[chunk.own].items()):
                    for parameter, part in zip(chunk.parameters, self._whole(chunk, key, value), strict=True):
                        state.setdefault(numbers[id(parameter)], {})[key] = part
        groups, first = [], 0
        for each in self.param_groups:
            count = len(each["params"])
            groups.append({**_settings(each), "params": list(range(first, first + count))})
            first += count
        return {"state": dict(sorted(state.items())), "param_groups": groups}

    def _whole(self, chunk: _Chunk, key: str, value: Any) -> list[Any]:
        """Unsharded state value per parameter."""
        if key == _STEP or value is None:
            return [value.clone() if isinstance(value, torch.Tensor) else value for _ in chunk.parameters]
        flat = value
        if self._sliced:
            flat = torch.empty_like(chunk.flat, dtype=value.dtype)
            all_gather_single(flat, value.contiguous(), group=self._group)
        return [part.clone() for part in chunk.views(flat)]

    @torch.no_grad()
    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load a state of the original optimizer, or of this one with any number of ranks."""
        parameters = [each for group in self.param_groups for each in group["params"]]
        numbers = {id(each): number for number, each in enumerate(parameters)}
        saved = state_dict["param_groups"]
        if [len(each["params"]) for each in saved] != [len(each["params"]) for each in self.param_groups]:
            raise InputError(
                "expected a state of as many parameters in as many groups, found another: load it into its model."
            )
        taken = [
            self._taken(chunk, [state_dict["state"].get(numbers[id(each)], {}) for each in chunk.parameters])
            for chunk in self._chunks
        ]
        for own, other in zip(self.param_groups, saved, strict=True):
            own.update(_settings(other))
        for chunk, held in zip(self._chunks, taken, strict=True):
            self._inner.state[chunk.own] = held

    def _taken(self, chunk: _Chunk, values: list[dict[str, Any]]) -> dict[str, Any]:
        """This rank's shard of the states of a chunk's parameters."""
        if any(
            each.keys() != values[0].keys() or float(each.get(_STEP, 0)) != float(values[0].get(_STEP, 0))
            for each in values
        ):
            raise InputError(
                "expected parameters that have all taken the same number of steps, found a state of others: begin with "
                "a new state, or with a smaller `chunk_bytes`."
            )
        held: dict[str, Any] = {}
        for key, first in values[0].items():
            if key == _STEP or first is None:
                held[key] = first.clone() if isinstance(first, torch.Tensor) else first
                continue
            flat = torch.zeros_like(chunk.flat, dtype=first.dtype)
            for view, value in zip(chunk.views(flat), values, strict=True):
                if value[key].shape != view.shape:
                    shapes = f"{list(view.shape)}, found {list(value[key].shape)}"
                    raise InputError(
                        f"expected a state of a parameter of shape {shapes}: load it into its model."
                    )
                view.copy_(value[key])
            held[key] = self._slice(flat).clone() if self._sliced else flat
        return held


@contextmanager
def _all_answer() -> Iterator[None]:
    """Context that names an unresponsive rank."""
    try:
        yield
    except RuntimeError as error:
        raise lost_rank(error, "update their slices") from error


def _settings(group: dict[str, Any]) -> dict[str, Any]:
    """Options of a group."""
    return {key: value for key, value in group.items() if key != "params"}


def _cut(parameters: Sequence[torch.nn.Parameter], chunk_bytes: int) -> list[list[torch.nn.Parameter]]:
    """Chunks of parameters of one type, by bytes, at least one parameter each."""
    runs: list[list[torch.nn.Parameter]] = []
    kinds: dict[tuple[torch.dtype, torch.device], list[torch.nn.Parameter]] = {}
    for parameter in parameters:
        if not parameter.requires_grad:
            continue
        kind = (parameter.dtype, parameter.device)
        size = sum(each.nbytes for each in kinds.get(kind, []))
        if kind not in kinds or size + parameter.nbytes > chunk_bytes:
            kinds[kind] = []
            runs.append(kinds[kind])
        kinds[kind].append(parameter)
    return runs


@checked
def fused_optimizer(
    optimizer: torch.optim.Optimizer,
    *,
    costs: Topology | Cluster | MeasuredCosts | tuple[float, float] | None = None,
    flops_per_s: float | None = None,
    group: dist.ProcessGroup | None = None,
    chunk_bytes: int = 2**24,
    max_norm: float | None = None,
) -> FusedOptimizer:
    """Optimizer that averages gradients and shards its state, where the tuner finds that faster.

    It takes the place of ``DistributedDataParallel`` and of the optimizer: weights start as those of the first rank,
    gradients are averaged in ``step()``. ``state_dict()`` is that of the plain optimizer, and any such state can be
    loaded, whatever the number of ranks.

    Args:
        optimizer: ``SGD``, ``Adam`` or ``AdamW`` of torch, before its first step.
        costs: What collectives cost: a topology, a cluster, or bytes a second and seconds per message. None: measured.
            Alike on all ranks.
        flops_per_s: Operations a second, which an optimizer hardly needs.
        group: The ranks; None: all.
        chunk_bytes: Bytes of parameters that go together.
        max_norm: Norm to which averaged gradients are clipped, all together; updates then wait for all sums.

    Raises:
        InputError: If the optimizer is another, or has taken a step, there is nothing to train, or ``max_norm`` is not
            above 0.
        CheckError: If a rank does not answer.

    Examples:
        >>> import torch, torch.distributed as dist
        >>> dist.init_process_group("gloo", rank=0, world_size=1, store=dist.HashStore())
        >>> model = torch.nn.Linear(2, 1)
        >>> optimizer = fused_optimizer(torch.optim.SGD(model.parameters(), lr=0.1), costs=(1e9, 1e-5))
        >>> model(torch.ones(1, 2)).sum().backward()
        >>> optimizer.step()
        >>> optimizer.tasks
        ['start sum 0', 'wait sum 0', 'run mean step 0']
        >>> dist.destroy_process_group()
    """
    if max_norm is not None and not max_norm > 0:
        raise InputError(f"expected a `max_norm` above 0, found {max_norm:g}.")
    program = _PROGRAMS.get(type(optimizer))
    trained = [each for own in optimizer.param_groups for each in own["params"] if each.requires_grad]
    if program is None or optimizer.state or not trained or chunk_bytes < 1:
        found = f"{type(optimizer).__name__}, {len(optimizer.state)} states, {len(trained)} parameters"
        raise InputError(
            f"expected torch's SGD, Adam or AdamW before its first step, parameters and `chunk_bytes`, found {found}, "
            f"{chunk_bytes}."
        )
    ranks = dist.get_world_size(group)
    elements = -(-sum(each.numel() for each in trained) // ranks) * ranks
    written = program(ranks=ranks, elements=elements)
    if ranks == 1:
        return FusedOptimizer(optimizer, group, Tuned(written, 0.0, (), 1), chunk_bytes, max_norm)
    if costs is None:
        known: Any = group if group is not None else dist.group.WORLD
        found_costs = measured_costs(known, trained[0].device, flops_per_s=flops_per_s)
    else:
        found_costs = modelled_costs(costs, ranks=ranks, flops_per_s=flops_per_s or 1e12)
    machine = MeasuredMachine.of(found_costs, element_bytes=trained[0].element_size())
    return FusedOptimizer(optimizer, group, autotune(written, machine), chunk_bytes, max_norm)
