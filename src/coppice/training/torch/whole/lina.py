"""Policy Lina on a training model, ``schedule(policy="lina")``: all-to-all before all-reduce, in the simulated order.

The first steps are recorded: exchanges in one piece, and all gradients summed after the backward pass. Then the times
of all ranks become the operations that the simulated policy plans, and rank 0 tells its plan: pieces of tokens, sums
cut in micro-operations, and one order of the network for every backward pass. All sums are there when ``backward()``
returns, as with DistributedDataParallel.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.utils.hooks import RemovableHandle

from coppice.errors import InputError
from coppice.iteration.policies.whole.lina import Lina
from coppice.iteration.step.plan import Message
from coppice.training.torch.core.agree import (
    broadcast_from_first,
    gathered,
    require_alike,
    require_dense,
    require_no_missing,
    share_weights,
    tensors_of,
    trained_parameters,
)
from coppice.training.torch.core.attached import ModuleAttachments, after_backward
from coppice.training.torch.core.measure import (
    BOUNDARY,
    GRADIENT,
    DeviceClock,
    StepItem,
    StepRecord,
    alike_steps,
    measure_network,
    merged_steps,
)
from coppice.training.torch.core.optimizer import (
    PartitionedOptimizer,
    ScheduledOptimizer,
    SynchronousSteps,
    partitioned_norm,
)
from coppice.training.torch.core.streams import Streams
from coppice.training.torch.data_parallel.executors import buckets_of
from coppice.training.torch.whole.mixture.exchanges import (
    DirectExchanges,
    PostedExchange,
    Start,
    all_to_all,
    exchange_start_seconds,
    group_of_ranks,
)
from coppice.training.torch.whole.mixture.layer import mixture_layers
from coppice.training.torch.whole.mixture.network_queue import NetworkQueue
from coppice.training.torch.whole.mixture.packing import Packing, pack_layer
from coppice.training.torch.whole.mixture.planning import (
    MixturePlan,
    NetworkTimes,
    SharedGradients,
    cut_message,
    plain_seconds,
    plan_recorded_step,
)
from coppice.training.torch.whole.mixture.skewed import PlannedExchange

_SHORT_BYTES = 128 * 1024
"""About as short as pieces of sums beside exchanges."""

_STATE_KEY = "experts_of_rank"


class _LayerExchanges:
    """A layer's interface to the queue."""

    def __init__(self, schedule: MixtureSchedule) -> None:
        self._schedule = schedule

    def post(
        self, name: str, rows: torch.Tensor, sent: Sequence[int], received: Sequence[int], group: Any
    ) -> PostedExchange:
        """See :meth:`Exchanges.post`."""
        return self._schedule.queue.post(name, rows, sent, received, group)

    def backward_starts(self) -> None:
        """See :meth:`Exchanges.backward_starts`."""
        self._schedule.backward_starts()

    def note(self, name: str) -> None:
        """See :meth:`Exchanges.note`."""
        self._schedule.queue.note(name)


class MixtureSchedule(SynchronousSteps):
    """Lina on a training model; made by ``schedule``.

    Args:
        model: A model with :class:`MixtureOfExperts`.
        optimizer: Its optimizer.
        policy: The policy.
        group: The ranks, those of the layers; None: all.
        network: Bytes per second and seconds per message of an all-reduce; None: measured now.
        recorded: Steps that are recorded.
        timeout_s: Longest wait for another rank.
        packing: When experts are packed; None: never.
        exchange: Starts an exchange.

    Attributes:
        plan: What is carried out; while steps are recorded, one sum of all gradients.
        plain_seconds: Time of a step without the policy, by simulation; 0 while steps are recorded.
        accumulates: Backward passes only add up.
    """

    def __init__(
        self,
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        policy: Lina,
        group: Any,
        *,
        network: tuple[float, float] | None,
        recorded: int,
        timeout_s: float,
        packing: Packing | None = None,
        exchange: Start = all_to_all,
    ) -> None:
        self.policy, self.accumulates, self.plain_seconds = policy, False, 0.0
        self._model, self._group, self._packing = model, group, packing
        self._streams = Streams(group)
        self._layers = mixture_layers(model)
        if not self._layers or any(
            layer.layout.ranks != len(self._streams.ranks) for layer in self._layers.values()
        ):
            raise InputError(
                f"expected a model with layers of experts (MixtureOfExperts) on {len(self._streams.ranks)} ranks, "
                f"found {len(self._layers)} of them: build them with the group that trains."
            )
        self._recorded = recorded
        self._record: StepRecord | None = None
        self._attached = ModuleAttachments()
        self._of_tensors: list[RemovableHandle] = []
        self._learn(optimizer)
        device = self._trained[0].device
        self._require_alike()
        self._share_weights()
        self._given_network = network
        self.queue = NetworkQueue(device, timeout_s, exchange)  # The network of this rank
        exchanges = _LayerExchanges(self)
        for layer in self._layers.values():
            layer.exchanges = exchanges
        self._attached.before(model, self._model_starts, first=True)
        self._attached.behind(model, self._model_ends, always=True)
        self.optimizer = PartitionedOptimizer.of(optimizer, self)
        self._in_backward = False
        self._start_recording()

    @property
    def predicted_seconds(self) -> float:
        """Simulated step time; 0 during recording."""
        return self.plan.predicted_seconds

    @property
    def launched(self) -> dict[str, list[str]]:
        """Network jobs of the last backward pass in launch order."""
        return {"network": list(self.queue.started)}

    def step(self) -> None:
        """See :meth:`ScheduledOptimizer.step`."""
        super().step()
        if self._packing is None or self._recording:
            return
        if self._packing.looking:
            record, self._record, self.queue.watch = self._record, None, None
            assert record is not None
            for layer in self._packing.layers_to_double(self._layers.values(), record, self._agree):
                pack_layer(layer, self.optimizer, self._model)
            if self._packing.packed:
                self._learn(self.optimizer)
                self._start_recording()
        elif self._packing.end_step():
            self._watch()

    def close(self) -> None:
        """See :meth:`ScheduledOptimizer.close`."""
        self.queue.close()
        self._attached.remove()
        for hook in self._of_tensors:
            hook.remove()
        for layer in self._layers.values():
            layer.exchanges = DirectExchanges()
        self.optimizer.release()

    def state(self) -> dict[str, Any]:
        """See :meth:`LateSteps.state`."""
        return {_STATE_KEY: {name: layer.layout.of_rank for name, layer in self._layers.items()}}

    def load(self, state: Mapping[str, Any]) -> None:
        """See :meth:`LateSteps.load`."""
        own = self.state()[_STATE_KEY]
        theirs = state.get(_STATE_KEY, own)
        if theirs != own:
            raise InputError(
                f"expected a state of as many experts on a rank ({own}), found {theirs}: build the layers with "
                "`of_rank` as in that state."
            )

    def gradient_norm(self, norm_type: float) -> torch.Tensor:
        """Norm of all gradients, each expert counted once."""
        gradients = [
            (parameter.grad, self._experts.get(place))
            for place, parameter in enumerate(self._trained)
            if parameter.grad is not None
        ]
        return partitioned_norm(gradients, norm_type, self._streams.group("sums"), self._trained[0].device)

    def backward_starts(self) -> None:
        """Called when a layer's backward pass is about to post exchanges."""
        if not self.accumulates and not self._in_backward:
            self._begin_backward()

    def _learn(self, optimizer: torch.optim.Optimizer) -> None:
        """Find the trained parameters, and the group that all-reduces each."""
        for hook in self._of_tensors:
            hook.remove()
        self._names, self._trained = trained_parameters(self._model, optimizer)
        self._places = {id(parameter): place for place, parameter in enumerate(self._trained)}
        self._experts: dict[int, int] = {}  # place: ranks that have it
        groups: dict[tuple[int, ...], int] = {}
        of_place: dict[int, int] = {}
        for layer in self._layers.values():
            replicas = tuple(layer.layout.replicas(layer.rank))
            own = [self._places[id(p)] for p in layer.experts.parameters() if id(p) in self._places]
            self._experts |= dict.fromkeys(own, len(replicas))
            if len(replicas) > 1:
                number = groups.setdefault(replicas, len(groups) + 1)
                of_place |= dict.fromkeys(own, number)
        ranks = len(self._streams.ranks)
        self._groups = {
            f"replicas {number}": group_of_ranks(self._group, own) for own, number in groups.items()
        }
        self._groups["network"] = self._streams.group("sums")
        self._gradients = SharedGradients(
            bytes=[each.numel() * each.element_size() for each in self._trained],
            groups=of_place,
            shares=(1.0, *((1 - 1 / len(each)) / (1 - 1 / ranks) for each in groups)),
        )
        self._summed = [
            place for place in range(len(self._trained)) if place not in self._experts or place in of_place
        ]
        self._of_tensors = [
            parameter.register_post_accumulate_grad_hook(self._arrived)  # type: ignore[no-untyped-call]
            for parameter in self._trained
        ]

    def _require_alike(self) -> None:
        shared = [place for place in range(len(self._trained)) if place not in self._experts]
        require_alike(
            [self._names[place] for place in shared],
            [self._trained[place] for place in shared],
            self._streams.group("sums"),
        )

    def _share_weights(self) -> None:
        """Broadcast weights from rank 0, those of an expert from its first replica."""
        experts = {id(each) for each in tensors_of(*(layer.experts for layer in self._layers.values()))}
        alike = [each for each in tensors_of(self._model) if id(each) not in experts]
        share_weights(alike, self._streams.ranks[0], self._streams.group("sums"))
        for layer in self._layers.values():
            replicas = layer.layout.replicas(layer.rank)
            group = group_of_ranks(self._group, replicas)
            if group is not None:
                share_weights(tensors_of(layer.experts), self._streams.ranks[replicas[0]], group)

    def _watch(self) -> None:
        """Time a step."""
        self._record = self.queue.watch = StepRecord(DeviceClock(self._trained[0].device))

    def _start_recording(self) -> None:
        """Start recording: all-to-alls unsplit, all-reduces after backward."""
        self._iteration = 0
        self._record = None
        self.plain_seconds = 0.0
        whole: list[Message] = []
        for group in range(len(self._groups)):
            places = tuple(p for p in self._summed if self._gradients.groups.get(p, 0) == group)
            if places:
                whole.append(self._gradients.message(f"sum {len(whole)}", places, group))
        messages = tuple(piece for each in whole for piece in cut_message(each, 1))
        order = tuple(range(len(messages)))
        self._adopt(MixturePlan(messages=messages, token_pieces=1, order=order, predicted_seconds=0.0))

    def _adopt(self, plan: MixturePlan) -> None:
        """Use a plan from now on."""
        self.plan = plan
        for layer in self._layers.values():
            layer.pieces = plan.token_pieces
        self._buckets = buckets_of(plan.messages, self._trained, 1)
        self._bucket_of = {place: places for places in self._buckets for place in places}
        self._views = {
            place: view
            for places, bucket in self._buckets.items()
            for place, view in zip(places, bucket.views, strict=True)
        }

    @property
    def _recording(self) -> bool:
        return self._iteration < self._recorded

    def _model_starts(self, *_: object) -> None:
        if not (self._model.training and torch.is_grad_enabled()):
            return
        if self._recording and self._iteration and self._record is None:  # the first one is not timed
            self._watch()
        if self._record is not None:
            self._record.begin()

    def _model_ends(self, *_: object) -> None:
        if self._model.training and torch.is_grad_enabled() and self._record is not None:
            self._record.mark(BOUNDARY)

    def _arrived(self, parameter: torch.Tensor) -> None:
        """Called when autograd has made a gradient."""
        if self.accumulates:
            return
        self.backward_starts()
        place = self._places[id(parameter)]
        gradient = require_dense(parameter.grad, self._names[place])
        if place not in self._bucket_of:
            return
        if self._record is not None:
            self._record.mark(GRADIENT, place)
        scale = 1.0 if place in self._experts else 1 / len(self._streams.ranks)
        torch.mul(gradient, scale, out=self._views[place])
        places = self._bucket_of[place]
        self._missing[places].discard(place)
        if not self._missing[places] and not self._recording:
            self._ready(places)

    def _ready(self, places: tuple[int, ...]) -> None:
        """Called when all gradients of a bucket are available."""
        for number, message in enumerate(self.plan.messages):
            if message.gradients == places:
                slices = self._buckets[places].slices(message.offset_bytes, message.size_bytes)
                self.queue.ready(number, message.name, partial(self._start, slices, message.stream))

    def _start(self, slices: Sequence[torch.Tensor], stream: str) -> list[Any]:
        return [dist.all_reduce(each, group=self._groups[stream], async_op=True) for each in slices]

    def _begin_backward(self) -> None:
        self._in_backward = True
        self._missing = {places: set(places) for places in self._buckets}
        self.queue.begin(self.plan.order)
        after_backward(self._end_backward)

    def _end_backward(self) -> None:
        """Called when autograd has finished: wait for all all-reduces."""
        self._in_backward = False
        missing = sorted(set().union(*self._missing.values()))
        require_no_missing([self._names[place] for place in missing], "or use it in every iteration")
        if self._record is not None:
            self._record.end()
        if self._recording:
            for places in self._buckets:
                self._ready(places)
        self.queue.drain()
        for place, view in self._views.items():
            self._trained[place].grad = view
        if self._record is not None:
            self._record.settle()
        if self._recording:
            self._iteration += 1
            if not self._recording:
                self._replan()

    def _replan(self) -> None:
        """Adopt the policy's plan of the recording on all ranks."""
        assert self._record is not None
        own = alike_steps(self._record), self._record.between_seconds()
        everyone = gathered(own, self._streams.group("sums"))
        items, after = merged_steps([steps for steps, _ in everyone]), max(after for _, after in everyone)
        self._record = self.queue.watch = None
        self._network = self._measured_network()
        found = self._agree(lambda: self._planned(items, after))
        self.plain_seconds = found[1]
        self._adopt(found[0])

    def _measured_network(self) -> NetworkTimes:
        """Network times as of the recording."""
        sums, device = self._streams.group("sums"), self._trained[0].device
        rate, start = self._given_network or measure_network(sums, device, small_bytes=_SHORT_BYTES)
        return NetworkTimes(
            bytes_per_second=rate,
            sum_seconds=start,
            exchange_seconds=start if self._given_network else exchange_start_seconds(sums, device),
        )

    def _planned(self, items: Sequence[StepItem], after: float) -> tuple[MixturePlan, float]:
        given = self._gradients, self._network
        return plan_recorded_step(items, after, self.policy, *given), plain_seconds(items, after, *given)

    def _agree(self, make: Any) -> Any:
        """Value of rank 0 on all ranks."""
        return broadcast_from_first(make, first=self._streams.ranks[0], group=self._streams.group("sums"))


def schedule_mixture(
    model: nn.Module,  # A model with layers of experts
    optimizer: torch.optim.Optimizer,
    *,
    group: Any,  # The ranks; None: all
    # Bytes per second and seconds per message of an all-reduce; None: measured now
    network: tuple[float, float] | None,
    recorded: int,
    timeout_s: float,
    # Steps after which it is looked whether experts are to be packed; None: never
    pack_every: int | None = None,
    # What the experts of a rank may take in a layer, gradients and optimizer included; None: anything
    memory_bytes: float | None = None,
    # The network of the ranks, for whose links exchanges are planned by what goes from each rank to each;
    # None: they go directly
    topology: Any = None,
    **settings: Any,
) -> ScheduledOptimizer:
    """Train a model with experts under the policy Lina.

    Args:
        settings: Options of the policy: ``micro_bytes``, ``token_pieces``.
    """
    if pack_every is not None and pack_every < 1:
        raise InputError(
            f"expected to look at experts every step or more steps, found `pack_every={pack_every}`."
        )
    if topology is not None and pack_every is not None:
        raise InputError(
            "expected exchanges that are planned for all ranks or packed experts, with which fewer ranks exchange, "
            "found `topology` and `pack_every`: leave one out."
        )
    made = MixtureSchedule(
        model,
        optimizer,
        Lina.of(**settings),
        group,
        network=network,
        recorded=recorded,
        timeout_s=timeout_s,
        packing=None if pack_every is None else Packing(pack_every, memory_bytes),
        exchange=all_to_all if topology is None else PlannedExchange(topology),
    )
    return made.optimizer
