"""Overlap policy on a training model: messages during backward, updates once gradients are averaged.

The first iterations are recorded: all gradients are summed after the backward pass, as a plain program would. Then rank
0's times become the workload that simulations take, the policy says its messages, and every rank carries out the same
sequence. A gradient goes to its place in a bucket as soon as autograd has made it; a policy with a barrier has all sums
when ``backward()`` returns, as DistributedDataParallel does; any other lets ``step()`` return at once, and whoever
reads a parameter next waits for its sum and updates it first.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any

import torch
from torch import nn
from torch.utils.hooks import RemovableHandle

from coppice.errors import InputError
from coppice.iteration.layers import LayerWorkload
from coppice.iteration.policies.data_parallel.online import MeasuredTrial
from coppice.iteration.policies.data_parallel.ooo import OutOfOrder
from coppice.iteration.policies.data_parallel.policy import DataParallelPolicy, UpdateScope
from coppice.iteration.policies.data_parallel.poseidon import Poseidon
from coppice.training.torch.core.agree import (
    UsedTensors,
    require_alike,
    require_dense,
    require_no_missing,
    require_whole_gradients,
    share_weights,
    tensors_of,
    trained_parameters,
)
from coppice.training.torch.core.attached import ModuleAttachments, after_backward
from coppice.training.torch.core.optimizer import (
    UPDATES_ARE_LATE,
    LateParameters,
    PendingGradient,
    ScheduledOptimizer,
    ZeroedGradients,
    uncompiled,
    update_only,
)
from coppice.training.torch.core.streams import Streams
from coppice.training.torch.data_parallel.client import (
    NOT_SUMMED,
    ParameterServers,
    ServerExecutor,
    parameter_servers,
)
from coppice.training.torch.data_parallel.executors import MessageExecutor
from coppice.training.torch.data_parallel.gradientflow import STATE_KEY, UNDERLYING, SparseSums, require_whole
from coppice.training.torch.data_parallel.online import TrainingTuner
from coppice.training.torch.data_parallel.ooo import DeferredGradients
from coppice.training.torch.data_parallel.poseidon import LinearFactors
from coppice.training.torch.data_parallel.recorder import LaunchPlan, Readers, Recorder, launch_plan

_UNUSED_SUMS = (
    "expected optimizer.step() after each backward pass that sums gradients, found another backward pass: add "
    "gradients up within optimizer.no_sync() before it."
)


class OverlapSchedule:
    """Overlap policy on a training model; made by ``schedule``.

    Attributes:
        plan: Messages and their order.
    """

    def __init__(
        self,
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        policy: DataParallelPolicy,
        streams: Streams,
        *,
        tuning: tuple[
            bool | str, int | None, int
        ],  # How settings are found, by how many trials, in which windows
        network: tuple[float, float] | None,
        recorded: int,
        timeout_s: float,
        unused: bool = False,
        servers: Sequence[str] | None = None,
    ) -> None:
        self.policy = policy  # The policy, with the settings that were tuned if they were
        self.accumulates = False  # Backward passes only add up
        self._model = model
        self._streams = streams
        self._timeout_s = timeout_s
        self._names, self._trained = trained_parameters(model, optimizer)
        require_alike(self._names, self._trained, streams.group("network"))
        self._places = {id(parameter): place for place, parameter in enumerate(self._trained)}
        share_weights(tensors_of(model), streams.ranks[0], streams.group("network"))
        settings = self.policy.settings
        self._sparse = (
            None
            if getattr(settings, "ratio", 1.0) == 1
            else SparseSums(
                optimizer,
                self._trained,
                ranks=len(streams.ranks),
                rank=streams.rank,
                ratio=settings.ratio,
                chunk_elements=settings.chunk_elements,
            )
        )
        self._factors = (
            LinearFactors(model, self._names, self._trained, len(streams.ranks))
            if isinstance(self.policy, Poseidon)
            else None
        )
        self._weights = DeferredGradients(self._trained) if isinstance(self.policy, OutOfOrder) else None
        self._recorder = Recorder(
            model,
            self._trained,
            streams,
            network=network,
            recorded=recorded,
            factors=self._factors,
            weights=self._weights,
            watch=self._watch,
        )
        self._tuning = tuning
        self._used: UsedTensors | None = None
        if unused:
            require_whole_gradients(self._sparse is None)
            group, device = streams.group("used"), self._trained[0].device
            self._used = UsedTensors(len(self._trained), group, device, timeout_s)
        self._servers = (
            None
            if servers is None
            else parameter_servers(
                policy,
                servers,
                optimizer,
                ranks=(streams.rank, len(streams.ranks)),
                tunes=tuning[0] in (True, "training"),
                unused=unused,
                timeout_s=timeout_s,
            )
        )
        self._late = LateParameters(self._read_late)
        self._in_backward = False
        self._made: list[int] = []
        self._asked: list[dict[str, Any]] | None = None
        self._pending: set[int] = set()
        self._zeroed = ZeroedGradients(lambda: self._asked is not None)
        self._attached = ModuleAttachments(self.flush)
        self._hooks: list[RemovableHandle] = [
            parameter.register_post_accumulate_grad_hook(self._arrived)  # type: ignore[no-untyped-call]
            for parameter in self._trained
        ]
        self._hooks += [
            parameter.register_hook(lambda _, place=place: self._arriving(place))  # type: ignore[no-untyped-call]
            for place, parameter in enumerate(self._trained)
        ]
        self._attached.before(model, self._model_starts, first=True)
        self._attached.behind(model, self._model_ends, always=True)
        self._attached.add(model, model.register_state_dict_pre_hook(lambda *_: self.flush()))  # type: ignore[no-untyped-call]
        self._adopt(self._recorder.first_plan(self.policy, whole=self._sparse is None))
        self.optimizer = ScheduledOptimizer.of(optimizer, self)

    @cached_property
    def _tuner(self) -> TrainingTuner:
        mode, trials, window = self._tuning
        device = self._trained[0].device
        return TrainingTuner(self._streams, device, mode=mode, trials=trials, window=window)

    @property
    def workload(self) -> LayerWorkload | None:
        """Recorded workload; None during recording."""
        return self._recorder.workload

    @property
    def predicted_seconds(self) -> float:
        """Simulated iteration time of the recorded workload; 0 during recording."""
        return self.plan.predicted_seconds

    @property
    def trials(self) -> Sequence[MeasuredTrial]:
        """Settings tried during training, with iteration times."""
        return tuple(self._tuner.trials)

    @property
    def tuning(self) -> bool:
        """Whether settings are being tried."""
        return self._tuner.active

    @property
    def launched(self) -> dict[str, list[str]]:
        """Messages of the last iteration in launch order, by stream."""
        return {
            stream: [self.plan.messages[number].name for number in numbers]
            for stream, numbers in self._executor.launched.items()
        }

    @property
    def gradient_order(self) -> list[str]:
        """Tensors in the order in which the last backward pass made their gradients."""
        return [self._names[place] for place in self._made]

    def step(self) -> None:
        """See :meth:`ScheduledOptimizer.step`."""
        groups = [dict(group) for group in self.optimizer.param_groups]
        if self._barrier:
            if self._sparse is not None:
                groups = [{**group, **UNDERLYING} for group in groups]
            update_only(self.optimizer, groups, self._trained)
            return
        if self._served is not None and self._pending:
            self._served.require_settings_sent()
        self._asked = groups if self._pending else None
        self._late.expect([self._trained[place] for place in self._pending])
        summed = [
            parameter
            for place, parameter in enumerate(self._trained)
            if place not in self._pending and parameter.grad is not None
        ]
        if summed:  # by `synchronize`, or in an iteration with a barrier
            update_only(self.optimizer, groups, summed)

    def synchronize(self) -> None:
        """Wait until all gradients are averaged and stored; updates are outstanding."""
        if self._served is not None and self._pending:
            raise InputError(NOT_SUMMED)
        self._executor.wait(range(len(self.plan.messages)))
        for place in self._pending:
            self._put_gradient(place)
        if self._asked is not None:
            self._update(sorted(self._pending))
        self._pending.clear()

    @uncompiled(UPDATES_ARE_LATE)
    def flush(self) -> None:
        """See :meth:`ScheduledOptimizer.flush`."""
        if self._pending and self._asked is not None:
            self._complete(sorted(self._pending))
        elif self._pending:
            self.synchronize()

    def close(self) -> None:
        """See :meth:`ScheduledOptimizer.close`."""
        self.flush()
        if self._servers is not None:
            self._servers.close()
        self._executor.close()
        if self._factors is not None:
            self._factors.close()
        if self._weights is not None:
            self._weights.close()
        for hook in self._hooks:
            hook.remove()
        self._attached.remove()
        self.optimizer.release()

    def state(self) -> dict[str, Any]:
        """See :meth:`LateSteps.state`."""
        if self._servers is not None:
            self._servers.gather_state()
        held_back = {} if self._sparse is None else {STATE_KEY: self._sparse.state()}
        return {**held_back, **self._tuner.state()}

    def load(self, state: Mapping[str, Any]) -> None:
        """See :meth:`LateSteps.load`."""
        self._tuner.load(state)
        if self._servers is not None:
            self._servers.loaded()
        if self._sparse is not None:
            self._sparse.load(state.get(STATE_KEY))
        else:
            require_whole(state)

    @property
    def _barrier(self) -> bool:
        return self.plan.scope is UpdateScope.BARRIER

    @property
    def _served(self) -> ParameterServers | None:
        """Wait until the servers have the parameters."""
        return self._servers if self._servers is not None and self._servers.connected else None

    def _adopt(self, plan: LaunchPlan) -> None:
        """Use a plan from now on."""
        self.plan = plan
        self._layer_of = {place: layer for layer, place in enumerate(plan.tensors)}
        tensors = [self._trained[place] for place in plan.tensors]
        given = plan, tensors, self._streams, self._timeout_s
        self._executor: MessageExecutor = (
            ServerExecutor(*given, servers=self._servers)
            if self._servers is not None and self.workload is not None
            else MessageExecutor(*given, sparse=self._sparse, factors=self._factors)
        )

    def _model_starts(self, *_: object) -> None:
        if self._model.training and torch.is_grad_enabled():
            self._recorder.model_starts()
            if self._weights is not None:
                self._weights.begin()

    def _model_ends(self, *_: object) -> None:
        if self._model.training and torch.is_grad_enabled():
            self._recorder.model_ends()

    def _watch(self, readers: Readers) -> None:
        """Let readers of a parameter wait for it, from the next iteration on."""
        reading: dict[int, tuple[nn.Module, list[int]]] = {}
        for place in readers.order:
            for module in readers.modules[place]:
                reading.setdefault(id(module), (module, []))[1].append(place)
        for module, places in reading.values():
            self._attached.before(module, lambda *_, places=tuple(places): self._read(places), first=True)

    def _read(self, places: Sequence[int]) -> None:
        """Called when a module that reads parameters starts."""
        if self._recorder.active:
            self._recorder.read(places)
        if self._asked is not None:
            self._complete(places)

    def _read_late(self, parameters: Sequence[torch.Tensor]) -> None:
        """Called when parameters with outstanding updates are read."""
        self._complete([self._places[id(parameter)] for parameter in parameters])

    @uncompiled(UPDATES_ARE_LATE)
    def _complete(self, places: Sequence[int]) -> None:
        """Wait for gradients, and update their parameters in forward order."""
        late = sorted((place for place in places if place in self._pending), key=self._layer_of.__getitem__)
        for place in late:
            layer = self._layer_of[place]
            self._executor.wait(self._executor.executors[layer])
            self._executor.forward_started(layer)
        self._update(late)

    def _update(self, places: Sequence[int]) -> None:
        if not places or self._asked is None:
            return
        parameters = [self._trained[place] for place in places]
        self._late.updated(parameters)
        if self._served is not None:
            for place, parameter in zip(places, parameters, strict=True):
                self._served.update(parameter, self._view(place))
        else:
            for place in places:
                self._put_gradient(place)
            update_only(self.optimizer, self._asked, [each for each in parameters if each.grad is not None])
        for place, parameter in zip(places, parameters, strict=True):
            parameter.grad = self._zeroed.left(place, parameter)
        self._pending.difference_update(places)
        if not self._pending:
            self._asked = None

    def _put_gradient(self, place: int) -> None:
        """Store an averaged gradient, if any rank had one."""
        used = self._used is None or place in self._used.places()
        self._trained[place].grad = self._view(place) if used else None

    def _view(self, place: int) -> torch.Tensor:
        """Gradient of a tensor in its bucket."""
        return self._executor.views[self._layer_of[place]][0]

    def _arriving(self, place: int) -> None:
        """Called before autograd accumulates a gradient."""
        if self._asked is not None and place in self._pending:
            raise InputError(
                f"expected {self._names[place]} to be read where functions of torch see it, found a gradient of it as "
                "it was before its last update: call optimizer.flush() before compiled or scripted parts read it."
            )

    def _arrived(self, parameter: torch.Tensor) -> None:
        """Called when autograd has made a gradient."""
        place = self._places[id(parameter)]
        if self.accumulates:
            if self._factors is not None and place in self._factors.places:
                self._factors.refuse_accumulation()
            if place in self._pending:
                raise InputError(_UNUSED_SUMS)
            return
        if not self._in_backward:
            self._begin_backward()
        self._made.append(place)
        self._send(place, require_dense(parameter.grad, self._names[place]))

    def _send(self, place: int, gradient: torch.Tensor | None) -> None:
        """Copy a gradient into its bucket; None: this rank has none, and adds zeros."""
        if self._factors is not None and self._recorder.active:
            self._factors.record(place, gradient)
        if self._sparse is not None:
            assert gradient is not None
            self._sparse.accumulate(place, gradient)
        elif self._factors is not None and place in self._factors.places:
            self._factors.take(place, made=gradient is not None)
        else:
            for view in self._executor.views[self._layer_of[place]]:
                if gradient is None:
                    view.zero_()
                else:
                    torch.mul(gradient, 1 / len(self._streams.ranks), out=view)
        if self._recorder.active:
            self._recorder.arrived(place)
        if not self._barrier:
            self._trained[place].grad = PendingGradient.of(self._view(place), lambda: self._zeroed.add(place))
            self._pending.add(place)
        self._executor.arrived([self._layer_of[place]])

    def _begin_backward(self) -> None:
        if self._pending and self._asked is None:
            raise InputError(_UNUSED_SUMS)
        self.flush()
        if self.workload is not None:
            tuned = self._tuner.iteration(self.policy)
            if tuned.settings != self.policy.settings:
                self.policy = tuned
                self._execute(self.workload)
        self._in_backward = True
        self._made = []
        self._executor.begin()
        after_backward(self._end_backward)

    def _end_backward(self) -> None:
        """Called when autograd has finished."""
        self._in_backward = False
        missing = [self.plan.tensors[layer] for layer in sorted(self._executor.missing())]
        if self._used is not None:
            held = {place: self._trained[place].grad for place in missing}
            self._used.exchange(
                place for place in range(len(self._trained)) if held.get(place, True) is not None
            )
            for place, gradient in reversed(held.items()):
                self._send(place, gradient)
        else:
            names = [self._names[place] for place in missing]
            require_no_missing(names, "use it in every iteration", "or pass `unused=True`")
        if self._barrier:
            self._executor.wait(range(len(self.plan.messages)))
            if self._sparse is not None:
                self._sparse.finish()
            if self._factors is not None:
                self._factors.finish(self._view)
            for place in range(len(self._trained)):
                if self._used is None or place in self._used.places():
                    self._put_gradient(place)
        if self._recorder.active and self._recorder.end_backward(self.policy):
            self._replan()

    def _replan(self) -> None:
        """Adopt the policy's plan of rank 0's recording on all ranks."""
        workload = self._recorder.agree(self.policy)
        if not self._recorder.active:
            self.policy = self._tuner.begin(self.policy, workload)
        views = [parameter.grad for parameter in self._trained]
        self._execute(workload)
        for parameter, view in zip(self._trained, views, strict=True):
            parameter.grad = view  # of the old buckets, until the next step has used them

    def _execute(self, workload: LayerWorkload) -> None:
        """Use the policy's plan for a workload from the next iteration on."""
        self._executor.close()
        plan = launch_plan(self.policy, workload, self._recorder.tensors)
        if self._factors is not None:
            self._factors.adopt(plan.messages, plan.tensors, workload.samples)
        if self._weights is not None:
            self._weights.adopt(self.policy.backward(workload), plan.tensors)
        self._adopt(plan)
