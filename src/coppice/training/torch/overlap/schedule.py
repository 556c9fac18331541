"""``schedule(model, optimizer, policy=...)``: a policy's messages sent while a real model trains.

The first iterations are recorded: all gradients are summed after the backward pass, as a plain program would. Then rank
0's times become the workload that simulations take, the policy says its messages, and every rank carries out the same
sequence. A gradient goes to its place in a pool as soon as autograd has made it; a policy with a barrier has all sums
when ``backward()`` returns, as DistributedDataParallel does; any other lets ``step()`` return at once, and whoever
reads a parameter next waits for its sum and updates it first.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, cast

import torch
import torch.distributed as dist
from torch import nn
from torch.utils.hooks import RemovableHandle

from coppice.errors import InputError
from coppice.iteration.layers import LayerWorkload
from coppice.iteration.policies.data_parallel.ddp import Bucketed
from coppice.iteration.policies.data_parallel.policy import DataParallelPolicy, UpdateScope
from coppice.iteration.policies.data_parallel.poseidon import Poseidon
from coppice.training.torch.overlap.carrier import Carrier, Streams
from coppice.training.torch.overlap.factors import LinearFactors
from coppice.training.torch.overlap.network import measure_network
from coppice.training.torch.overlap.pending import PendingGradient, ScheduledOptimizer, update_only
from coppice.training.torch.overlap.planning import (
    LaunchPlan,
    data_parallel_policy,
    launch_plan,
    recorded_workload,
)
from coppice.training.torch.overlap.recording import IterationTimes, Readers
from coppice.training.torch.overlap.sparse import STATE_KEY, UNDERLYING, require_whole, sparse_sums
from coppice.training.torch.overlap.trained import require_alike, trained_parameters

__all__ = ["OverlapSchedule", "schedule"]


def schedule(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    policy: str = "bytescheduler",
    *,
    group: dist.ProcessGroup | None = None,
    tune: bool = False,
    network: tuple[float, float] | None = None,
    recorded: int = 4,
    timeout_s: float = 600.0,
    **settings: Any,
) -> tuple[nn.Module, ScheduledOptimizer]:
    """Train with a policy of overlap: gradients are averaged over the ranks as the policy says.

    Both are the objects that were given: the model gets hooks and keeps its keys, the optimizer a class whose steps may
    come late. Works on any process group of torch; every rank calls this.

    Args:
        model: The model; its parameters become those of rank 0, as with DistributedDataParallel.
        optimizer: Its optimizer, of ``torch.optim`` (but ``LBFGS``) or another that updates each parameter by itself.
        policy: A policy that decides about gradients: ``ddp``, ``bytescheduler``, ``dear``, ``p3``, ``pace``,
            ``priority``, ``tictac``, ``gradientflow``, ``poseidon``, ``jia``, ``mg-wfbp``, ``wfbp``, ``serial``.
        group: The ranks; None: all.
        tune: Take the settings that simulations of the recorded workload find best.
        network: Bytes per second and seconds per message of an all-reduce; None: measured now.
        recorded: Iterations that are recorded, 2 or more; the first is not timed.
        timeout_s: Longest wait for another rank.
        settings: Options of the policy.

    Raises:
        InputError: If the policy, its options, the optimizer or the parameters do not fit.

    Examples:
        >>> import torch, torch.distributed as dist
        >>> store = dist.HashStore()
        >>> dist.init_process_group("gloo", rank=0, world_size=1, store=store)
        >>> model = torch.nn.Linear(2, 1, bias=False)
        >>> optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        >>> model, optimizer = schedule(model, optimizer, policy="ddp", network=(1e9, 1e-5))
        >>> model(torch.ones(1, 2)).sum().backward()
        >>> optimizer.step()
        >>> optimizer.flush()
        >>> dist.destroy_process_group()
    """
    if recorded < 2:
        msg = f"expected 2 recorded iterations or more, found {recorded}: the first one is not timed."
        raise InputError(msg)
    if isinstance(optimizer, ScheduledOptimizer):
        msg = "expected an optimizer that is not scheduled yet, found one that is: call optimizer.close() first."
        raise InputError(msg)
    made = OverlapSchedule(
        model,
        optimizer,
        data_parallel_policy(policy, settings),
        Streams(group),
        tune=tune,
        network=network,
        recorded=recorded,
        timeout_s=timeout_s,
    )
    return model, made.optimizer


class OverlapSchedule:
    """A policy at work on a model; made by :func:`schedule`.

    Attributes:
        policy: The policy, with the settings that were tuned if they were.
        workload: What was recorded; None while it is recorded.
        plan: Messages and their order.
        accumulates: Backward passes only add up.
    """

    def __init__(
        self,
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        policy: DataParallelPolicy,
        streams: Streams,
        *,
        tune: bool,
        network: tuple[float, float] | None,
        recorded: int,
        timeout_s: float,
    ) -> None:
        self.policy = policy
        self.workload: LayerWorkload | None = None
        self.accumulates = False
        self._model = model
        self._streams = streams
        self._tune, self._recorded, self._timeout_s = tune, recorded, timeout_s
        self._names, self._trained = trained_parameters(model, optimizer)
        require_alike(self._names, self._trained, streams.group("network"))
        self._places = {id(parameter): place for place, parameter in enumerate(self._trained)}
        with torch.no_grad():
            for tensor in [*model.parameters(), *model.buffers()]:
                dist.broadcast(tensor.detach(), src=streams.ranks[0], group=streams.group("network"))
        self._sparse = sparse_sums(self.policy, optimizer, self._trained, len(streams.ranks), streams.rank)
        self._factors = (
            LinearFactors(model, self._names, self._trained, len(streams.ranks))
            if isinstance(self.policy, Poseidon)
            else None
        )
        self._device = self._trained[0].device
        self._network = network or measure_network(streams.group("network"), self._device)
        self._times = IterationTimes(len(self._trained), self._synchronizer())
        self._readers: Readers | None = None
        self._iteration = 0
        self._reads = False
        self._read_order: list[int] = []
        self._arrival: list[int] = []
        self._in_backward = False
        self._asked: list[dict[str, Any]] | None = None
        self._pending: set[int] = set()
        self._hooks: list[RemovableHandle] = [
            parameter.register_post_accumulate_grad_hook(self._arrived)  # type: ignore[no-untyped-call]
            for parameter in self._trained
        ]
        self._hooks += [
            model.register_forward_pre_hook(self._model_starts, prepend=True),
            model.register_forward_hook(self._model_ends, always_call=True),
            model.register_state_dict_pre_hook(lambda *_: self.flush()),  # type: ignore[no-untyped-call]
        ]
        self._adopt(self._first_plan())
        given = type(optimizer)
        optimizer.__class__ = type(f"Scheduled{given.__name__}", (ScheduledOptimizer, given), {})
        self.optimizer = cast("ScheduledOptimizer", optimizer)
        self.optimizer.adopt(self)

    @property
    def predicted_seconds(self) -> float:
        """Time of an iteration by the simulation of the recorded workload; 0 while it is recorded."""
        return self.plan.predicted_seconds

    @property
    def launched(self) -> dict[str, list[str]]:
        """Names of the messages of the last iteration in the order of their launch, by stream."""
        return {
            stream: [self.plan.messages[number].name for number in numbers]
            for stream, numbers in self._carrier.launched.items()
        }

    def step(self) -> None:
        """See :meth:`ScheduledOptimizer.step`."""
        groups = [dict(group) for group in self.optimizer.param_groups]
        if self._barrier:
            if self._sparse is not None:
                groups = [{**group, **UNDERLYING} for group in groups]
            update_only(self.optimizer, groups, self._trained)
            return
        self._asked = groups if self._pending else None
        summed = [
            parameter
            for place, parameter in enumerate(self._trained)
            if place not in self._pending and parameter.grad is not None
        ]
        if summed:  # by `synchronize`, or in an iteration with a barrier
            update_only(self.optimizer, groups, summed)

    def synchronize(self) -> None:
        """All sums are there, and gradients in their places; updates are still to come."""
        self._carrier.wait(range(len(self.plan.messages)))
        for place in self._pending:
            self._trained[place].grad = self._view(place)
        if self._asked is not None:
            self._update(sorted(self._pending))
        self._pending.clear()

    def flush(self) -> None:
        """See :meth:`ScheduledOptimizer.flush`."""
        if self._pending and self._asked is not None:
            self._complete(sorted(self._pending))
        elif self._pending:
            self.synchronize()

    def close(self) -> None:
        """See :meth:`ScheduledOptimizer.close`."""
        self.flush()
        self._carrier.close()
        if self._factors is not None:
            self._factors.close()
        for hook in self._hooks:
            hook.remove()
        self.optimizer.release()

    def state(self) -> dict[str, Any]:
        """See :meth:`LateSteps.state`."""
        return {} if self._sparse is None else {STATE_KEY: self._sparse.state()}

    def load(self, state: Mapping[str, Any]) -> None:
        """See :meth:`LateSteps.load`."""
        if self._sparse is not None:
            self._sparse.load(state.get(STATE_KEY))
        else:
            require_whole(state)

    @property
    def _barrier(self) -> bool:
        return self.plan.scope is UpdateScope.BARRIER

    def _synchronizer(self) -> Any:
        if self._device.type == "cuda":
            return lambda: torch.cuda.synchronize(self._device)
        return lambda: None

    def _adopt(self, plan: LaunchPlan) -> None:
        """Carry out a plan from now on."""
        self.plan = plan
        self._layer_of = {place: layer for layer, place in enumerate(plan.tensors)}
        tensors = [self._trained[place] for place in plan.tensors]
        self._carrier = Carrier(
            plan, tensors, self._streams, self._timeout_s, sparse=self._sparse, factors=self._factors
        )

    def _first_plan(self) -> LaunchPlan:
        """All messages when the backward pass is over: one; DDP's first buckets, and chunks where they are chosen."""
        count = len(self._trained)
        sizes = tuple(float(p.numel() * p.element_size()) for p in self._trained)
        work = LayerWorkload(
            forward=(0.0,) * count,
            backward=(0.0,) * count,
            bytes=sizes,
            bytes_per_second=1.0,
            dtypes=tuple(str(p.dtype) for p in self._trained),
            workers=len(self._streams.ranks),
        )
        whole = Bucketed.of(first_iteration=True)
        if isinstance(self.policy, Bucketed):
            return launch_plan(whole, work, range(count))
        every = tuple(range(count))
        messages = tuple(
            replace(message, seconds=0.0, layers=every, carries=message.gradients)
            for message in (self.policy if self._sparse is not None else whole).messages(work)
        )
        order = {"network": tuple(range(len(messages)))}
        return LaunchPlan(messages=messages, tensors=every, order=order, scope=UpdateScope.BARRIER)

    def _model_starts(self, *_: object) -> None:
        if not (self._model.training and torch.is_grad_enabled()):
            return
        if self._iteration == 0 and self._readers is None:
            self._readers = Readers(self._model, self._trained)
            self._readers.__enter__()
        elif self.workload is None:
            self._times.begin_forward()

    def _model_ends(self, *_: object) -> None:
        if not (self._model.training and torch.is_grad_enabled()):
            return
        if self._iteration == 0 and self._readers is not None and not self._reads:
            self._readers.__exit__(None, None, None)
            self._watch(self._readers)
        elif self.workload is None:
            self._times.end_forward()

    def _watch(self, readers: Readers) -> None:
        """Whoever reads a parameter waits for it, from the next iteration on."""
        self._reads = True
        self._read_order = readers.order
        reading: dict[int, tuple[nn.Module, list[int]]] = {}
        for place in readers.order:
            for module in readers.modules[place]:
                reading.setdefault(id(module), (module, []))[1].append(place)
        for module, places in reading.values():
            self._hooks.append(
                module.register_forward_pre_hook(
                    lambda *_, places=tuple(places): self._read(places), prepend=True
                )
            )

    def _read(self, places: Sequence[int]) -> None:
        """A module that reads parameters starts."""
        if self.workload is None:
            self._times.read(places)
        if self._asked is not None:
            self._complete(places)

    def _complete(self, places: Sequence[int]) -> None:
        """Wait for the sums of some parameters and update them, one after the other as the forward pass reads them."""
        late = sorted((place for place in places if place in self._pending), key=self._layer_of.__getitem__)
        for place in late:
            layer = self._layer_of[place]
            self._carrier.wait(self._carrier.carriers[layer])
            self._carrier.forward_started(layer)
        self._update(late)

    def _update(self, places: Sequence[int]) -> None:
        if not places or self._asked is None:
            return
        parameters = [self._trained[place] for place in places]
        for place, parameter in zip(places, parameters, strict=True):
            parameter.grad = self._view(place)
        update_only(self.optimizer, self._asked, parameters)
        for parameter in parameters:
            parameter.grad = None
        self._pending.difference_update(places)
        if not self._pending:
            self._asked = None

    def _view(self, place: int) -> torch.Tensor:
        """The gradient of a tensor in its pool."""
        return self._carrier.views[self._layer_of[place]][0]

    def _arrived(self, parameter: torch.Tensor) -> None:
        """Autograd has made a gradient."""
        place = self._places[id(parameter)]
        factors = self._factors if self._factors is not None and place in self._factors.places else None
        if self.accumulates:
            if factors is not None:
                factors.refuse_accumulation()
            return
        if not self._in_backward:
            self._begin_backward()
        gradient = parameter.grad
        if gradient is None or gradient.is_sparse:
            msg = f"expected dense gradients, found another of {self._names[place]}: sparse ones are not summed."
            raise InputError(msg)
        if self._factors is not None and self.workload is None:
            self._factors.record(place, gradient)
        if self._sparse is not None:
            self._sparse.accumulate(place, gradient)
        elif factors is not None:
            factors.take(place)
        else:
            for view in self._carrier.views[self._layer_of[place]]:
                torch.mul(gradient, 1 / len(self._streams.ranks), out=view)
        if self.workload is None:
            self._times.arrive(place)
            self._arrival.append(place)
        if not self._barrier:
            parameter.grad = PendingGradient.of(self._view(place))
            self._pending.add(place)
        self._carrier.arrived([self._layer_of[place]])

    def _begin_backward(self) -> None:
        if self._pending and self._asked is None:
            msg = (
                "expected optimizer.step() after each backward pass that sums gradients, found another backward pass: "
                "add gradients up within optimizer.no_sync()."
            )
            raise InputError(msg)
        self.flush()
        self._in_backward = True
        self._arrival = []
        self._carrier.begin()
        torch.autograd.Variable._execution_engine.queue_callback(self._end_backward)  # noqa: SLF001 (as DDP does)

    def _end_backward(self) -> None:
        """Autograd is done."""
        self._in_backward = False
        missing = self._carrier.missing()
        if missing:
            names = [self._names[self.plan.tensors[layer]] for layer in sorted(missing)]
            msg = (
                f"expected gradients of all trained parameters, found none of {', '.join(names[:3])}"
                f"{f' and {len(names) - 3} more' if len(names) > 3 else ''}: freeze what is not used "
                "(requires_grad=False), or use it in every iteration."
            )
            raise InputError(msg)
        if self._barrier:
            self._carrier.wait(range(len(self.plan.messages)))
            if self._sparse is not None:
                self._sparse.finish()
            if self._factors is not None:
                self._factors.finish(self._view)
            for place, parameter in enumerate(self._trained):
                parameter.grad = self._view(place)
        if self.workload is None:
            if self._iteration:
                self._times.end_backward()
            self._iteration += 1
            whole = self._iteration >= self._recorded
            if self._reads and (whole or (self._iteration == 1 and isinstance(self.policy, Bucketed))):
                self._replan(whole=whole)

    def _replan(self, *, whole: bool) -> None:
        """What was recorded on rank 0 becomes the workload; all ranks adopt the policy's plan for it.

        DDP builds its buckets anew after the first iteration, of which the order of gradients is all that it needs.
        """
        forward, backward = self._times.seconds()
        told: list[Any] = [(forward, backward, self._arrival, self._read_order)]
        dist.broadcast_object_list(told, src=self._streams.ranks[0], group=self._streams.group("network"))
        forward, backward, ready, read = told[0]
        barrier = self.policy.update_scope is UpdateScope.BARRIER
        numbered = tuple(reversed(ready)) if barrier else tuple(read)
        rows = {} if self._factors is None else self._factors.agreed_rows(self._streams.group("network"))
        workload = recorded_workload(
            [self._trained[place] for place in numbered],
            forward=[forward[place] for place in numbered],
            backward=[backward[place] for place in numbered],
            network=self._network,
            workers=len(self._streams.ranks),
            rows=[rows.get(place) for place in numbered],
        )
        if self._tune and whole:
            self.policy = type(self.policy).of(**self.policy.tune(workload))
        views = [parameter.grad for parameter in self._trained]
        self._carrier.close()
        plan = launch_plan(self.policy, workload, numbered)
        if self._factors is not None:
            self._factors.adopt(plan.messages, plan.tensors, workload.samples)
        self._adopt(plan)
        if whole:
            self.workload = workload
        for parameter, view in zip(self._trained, views, strict=True):
            parameter.grad = view  # of the old pools, until the next step has used them
