"""Gradients and updates that are outstanding: optimizers that update a parameter once its gradient is averaged.

One updates each parameter when its gradient is there; the other is of a model of which ranks hold parts, and takes
norms of the whole model.

Modules that were seen to read a parameter wait for its update. Others may read it too: a branch that the recorded
iteration did not take, a parent that uses the weights of a child, a fused kernel in evaluation, a moving average of
weights. So a parameter is of a class of its own while its update is outstanding, and any function of torch that is
called with it completes the update first. What only asks for its shape, type or gradient does not.

Functions that wait for other ranks, or take times, are left to Python by torch.compile.
"""

from __future__ import annotations

import copyreg
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any, Protocol, Self, SupportsIndex, TypeVar, cast

import torch
import torch.distributed as dist
from torch._guards import TracingContext
from torch.utils._pytree import tree_leaves

from coppice.errors import InputError

_Function = TypeVar("_Function", bound=Callable[..., Any])

UPDATES_ARE_LATE = (
    "the policy of schedule() updates parameters late: call optimizer.flush() before what is compiled"
)
"""Why a graph is broken where a module waits for its parameters."""


def uncompiled(reason: str) -> Callable[[_Function], _Function]:
    """Decorator for functions that compiled code calls uncompiled.

    Args:
        reason: Why; torch says it where a graph must not be broken.
    """
    found: Any = torch.compiler.disable(reason=reason)  # type: ignore[no-untyped-call]
    return found  # type: ignore[no-any-return]


_ABOUT = (
    *(
        *("shape", "dtype", "device", "layout", "ndim", "itemsize", "nbytes", "requires_grad", "is_leaf"),
        "grad_fn",
    ),
    *("grad", "_grad", "_version", "is_cuda", "is_cpu", "is_sparse", "is_meta", "is_nested"),
)
_METHODS = ("size", "dim", "numel", "nelement", "element_size", "stride", "is_floating_point", "is_complex")


def _metadata() -> frozenset[Any]:
    """Functions that read no values."""
    found: set[Any] = {getattr(torch.Tensor, name) for name in _METHODS}
    for name in _ABOUT:
        described: Any = getattr(torch.Tensor, name)
        found.add(described.__get__)
    assigned: Any = torch.Tensor.grad
    return frozenset({*found, assigned.__set__, torch.is_floating_point, torch.is_complex, torch.numel})


_ONLY_METADATA = _metadata()


class LateParameters:
    """Parameters with outstanding updates.

    Args:
        complete: Completes the updates of some of them, and gives them their class back (:meth:`updated`).
    """

    def __init__(self, complete: Callable[[Sequence[torch.Tensor]], None]) -> None:
        self._complete = complete
        self._own: dict[int, type] = {}
        self._late: dict[type, type] = {}

    def expect(self, parameters: Sequence[torch.Tensor]) -> None:
        """Mark updates as outstanding."""
        for parameter in parameters:
            if id(parameter) not in self._own:
                self._own[id(parameter)] = type(parameter)
                parameter.__class__ = self._late_class(type(parameter))

    def updated(self, parameters: Sequence[torch.Tensor]) -> None:
        """Called before updates are made."""
        for parameter in parameters:
            kind = self._own.pop(id(parameter), None)
            if kind is not None:
                parameter.__class__ = kind

    def _late_class(self, kind: type) -> type:
        if kind in self._late:
            return self._late[kind]

        @uncompiled(UPDATES_ARE_LATE)
        def reading(
            _: type,
            func: Callable[..., Any],
            types: Any,
            args: Any = (),
            kwargs: Mapping[str, Any] | None = None,
        ) -> Any:
            del types
            given = dict(kwargs or {})
            if func not in _ONLY_METADATA:
                self._complete(
                    [
                        each
                        for each in tree_leaves((args, given))
                        if isinstance(each, torch.Tensor) and type(each) is made
                    ]
                )
                return func(*args, **given)
            with torch._C.DisableTorchFunctionSubclass():  # noqa: SLF001 (what torch's own subclasses do)
                return func(*args, **given)

        def copied(parameter: torch.Tensor, memo: dict[int, Any]) -> Any:
            self._complete([parameter])
            return parameter.__deepcopy__(memo)  # type: ignore[no-untyped-call]

        def reduced(parameter: torch.Tensor, protocol: Any) -> Any:
            self._complete([parameter])
            return parameter.__reduce_ex__(protocol)  # type: ignore[no-untyped-call]

        body = {
            "__torch_function__": classmethod(reading),
            "__deepcopy__": copied,
            "__reduce_ex__": reduced,
            "__doc__": "A parameter whose update is outstanding.",
        }
        made = type(f"Late{kind.__name__}", (kind,), body)
        self._late[kind] = made
        return made


class LateSteps(Protocol):
    """Interface of schedules to the optimizer."""

    accumulates: bool

    def step(self) -> None:
        """See :meth:`ScheduledOptimizer.step`."""

    def flush(self) -> None:
        """See :meth:`ScheduledOptimizer.flush`."""

    def synchronize(self) -> None:
        """See :meth:`ScheduledOptimizer.synchronize`."""

    def state(self) -> dict[str, Any]:
        """Additional optimizer state of the schedule."""

    def load(self, state: Mapping[str, Any]) -> None:
        """Load the additional optimizer state."""

    def close(self) -> None:
        """See :meth:`ScheduledOptimizer.close`."""


def _asked_by_zero_grad() -> frozenset[Any]:
    """Functions that `zero_grad` calls on a gradient before zeroing it."""
    described: Any = torch.Tensor.grad_fn
    return frozenset({described.__get__, torch.Tensor.requires_grad_})


_OF_ZERO_GRAD = _asked_by_zero_grad()


class PendingGradient(torch.Tensor):
    """Placeholder of a gradient: reading it before it is averaged raises an error."""

    zeroed: Callable[[], None]

    @classmethod
    def of(cls, place: torch.Tensor, zeroed: Callable[[], None]) -> PendingGradient:
        """Placeholder for a position in a bucket.

        Args:
            zeroed: What is called when it is set to 0, as ``zero_grad(set_to_none=False)`` does.
        """
        made: PendingGradient = torch.Tensor._make_subclass(cls, place)  # noqa: SLF001 (the documented way)
        made.zeroed = zeroed
        return made

    @classmethod
    def __torch_function__(
        cls, func: Callable[..., Any], types: Any, args: Any = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        """Refuse everything except the calls of `zero_grad`."""
        if func is torch.Tensor.zero_:
            args[0].zeroed()
            return args[0]
        if func in _OF_ZERO_GRAD:
            with torch._C.DisableTorchFunctionSubclass():  # noqa: SLF001 (what torch's own subclasses do)
                return func(*args, **dict(kwargs or {}))
        del types
        if TracingContext.try_get() is not None:  # torch.compile looks at the gradients of what it reads
            raise InputError(
                "expected what torch.compile compiles to read parameters after their updates, found one whose update "
                "is outstanding: call optimizer.flush() before the compiled function, or take a policy with a barrier "
                "(ddp)."
            )
        raise InputError(
            f"expected gradients to be read when they are summed, found {getattr(func, '__name__', 'an operation')} on "
            "one that is under way: call optimizer.synchronize() first (before unscale_ and step of a GradScaler too), "
            "clip by optimizer.clip_grad_norm_(), or take a policy with a barrier (ddp)."
        )


class ZeroedGradients:
    """Pending gradients that the user zeroed: they become 0, not None, after their update.

    Args:
        asked: Whether a step was asked for.
    """

    def __init__(self, asked: Callable[[], bool]) -> None:
        self._asked = asked
        self._places: set[int] = set()

    def add(self, place: int) -> None:
        """Add a gradient."""
        if not self._asked():
            raise InputError(
                "expected zero_grad() before backward() or after step(), found it between them, where gradients are "
                "under way: call optimizer.synchronize() first."
            )
        self._places.add(place)

    def left(self, place: int, parameter: torch.Tensor) -> torch.Tensor | None:
        """Remainder of a used gradient."""
        if place not in self._places:
            return None
        self._places.remove(place)
        return torch.zeros_like(parameter)


def update_only(
    optimizer: ScheduledOptimizer,
    groups: Sequence[Mapping[str, Any]],
    parameters: Sequence[torch.nn.Parameter],
) -> None:
    """Step an optimizer on some of its parameters, with the group settings at the time of the call.

    Right for optimizers that update each parameter by itself, as all of ``torch.optim`` but ``LBFGS`` do. A forward
    pass may ask for it, so what that has set (autocast, inference mode) is left for the time of the step.
    """
    if not parameters:
        return
    chosen = {id(each) for each in parameters}
    own = optimizer.param_groups
    parts = ({**group, "params": [p for p in group["params"] if id(p) in chosen]} for group in groups)
    optimizer.param_groups = [part for part in parts if part["params"]]
    kind = parameters[0].device.type
    try:
        with torch.inference_mode(mode=False), torch.autocast(kind, enabled=False):
            super(ScheduledOptimizer, optimizer).step()
    finally:
        optimizer.param_groups = own


class ScheduledOptimizer(torch.optim.Optimizer):
    """The user's optimizer with deferred steps: same object, state and settings."""

    schedule: Any  # the OverlapSchedule, which knows this class
    """The policy at work: its plan, times and prediction."""

    @classmethod
    def of(cls, optimizer: torch.optim.Optimizer, schedule: LateSteps) -> Self:
        """The same object, whose class takes its steps from a schedule."""
        given = type(optimizer)
        optimizer.__class__ = type(f"Scheduled{given.__name__}", (cls, given), {})
        made = cast("Self", optimizer)
        made.adopt(schedule)
        return made

    def adopt(self, schedule: LateSteps) -> None:
        """Attach to a schedule; an LR scheduler may have replaced `step` on the object."""
        self.schedule = schedule
        self._step_before = vars(self).get("step")
        if self._step_before is None:
            return
        late = type(self).step.__get__(self)

        def counted(closure: Callable[[], float] | None = None) -> None:
            self._opt_called = True  # what schedulers of rates look at
            late(closure)

        vars(counted).update(vars(self._step_before))
        self.step = counted  # type: ignore[method-assign]

    def release(self) -> None:
        """Restore the original optimizer."""
        if self._step_before is not None:
            self.step = self._step_before  # type: ignore[method-assign]
        self.__class__ = self._given  # type: ignore[assignment]

    @property
    def _given(self) -> type[torch.optim.Optimizer]:
        """Original class."""
        given: Any = next(each for each in type(self).__mro__ if not issubclass(each, ScheduledOptimizer))
        return given  # type: ignore[no-any-return]

    def __reduce_ex__(self, protocol: SupportsIndex) -> Any:
        """Copy as an optimizer of the original class, with all updates applied."""
        del protocol
        self.flush()
        return copyreg.__newobj__, (self._given,), self.__getstate__()  # type: ignore[attr-defined]

    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]
        """Update the parameters: immediately under a policy with a barrier, else each before its next use."""
        if closure is not None:
            raise InputError(
                "expected step() without a closure, found one: it would run the model before it is updated."
            )
        self.schedule.step()

    def zero_grad(self, set_to_none: bool = True) -> None:  # noqa: FBT001, FBT002 (as in torch)
        """Zero gradients, except pending ones."""
        for group in self.param_groups:
            for parameter in group["params"]:
                gradient = parameter.grad
                if gradient is None or (set_to_none and type(gradient) is PendingGradient):
                    continue
                if set_to_none:
                    parameter.grad = None
                elif (
                    gradient.grad_fn is not None
                ):  # of `create_graph`; others are views in buckets, and stay there
                    parameter.grad = gradient.detach().zero_()
                else:
                    gradient.zero_()

    def state_dict(self) -> dict[str, Any]:
        """State after all updates, with the original keys, and what a rank holds back."""
        self.flush()
        own = self.schedule.state()  # first: servers tell theirs
        return {**super().state_dict(), **own}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load a state."""
        self.flush()
        super().load_state_dict(state_dict)
        self.schedule.load(state_dict)

    def flush(self) -> None:
        """Complete outstanding messages and updates, before code other than the model reads parameters."""
        self.schedule.flush()

    def synchronize(self) -> None:
        """Wait until all gradients are averaged, and store them in ``grad``."""
        self.schedule.synchronize()

    def clip_grad_norm_(self, max_norm: float, norm_type: float = 2.0) -> torch.Tensor:
        """Clip the norm of all averaged gradients; this waits for them, losing overlap with forward."""
        self.synchronize()
        parameters = [p for group in self.param_groups for p in group["params"]]
        return torch.nn.utils.clip_grad_norm_(parameters, max_norm, norm_type)

    def no_sync(self) -> AbstractContextManager[None]:
        """Context in which gradients accumulate locally."""
        return self._no_sync()

    @contextmanager
    def _no_sync(self) -> Iterator[None]:
        before = self.schedule.accumulates
        self.schedule.accumulates = True
        try:
            yield
        finally:
            self.schedule.accumulates = before

    def close(self) -> None:
        """Complete everything, and restore the original optimizer and model."""
        self.schedule.close()


class PartitionedOptimizer(ScheduledOptimizer):
    """A :class:`ScheduledOptimizer` whose schedule computes the norm of all gradients (``gradient_norm``)."""

    def clip_grad_norm_(self, max_norm: float, norm_type: float = 2.0) -> torch.Tensor:
        """Clip the norm of all gradients, including those on other ranks."""
        norm: torch.Tensor = self.schedule.gradient_norm(norm_type)
        clip(
            (p.grad for group in self.param_groups for p in group["params"] if p.grad is not None),
            norm,
            max_norm,
        )
        return norm


class SynchronousSteps:
    """Steps of a schedule that has averaged all gradients when ``backward()`` returns: nothing is late."""

    optimizer: ScheduledOptimizer
    _trained: Sequence[torch.nn.Parameter]

    def step(self) -> None:
        """See :meth:`ScheduledOptimizer.step`."""
        update_only(self.optimizer, [dict(group) for group in self.optimizer.param_groups], self._trained)

    def synchronize(self) -> None:
        """See :meth:`ScheduledOptimizer.synchronize`."""

    def flush(self) -> None:
        """See :meth:`ScheduledOptimizer.flush`."""


def partitioned_norm(
    gradients: Iterable[tuple[torch.Tensor, float | None]],
    norm_type: float,
    group: dist.ProcessGroup | None,
    device: torch.device,
) -> torch.Tensor:
    """Norm of gradients of which ranks hold parts; collective over the ranks.

    Args:
        gradients: Those of this rank, each with the number of ranks that hold it; None: all do.
        group: The ranks.
    """
    most = norm_type == float("inf")
    everywhere, parts = (torch.zeros((), device=device) for _ in range(2))
    for gradient, holders in gradients:
        norm = torch.linalg.vector_norm(gradient.float(), norm_type).to(device)
        if not most:
            norm = norm**norm_type / (holders or 1)
        add = torch.maximum if most else torch.add
        if holders is None:
            everywhere = add(everywhere, norm)
        else:
            parts = add(parts, norm)
    dist.all_reduce(parts, op=dist.ReduceOp.MAX if most else dist.ReduceOp.SUM, group=group)
    return torch.maximum(everywhere, parts) if most else (everywhere + parts) ** (1 / norm_type)


def clip(gradients: Iterable[torch.Tensor], norm: torch.Tensor, max_norm: float) -> torch.Tensor:
    """Scale gradients in place to a norm; return the factor."""
    factor = torch.clamp(max_norm / (norm + 1e-6), max=1.0)
    for gradient in gradients:
        gradient.mul_(factor.to(gradient))
    return factor
