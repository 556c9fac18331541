"""Gradients that are not summed yet, and the optimizer that updates a parameter when its gradient is."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any, Protocol

import torch

from coppice.errors import InputError

__all__ = ["LateSteps", "PendingGradient", "ScheduledOptimizer", "update_only"]


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


class PendingGradient(torch.Tensor):
    """Stands where a gradient will be: whoever reads it before it is summed gets an error instead of a wrong number."""

    @classmethod
    def of(cls, place: torch.Tensor) -> PendingGradient:
        """One that stands for a place in a pool."""
        made: PendingGradient = torch.Tensor._make_subclass(cls, place)  # noqa: SLF001 (the documented way)
        return made

    @classmethod
    def __torch_function__(
        cls, func: Callable[..., Any], types: Any, args: Any = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        """Refuses.

        Raises:
            InputError: Always.
        """
        del types, args, kwargs
        msg = (
            f"expected gradients to be read when they are summed, found {getattr(func, '__name__', 'an operation')} on "
            "one that is under way: call optimizer.synchronize() first (before unscale_ and step of a GradScaler too), "
            "clip by optimizer.clip_grad_norm_(), or take a policy with a barrier (ddp)."
        )
        raise InputError(msg)


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
        given = next(each for each in type(self).__mro__ if not issubclass(each, ScheduledOptimizer))
        self.__class__ = given  # type: ignore[assignment]

    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]
        """Update the parameters: now where the policy has a barrier, else each before it is next read.

        Raises:
            InputError: If there is a closure, which would need the parameters at once.
            CheckError: If a rank does not answer.
        """
        if closure is not None:
            msg = "expected step() without a closure, found one: it would run the model before it is updated."
            raise InputError(msg)
        self.schedule.step()

    def zero_grad(self, set_to_none: bool = True) -> None:  # noqa: FBT001, FBT002 (as in torch)
        """Forget gradients, but those that are still to be used."""
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is None or type(parameter.grad) is PendingGradient:
                    continue
                if set_to_none:
                    parameter.grad = None
                else:
                    parameter.grad.detach_().zero_()

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
        """Complete every message and update that is outstanding; call it before others than the model read parameters.

        Raises:
            CheckError: If a rank does not answer.
        """
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
