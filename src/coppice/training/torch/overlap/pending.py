"""Gradients that are not summed yet, and the optimizers of schedules.

One updates each parameter when its gradient is there; the other is of a model of which ranks hold parts, and takes
norms of the whole model.
"""

from __future__ import annotations

import copyreg
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any, Protocol, SupportsIndex

import torch
from torch._guards import TracingContext

from coppice.errors import InputError


class LateSteps(Protocol):
    """What sends gradients and says when a parameter is updated, as the optimizer sees it."""

    accumulates: bool

    def step(self) -> None:
        """See :meth:`ScheduledOptimizer.step`."""

    def flush(self) -> None:
        """See :meth:`ScheduledOptimizer.flush`."""

    def synchronize(self) -> None:
        """See :meth:`ScheduledOptimizer.synchronize`."""

    def state(self) -> dict[str, Any]:
        """What an optimizer's state has beside that of torch."""

    def load(self, state: Mapping[str, Any]) -> None:
        """Take over what an optimizer's state has beside that of torch."""

    def close(self) -> None:
        """See :meth:`ScheduledOptimizer.close`."""


def _asked_by_zero_grad() -> frozenset[Any]:
    """What `zero_grad` asks of a gradient before it sets it to 0."""
    described: Any = torch.Tensor.grad_fn
    return frozenset({described.__get__, torch.Tensor.requires_grad_})


_OF_ZERO_GRAD = _asked_by_zero_grad()


class PendingGradient(torch.Tensor):
    """Stands where a gradient will be: whoever reads it before it is summed gets an error instead of a wrong number."""

    zeroed: Callable[[], None]

    @classmethod
    def of(cls, place: torch.Tensor, zeroed: Callable[[], None]) -> PendingGradient:
        """One that stands for a place in a pool.

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
        """Refuses all but what `zero_grad` asks."""
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
    """Gradients under way that were set to 0: they are to be 0, not None, when the update that they are for is made.

    Args:
        asked: Whether a step was asked for.
    """

    def __init__(self, asked: Callable[[], bool]) -> None:
        self._asked = asked
        self._places: set[int] = set()

    def add(self, place: int) -> None:
        """One more."""
        if not self._asked():
            raise InputError(
                "expected zero_grad() before backward() or after step(), found it between them, where gradients are "
                "under way: call optimizer.synchronize() first."
            )
        self._places.add(place)

    def left(self, place: int, parameter: torch.Tensor) -> torch.Tensor | None:
        """What is left of a gradient that was used."""
        if place not in self._places:
            return None
        self._places.remove(place)
        return torch.zeros_like(parameter)


def update_only(
    optimizer: ScheduledOptimizer,
    groups: Sequence[Mapping[str, Any]],
    parameters: Sequence[torch.nn.Parameter],
) -> None:
    """A step of an optimizer on some of its parameters, with the settings of groups as they were when it was asked for.

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
    """What an optimizer becomes: the same object, state and settings, with steps that may come late."""

    schedule: Any  # the OverlapSchedule, which knows this class
    """The policy at work: its plan, times and prediction."""

    def adopt(self, schedule: LateSteps) -> None:
        """Belong to a schedule. A scheduler of rates that was made before has put its own `step` on the object."""
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
        """Be what was given again."""
        if self._step_before is not None:
            self.step = self._step_before  # type: ignore[method-assign]
        self.__class__ = self._given  # type: ignore[assignment]

    @property
    def _given(self) -> type[torch.optim.Optimizer]:
        """The class that was given."""
        given: Any = next(each for each in type(self).__mro__ if not issubclass(each, ScheduledOptimizer))
        return given  # type: ignore[no-any-return]

    def __reduce_ex__(self, protocol: SupportsIndex) -> Any:
        """A copy is an optimizer of the class that was given, with the state after all updates."""
        del protocol
        self.flush()
        return copyreg.__newobj__, (self._given,), self.__getstate__()  # type: ignore[attr-defined]

    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]
        """Update the parameters: now where the policy has a barrier, else each before it is next read."""
        if closure is not None:
            raise InputError(
                "expected step() without a closure, found one: it would run the model before it is updated."
            )
        self.schedule.step()

    def zero_grad(self, set_to_none: bool = True) -> None:  # noqa: FBT001, FBT002 (as in torch)
        """Forget gradients, but those that are still to be used."""
        for group in self.param_groups:
            for parameter in group["params"]:
                gradient = parameter.grad
                if gradient is None or (set_to_none and type(gradient) is PendingGradient):
                    continue
                if set_to_none:
                    parameter.grad = None
                elif (
                    gradient.grad_fn is not None
                ):  # of `create_graph`; others are views in pools, and stay there
                    parameter.grad = gradient.detach().zero_()
                else:
                    gradient.zero_()

    def state_dict(self) -> dict[str, Any]:
        """The state after all updates, with the keys of the optimizer that was given, and what a rank has held back."""
        self.flush()
        own = self.schedule.state()  # first: servers tell theirs
        return {**super().state_dict(), **own}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Take a state over."""
        self.flush()
        super().load_state_dict(state_dict)
        self.schedule.load(state_dict)

    def flush(self) -> None:
        """Complete every outstanding message and update; call it before others than the model read parameters."""
        self.schedule.flush()

    def synchronize(self) -> None:
        """Wait until all gradients are summed, and put them where they belong."""
        self.schedule.synchronize()

    def clip_grad_norm_(self, max_norm: float, norm_type: float = 2.0) -> torch.Tensor:
        """Clip the norm of all averaged gradients; they are waited for, so nothing overlaps the forward pass."""
        self.synchronize()
        parameters = [p for group in self.param_groups for p in group["params"]]
        return torch.nn.utils.clip_grad_norm_(parameters, max_norm, norm_type)

    def no_sync(self) -> AbstractContextManager[None]:
        """A context in which backward passes add up on each rank, and send nothing."""
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
        """Complete everything, then be the optimizer and the model that were given."""
        self.schedule.close()


class PartitionedOptimizer(ScheduledOptimizer):
    """See :class:`ScheduledOptimizer`; its schedule has the norm of all gradients (``gradient_norm``)."""

    def clip_grad_norm_(self, max_norm: float, norm_type: float = 2.0) -> torch.Tensor:
        """Clip the norm of all gradients, with those of what other ranks hold."""
        norm: torch.Tensor = self.schedule.gradient_norm(norm_type)
        gradients = [p.grad for group in self.param_groups for p in group["params"] if p.grad is not None]
        factor = torch.clamp(max_norm / (norm + 1e-6), max=1.0)
        for gradient in gradients:
            gradient.mul_(factor.to(gradient.dtype))
        return norm
