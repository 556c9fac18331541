"""Iterations watched: which module reads which parameter, in which order, and how long everything takes.

A parameter may be updated late only if whoever reads it waits. Its owner is not always who reads it (tied weights are
read by another module), so one forward pass runs under a mode that sees every operation with its arguments, and the
innermost module at that time is the reader. What no operation was seen to read is taken to be read at the start.

Times come from later iterations without that mode: a module's turn is from its start to that of the next reader, and
a gradient's time is from the gradient before it.
"""

from __future__ import annotations

import itertools
import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any

from torch import nn
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_leaves
from torch.utils.hooks import RemovableHandle


class Readers(TorchFunctionMode):
    """A forward pass, operation by operation.

    Args:
        model: The model.
        parameters: Its trained parameters.

    Attributes:
        order: Parameters in the order in which they were first read; those that were not come first.
    """

    def __init__(self, model: nn.Module, parameters: Sequence[nn.Parameter]) -> None:
        super().__init__()
        self._place = {id(parameter): place for place, parameter in enumerate(parameters)}
        # Modules that read each parameter, in the order in which they first did; their owners are among them
        self.modules: list[list[nn.Module]] = [[] for _ in parameters]
        self._first: list[int] = []
        self._stack: list[nn.Module] = [model]
        self._hooks: list[RemovableHandle] = []
        self._model = model
        for module in model.modules():
            for parameter in module.parameters(recurse=False):
                place = self._place.get(id(parameter))
                if place is not None:
                    self.modules[place].append(module)

    def __enter__(self) -> Readers:
        """Watch from now on."""
        for module in self._model.modules():
            self._hooks.append(
                module.register_forward_pre_hook(lambda entered, _: self._stack.append(entered))
            )
            self._hooks.append(module.register_forward_hook(self._leave, always_call=True))
        super().__enter__()  # type: ignore[no-untyped-call]
        return self

    def __exit__(self, *reason: object) -> None:
        """Watch no longer."""
        super().__exit__(*reason)  # type: ignore[no-untyped-call]
        for hook in self._hooks:
            hook.remove()
        unread = [place for place in range(len(self.modules)) if place not in set(self._first)]
        self.order = [*unread, *self._first]
        for place in unread:
            self.modules[place].append(self._model)

    def _leave(self, *_: object) -> None:
        self._stack.pop()

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Notes which parameters an operation takes."""
        del types
        for leaf in tree_leaves((args, kwargs)):
            place = self._place.get(id(leaf))
            if place is None:
                continue
            if place not in self._first:
                self._first.append(place)
            reader = self._stack[-1]
            if all(each is not reader for each in self.modules[place]):
                self.modules[place].append(reader)
        return func(*args, **(kwargs or {}))


class IterationTimes:
    """Times of parameters in some iterations.

    Args:
        count: Number of trained parameters.
        synchronize: Waits for the device, so that times are those of the work and not of its submission.
    """

    def __init__(self, count: int, synchronize: Callable[[], None] = lambda: None) -> None:
        self._synchronize = synchronize
        self._forward: list[list[float]] = [[] for _ in range(count)]
        self._backward: list[list[float]] = [[] for _ in range(count)]
        self.ready: list[int] = []
        self._between: list[float] = []
        self._ended: float | None = None
        self._first: int | None = None
        self._reset()

    def _reset(self) -> None:
        self._events: list[tuple[float, int]] = []
        self._begin = 0.0
        self._turned = 0.0
        self._arrived: list[tuple[float, int]] = []

    def _now(self) -> float:
        self._synchronize()
        return time.perf_counter()

    def begin_forward(self) -> None:
        """The model starts."""
        self._reset()
        self._begin = self._now()
        if self._ended is not None:
            self._between.append(self._begin - self._ended)
            self._ended = None

    def read(self, places: Sequence[int]) -> None:
        """A module that reads these parameters starts."""
        now = self._now()
        known = {place for _, place in self._events}
        self._events += [(now, place) for place in places if place not in known]

    def end_forward(self) -> None:
        """The model has returned."""
        self._turned = self._now()

    def arrive(self, place: int) -> None:
        """A gradient is there."""
        self._arrived.append((self._now(), place))

    def end_backward(self) -> None:
        """The iteration counts, if it was whole; gradients are summed by now."""
        self._ended = self._now()
        if not self._events or not self._arrived or not self._turned:
            return
        self._first = self._events[0][1]
        turns = [(self._begin, self._events[0][1]), *self._events[1:], (self._turned, -1)]
        for (start, place), (end, _) in itertools.pairwise(turns):
            self._forward[place].append(end - start)
        before = self._turned
        for at, place in self._arrived:
            self._backward[place].append(at - before)
            before = at
        self.ready = [place for _, place in self._arrived]

    def seconds(self) -> tuple[list[float], list[float]]:
        """Median forward and backward time of each parameter, 0 for those that were not seen.

        What lies between iterations (the optimizer's step, the next batch) counts as forward time of the first one.
        """
        forward = [statistics.median(times) if times else 0.0 for times in self._forward]
        backward = [statistics.median(times) if times else 0.0 for times in self._backward]
        if self._between and self._first is not None:
            forward[self._first] += statistics.median(self._between)
        return forward, backward
