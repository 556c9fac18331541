"""Gradients and weights of a section in flat memory, replicated or sharded over replicas as in ZeRO-3.

Gradients of some parameters lie in a row, whose mean is taken. Where every replica keeps a part of the weights, the
parameters that the optimizer has are this rank's part of each, in one dimension; a part may be empty. Whole weights
have memory only from their gather until the section has used them, whole gradients until they are scattered. Layers
compute with tensors of the whole shape in the places of their parameters.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.func import functional_call

from coppice.errors import InputError
from coppice.training.torch.core.attached import ModuleAttachments
from coppice.training.torch.whole.templates import CollectiveBuffers, all_gather_single


class GradientBucket:
    """Contiguous gradient bucket; other types are converted to that of the first.

    Args:
        parameters: The parameters.
        ranks: The mean is over so many.
        shared: It is over the ranks with the same share of sections, not over all.
        padded: Elements of the row at least.

    Examples:
        >>> weight = nn.Parameter(torch.zeros(2))
        >>> bucket = GradientBucket([weight], 2)
        >>> weight.grad = torch.tensor([2.0, 4.0])
        >>> bucket.fill()
        >>> bucket.flat
        tensor([1., 2.])
    """

    def __init__(
        self, parameters: Sequence[nn.Parameter], ranks: int, *, shared: bool = True, padded: int = 0
    ) -> None:
        self._parameters, self._ranks, self.shared = list(parameters), ranks, shared
        kind = torch.float32
        for each in parameters:
            kind = torch.promote_types(kind, each.dtype) if each.dtype == torch.float64 else kind
        if parameters and all(each.dtype == parameters[0].dtype for each in parameters):
            kind = parameters[0].dtype
        sizes = [each.numel() for each in parameters]
        device = parameters[0].device if parameters else None
        self.flat = torch.zeros(max(sum(sizes), padded), dtype=kind, device=device)
        self._views = [
            view.view(each.shape)
            for view, each in zip(torch.split(self.flat[: sum(sizes)], sizes), parameters, strict=True)
        ]

    @property
    def parameters(self) -> Sequence[nn.Parameter]:
        """Parameters of the bucket."""
        return self._parameters

    def buffers(self, group: dist.ProcessGroup | None) -> CollectiveBuffers:
        """Buffers of the averaging collective in a group; None: all ranks."""
        return CollectiveBuffers("all_reduce", self.flat, group=group)

    def fill(self) -> None:
        """Copy the gradients in, divided by the number of ranks."""
        self._take(self._parameters)

    def _take(self, tensors: Sequence[torch.Tensor]) -> None:
        for parameter, view in zip(tensors, self._views, strict=True):
            gradient = parameter.grad
            if gradient is None or gradient.is_sparse:
                found = "none" if gradient is None else "a sparse one"
                raise InputError(
                    f"expected dense gradients of all trained parameters, found {found} of one of shape "
                    f"{list(parameter.shape)}: freeze what is not used (requires_grad=False)."
                )
            if gradient.dtype == view.dtype:
                torch.mul(gradient, 1 / self._ranks, out=view)
            else:
                view.copy_(gradient)
                view.mul_(1 / self._ranks)

    def hand_out(self) -> None:
        """Replace the gradients by their mean."""
        for parameter, view in zip(self._parameters, self._views, strict=True):
            parameter.grad = view if view.dtype == parameter.dtype else view.to(parameter.dtype)


def _refuse_copies() -> None:
    """Refuse copies of a section with sharded weights."""
    raise InputError(
        "expected whole weights to copy, found sections that are sharded over replicas: load model.state_dict(), which "
        "all ranks call, into a model built anew, or call optimizer.close() first."
    )


_NOT_BY_ELEMENT = ("Adafactor", "LBFGS", "Muon", "SparseAdam")
"""Optimizers of torch whose updates look at more than the gradient and state of one element."""


class ShardedWeights(GradientBucket):
    """Trained weights of a section, gathered only while needed; gradients are reduce-scattered.

    Args:
        inner: The section's layers; its trained parameters become parts of themselves.
        trained: These parameters.
        group: The replicas, which hold the same; None: all ranks.

    Attributes:
        shared: The mean is over the replicas.

    Raises:
        InputError: If parameters are of several types.

    Examples:
        >>> store = dist.HashStore()
        >>> dist.init_process_group("gloo", rank=0, world_size=1, store=store)
        >>> inner = nn.Linear(3, 2)
        >>> weights = ShardedWeights(inner, list(inner.parameters()), None)
        >>> inner.weight.shape, weights.held
        (torch.Size([6]), False)
        >>> with torch.no_grad():
        ...     weights.evaluated(torch.ones(1, 3)).shape, weights.held
        (torch.Size([1, 2]), False)
        >>> dist.destroy_process_group()
    """

    def __init__(
        self, inner: nn.Module, trained: Sequence[nn.Parameter], group: dist.ProcessGroup | None
    ) -> None:
        kinds = sorted({f"{each.dtype} on {each.device}" for each in trained})
        if len(kinds) > 1:
            raise InputError(
                f"expected weights of one type in a section whose weights are sharded, found {kinds[0]} and "
                f"{kinds[1]}: freeze one of them, or give it a section of its own."
            )
        ranks, self._place = dist.get_world_size(group), dist.get_rank(group)
        self._inner, self._group = inner, group
        self._shapes = [each.shape for each in trained]
        self.lengths = [each.numel() for each in trained]  # Elements of each parameter, whole
        # Every rank's part is as long as the others', the last one with zeros at its end.
        self._part_length = -(-sum(self.lengths) // ranks)
        padded = self._part_length * ranks
        first = trained[0]
        self._whole = torch.zeros(padded, dtype=first.dtype, device=first.device)
        with torch.no_grad():
            torch.cat([each.detach().reshape(-1) for each in trained], out=self._whole[: sum(self.lengths)])
        self._part = self._whole.view(ranks, -1)[self._place].clone()
        self._mean = torch.zeros_like(self._part)
        pieces = torch.split(self._whole[: sum(self.lengths)], self.lengths)
        # `.data`, as what autograd has saved is still right when the same weights are gathered again.
        self._leaves = [
            piece.view(shape).data.requires_grad_() for piece, shape in zip(pieces, self._shapes, strict=True)
        ]
        self._count, self._lock = 0, threading.Lock()
        super().__init__(trained, ranks, padded=padded)
        for parameter, own in zip(trained, self.own(self._part), strict=True):
            parameter.data = own
            parameter.grad = None
        place_of = {id(parameter): place for place, parameter in enumerate(trained)}
        self._places = {
            name: place_of[id(each)]
            for name, each in inner.named_parameters(remove_duplicate=False)
            if id(each) in place_of
        }
        self._before: list[torch.Tensor | None] = [None] * len(trained)
        self.release()
        _resize(self.flat, 0)
        self._hollow = self.flat
        self._attached = ModuleAttachments(_refuse_copies)
        for handle in (
            # Functions of their own, as torch writes on them.
            inner.register_state_dict_post_hook(lambda *given: self._save(*given)),  # type: ignore[no-untyped-call]
            inner.register_load_state_dict_pre_hook(lambda *given: self._load(*given)),  # type: ignore[no-untyped-call]
        ):
            self._attached.add(inner, handle)

    @property
    def held(self) -> bool:
        """Whether the whole weights have memory."""
        return self._whole.untyped_storage().size() > 0

    def own(self, part: torch.Tensor) -> list[torch.Tensor]:
        """Slice of this rank's shard per parameter."""
        first = self._place * self._part_length
        found, begin = [], 0
        for length in self.lengths:
            bounds = [
                min(max(at - first, 0), self._part_length) for at in (begin, begin + length)
            ]  # of the parameter, in the part
            found.append(part[bounds[0] : bounds[1]])
            begin += length
        return found

    def cut(self, place: int, whole: torch.Tensor) -> torch.Tensor:
        """This rank's shard of a tensor shaped like a parameter."""
        begin = sum(self.lengths[:place])
        first = self._place * self._part_length
        bounds = [min(max(at - begin, 0), self.lengths[place]) for at in (first, first + self._part_length)]
        return whole.reshape(-1)[bounds[0] : bounds[1]]

    def call(self, x: torch.Tensor) -> torch.Tensor:
        """Inner layers on gathered weights."""
        given = {name: self._leaves[place] for name, place in self._places.items()}
        found: torch.Tensor = functional_call(self._inner, given, (x,))
        return found

    def evaluated(self, x: torch.Tensor) -> torch.Tensor:
        """Inner layers outside of a plan; collective over the replicas."""
        if torch.is_grad_enabled():
            raise InputError(
                "expected passes outside of training without gradients where weights are sharded, found one with: run "
                "it under torch.no_grad(), or call train() on the model."
            )
        held = self.held
        if not held:
            self.gather_now()
        found = self.call(x)
        if not held:
            self.release()
        return found

    def gather_now(self) -> None:
        """All-gather the weights outside of a plan; collective over the replicas."""
        every = self._part.new_empty(
            self._whole.numel()
        )  # as a backend may keep memory that it has seen from resizing
        with torch.no_grad():
            all_gather_single(every, self._part, group=self._group)
            self._hold()
            self._whole.copy_(every)

    def whole(self, parts: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """All-gather tensors from this rank's shards, one per parameter; collective over the replicas."""
        own = torch.cat(
            [*(each.detach().reshape(-1) for each in parts), parts[0].new_zeros(self._part_length)]
        )
        every = own.new_empty(self._whole.numel())
        all_gather_single(every, own[: self._part_length], group=self._group)
        pieces = torch.split(every[: sum(self.lengths)], self.lengths)
        return [piece.view(shape) for piece, shape in zip(pieces, self._shapes, strict=True)]

    def shard_state(self, optimizer: torch.optim.Optimizer) -> None:
        """Shard the optimizer state."""
        for place, parameter in enumerate(self.parameters):
            state: dict[str, Any] = optimizer.state.get(parameter, {})
            for key, value in state.items():
                if isinstance(value, torch.Tensor) and value.shape == self._shapes[place]:
                    state[key] = self.cut(place, value).clone()

    def close(self, optimizer: torch.optim.Optimizer) -> None:
        """Unshard parameters and optimizer state; collective over the replicas."""
        self._attached.remove()
        states = [optimizer.state.get(each, {}) for each in self.parameters]
        parts = [each.detach() for each in self.parameters]
        for key in [key for key, value in states[0].items() if _of_part(value, parts[0])]:
            if all(_of_part(state.get(key), part) for state, part in zip(states, parts, strict=True)):
                for state, value in zip(states, self.whole([state[key] for state in states]), strict=True):
                    state[key] = value
        for parameter, value in zip(self.parameters, self.whole(parts), strict=True):
            parameter.grad = None
            parameter.data = value

    def gathered(self, run: Callable[[int, int], None]) -> Callable[[int, int], None]:
        """Action that all-gathers the weights, with memory for them."""

        def held(piece: int, phase: int) -> None:
            self._hold()
            run(piece, phase)

        return held

    def release(self) -> None:
        """Release the whole weights until the next all-gather."""
        _resize(self._whole, 0)

    def gather_buffers(self) -> CollectiveBuffers:
        """Buffers of the weights' all-gather."""
        return CollectiveBuffers("all_gather", self._part, self._whole, group=self._group)

    def buffers(self, group: dist.ProcessGroup | None) -> CollectiveBuffers:
        """Buffers of the gradients' reduce-scatter."""
        del group
        return CollectiveBuffers("reduce_scatter", self.flat, self._mean, group=self._group)

    def fill(self) -> None:
        """Copy whole gradients in, divided by the number of ranks; `hand_out` accumulates the means."""
        self._before = [None if each.grad is None else each.grad.clone() for each in self._parameters]
        self.flat = self._part.new_zeros(self._whole.numel())
        pieces = torch.split(self.flat[: sum(self.lengths)], self.lengths)
        self._views = [piece.view(shape) for piece, shape in zip(pieces, self._shapes, strict=True)]
        self._take(self._leaves)
        self.forget()

    def forget(self) -> None:
        """Drop gradients accumulated on this rank."""
        for each in self._leaves:
            each.grad = None

    def scattered(self, run: Callable[[int, int], None], tasks: int) -> Callable[[int, int], None]:
        """Action that reduce-scatters gradients; whole gradients are freed when its tasks have run."""
        self._count = 0
        kept = [run]

        def freed(piece: int, phase: int) -> None:
            kept[0](piece, phase)
            with self._lock:
                self._count += 1
                if self._count == tasks:
                    kept.clear()
                    _left(self.flat)
                    self.flat, self._views = self._hollow, []

        return freed

    def hand_out(self) -> None:
        """Store the means as gradients."""
        for parameter, view, before in zip(self._parameters, self.own(self._mean), self._before, strict=True):
            parameter.grad = view if before is None else view.add_(before)
        self._before = [None] * len(self._before)

    def _save(self, _module: nn.Module, state: dict[str, Any], prefix: str, _metadata: Any) -> None:
        """State-dict hook that unshards parameters."""
        values = self.whole(self.parameters)
        for name, place in self._places.items():
            if prefix + name in state:
                state[prefix + name] = values[place]

    def _load(self, _module: nn.Module, state: dict[str, Any], prefix: str, *_: Any) -> None:
        """State-dict hook that takes this rank's shard."""
        for name, place in self._places.items():
            found = state.get(prefix + name)
            if isinstance(found, torch.Tensor) and found.shape == self._shapes[place]:
                state[prefix + name] = self.cut(place, found)

    def _hold(self) -> None:
        with self._lock:
            if not self.held:
                _resize(self._whole, self._whole.numel())


def _of_part(value: Any, part: torch.Tensor) -> bool:
    return isinstance(value, torch.Tensor) and value.shape == part.shape and value.dim() > 0


def _left(tensor: torch.Tensor) -> None:
    """Keep freed GPU memory from reuse until the current stream is done with it."""
    if tensor.device.type == "cuda":
        tensor.record_stream(torch.cuda.current_stream(tensor.device))


def _resize(tensor: torch.Tensor, elements: int) -> None:
    """Allocate or free a tensor's memory."""
    if not elements:
        _left(tensor)
    tensor.untyped_storage().resize_(elements * tensor.element_size())


def require_by_element(optimizer: torch.optim.Optimizer) -> None:
    """Check that optimizer updates are element-wise."""
    kinds = {each.__name__ for each in type(optimizer).__mro__}
    bad = next((name for name in _NOT_BY_ELEMENT if name in kinds), None)
    if bad is not None:
        raise InputError(
            f"expected an optimizer that updates every element by itself, as weights are sharded, found {bad}."
        )
