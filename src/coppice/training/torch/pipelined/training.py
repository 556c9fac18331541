"""Train real stages on real ranks in the order of a simulated policy: ``pipeline(stages, optimizer, loss, ...)``.

Every rank walks through the program of its device. A pass waits for what it takes, runs, and sends what it gives. When
the last backward pass of a stage has run, the messages with its gradients are launched beside the passes that follow.
Stages are updated at the end of an iteration; with Fold3D each before it next runs, and in an asynchronous pipeline
a group of micro-batches later, which is when simulation has them wait for their sums.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any
from zlib import crc32

import torch
import torch.distributed as dist
from torch import nn

from coppice.errors import InputError
from coppice.iteration.layers import LayerWorkload
from coppice.iteration.pipeline.order import PipelineOrder, StagePass, Work, target_of
from coppice.training.torch.core.agree import require_equal_arguments
from coppice.training.torch.core.attached import ModuleAttachments
from coppice.training.torch.core.measure import BACKWARD, FORWARD, NOTE, DeviceClock, StepRecord
from coppice.training.torch.pipelined.channels import PipelineLayout, StageChannels, TensorKind
from coppice.training.torch.pipelined.messages import DeviceRecord, LinkTokens
from coppice.training.torch.pipelined.plan import (
    PipelinePlan,
    StageCosts,
    gathered_costs,
    pipeline_plan,
    stage_workload,
)
from coppice.training.torch.pipelined.shared import SparseRows, TiedWeights, agreed_stages
from coppice.training.torch.pipelined.stage import TrainedStage, begin_alike, evaluated, rows_of
from coppice.training.torch.pipelined.updates import StageUpdates

_Optimizer = Callable[[Iterable[nn.Parameter]], torch.optim.Optimizer]


class PipelineTraining:
    """A training pipeline; made by :func:`~coppice.training.torch.pipelined.training.pipeline`.

    Attributes:
        layout: Device and replica of this rank.
        workload: What simulation takes; None while it is recorded.
    """

    def __init__(
        self,
        stages: Sequence[nn.Module] | Mapping[int, nn.Module],
        optimizer: _Optimizer,
        loss: Callable[[Any, Any], torch.Tensor],
        order: str | PipelineOrder,
        *,
        micro_batches: int,
        layout: PipelineLayout,
        tied: Sequence[Sequence[tuple[int, str]]],
        max_norm: float | None,
        workload: LayerWorkload | None,
        network: tuple[float, float] | None,
        recorded: int,
        timeout_s: float,
        settings: Mapping[str, Any],
    ) -> None:
        self.layout, self.workload = layout, workload
        self.iteration = 0  # Iterations so far
        self.record = DeviceRecord()  # What this rank has done
        # Norm of all gradients of the last iteration, where they are clipped
        self.gradient_norm: torch.Tensor | None = None
        self._order, self._settings = order, dict(settings)
        self._micro_batches, self._network, self._recorded = micro_batches, network, recorded
        given = agreed_stages(stages, tied, layout, apart=order == "trirace")
        self._count = given.count
        self._settings |= given.settings
        plain = StageCosts(
            forward=[1.0] * given.count,
            backward=[2.0] * given.count,
            bytes=[float(1 << 20)] * given.count,
            embedding_bytes=float(1 << 19) if given.apart else 0.0,
        )
        # Passes and messages, as the policy says
        self.plan = self._planned(workload or stage_workload(plain, layout.replicas), plain)
        self._device_of = self.plan.order.device_of()
        if max_norm is not None and not self.plan.barrier:
            raise InputError(
                f"expected no `max_norm` with {order}, which updates stages before all gradients are there, found "
                f"{max_norm:g}: leave it out, or take breadth-first."
            )
        own = [stage for stage, device in sorted(self._device_of.items()) if device == layout.device]
        # Stages of this rank, by number
        self.stages = {
            stage: TrainedStage(
                stage,
                given.module(stage),
                optimizer,
                loss=loss if stage == self._count - 1 else None,
                micro_batches=micro_batches,
                versions=1 + self.plan.staleness,
                apart=given.apart_of(stage),
            )
            for stage in own
        }
        self._device = next(iter(self.stages[own[0]].parameters.values())).device
        begin_alike(self.stages, layout)
        tokens = LinkTokens(self._device, timeout_s)
        hops = [
            hop
            for stage in range(self._count - 1)
            for one, other in [(self._device_of[stage], self._device_of[stage + 1])]
            if one != other
            for hop in ((one, other), (other, one))
        ]
        self._channels = StageChannels(layout, hops, self._device, ahead=layout.devices + 2, tokens=tokens)
        tied_weights = [
            TiedWeights(each, {self._device_of[stage] for stage, _ in each}, layout, self.stages)
            for each in given.tied
        ]
        rows_group = layout.of_devices([self._device_of[0]]) if given.sparse else None
        rows = [
            SparseRows(self.stages[0], name, rows_group, layout.replicas)
            for name in given.sparse
            if rows_group is not None
        ]
        self._updates = StageUpdates(
            self.plan,
            self.stages,
            layout,
            tied=[each for each in tied_weights if each.own],
            rows=rows,
            record=self.record,
            tokens=tokens,
            max_norm=max_norm,
        )
        self._times: StepRecord | None = (
            StepRecord(DeviceClock(self._device)) if workload is None and recorded else None
        )
        self._inputs: dict[int, tuple[torch.Tensor, ...]] = {}
        self._targets: dict[int, Any] = {}
        self._given: dict[StagePass, list[torch.Tensor]] = {}  # between stages of this device
        self._attached = ModuleAttachments(self.settle)
        for stage in self.stages.values():
            hook = stage.module.register_state_dict_pre_hook(lambda *_: self.settle())  # type: ignore[no-untyped-call]
            self._attached.add(stage.module, hook)

    @property
    def predicted_seconds(self) -> float:
        """Simulated iteration time of the recorded workload; 0 during recording."""
        return 0.0 if self.workload is None else self.plan.predicted_seconds()

    @property
    def optimizers(self) -> dict[int, torch.optim.Optimizer]:
        """Optimizers by stage, for LR schedulers."""
        return {number: stage.optimizer for number, stage in self.stages.items()}

    def step(self, inputs: Any = None, target: Any = None) -> torch.Tensor | None:
        """Run an iteration over all micro-batches of this replica's batch.

        Args:
            inputs: What the first stage takes, a tensor or a tuple of some, rows first; others ignore it.
            target: What the loss is taken from, on the rank of the last stage; others ignore it.

        Returns:
            The mean loss of the replica on the rank of the last stage, None on others.
        """
        first = self.iteration * self._micro_batches if self.plan.staleness else 0
        numbers = range(first, first + self._micro_batches)
        if 0 in self.stages:
            self._inputs.update(zip(numbers, rows_of(inputs, "inputs", self._micro_batches), strict=True))
        if self._count - 1 in self.stages:
            targets = rows_of(target, "target", self._micro_batches)
            single = isinstance(target, torch.Tensor)
            self._targets.update(
                (number, each[0] if single else each) for number, each in zip(numbers, targets, strict=True)
            )
        if self.plan.staleness:
            self._expect_group(numbers)
            for number in numbers:
                self._forward(StagePass(self.layout.device, Work.FORWARD, number))
                self._catch_up(self.layout.devices - 1 - self.layout.device)
        else:
            self._channels.expect(self._sends(self.plan.order))
            for each in self.plan.order.devices[self.layout.device]:
                if each.work is Work.FORWARD:
                    self._forward(each)
                else:
                    self._backward(each)
        self.gradient_norm = self._updates.ask(self.iteration)
        self.iteration += 1
        last = self.stages.get(self._count - 1)
        found = None
        if last is not None:
            found = torch.stack([last.losses.pop(number) for number in numbers]).mean()
        if self._times is not None:
            self._record()
        return found

    def settle(self) -> None:
        """Complete passes, messages and updates up to an iteration boundary; collective over the ranks.

        Evaluation and checkpoints do it by themselves. Training goes on as if it had not been called.
        """
        if self.plan.staleness:
            self._catch_up(0)
        self._updates.settle(self.iteration - self.plan.staleness)

    def flush(self) -> None:
        """Complete everything at the end of training, including the last asynchronous gradients."""
        self.settle()
        self._updates.settle(self.iteration)

    def evaluate(self, inputs: Any = None) -> Any:
        """Output of the last stage with the next iteration's weights; collective over the ranks.

        Returns:
            Its output on the rank of the last stage, None on others.
        """
        self.settle()
        return evaluated(self.stages, self._count, self._device_of, self._channels, inputs)

    def state_dict(self) -> dict[str, Any]:
        """State of this rank's stages: weights keyed as ``nn.Sequential(*stages)``, optimizers, late gradients.

        All ranks call it alike; those of one replica have it all.
        """
        self.settle()
        return {
            "iteration": self.iteration,
            "model": {
                f"{number}.{key}": value
                for number, stage in self.stages.items()
                for key, value in stage.module.state_dict().items()
            },
            "optimizers": {number: stage.optimizer.state_dict() for number, stage in self.stages.items()},
            "late": self._updates.state(),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Load the state of this rank's stages."""
        self.flush()
        for number, stage in self.stages.items():
            if number not in state["optimizers"]:
                raise InputError(
                    f"expected a state with stage {number}, found stages {sorted(state['optimizers'])}."
                )
            prefix = f"{number}."
            with torch.no_grad():
                stage.module.load_state_dict(
                    {
                        key.removeprefix(prefix): value
                        for key, value in state["model"].items()
                        if key.startswith(prefix)
                    }
                )
            stage.optimizer.load_state_dict(state["optimizers"][number])
            stage.refresh()
        self.iteration = int(state["iteration"])
        self._updates.load(state["late"])

    def close(self) -> None:
        """Complete everything, and stop the threads."""
        self.flush()
        self._channels.finish()
        self._updates.close()
        self._attached.remove()

    def _forward(self, each: StagePass) -> None:
        stage, group = self.stages[each.stage], self._group(each)
        if each.stage == 0:
            inputs = list(self._inputs.pop(each.micro_batch))
            trained = [False] * len(inputs)
        else:
            source = each._replace(stage=each.stage - 1)
            inputs, trained = self._taken(source)
        self._updates.open(each.stage, group)
        self.record.mark(_kind(each), self._named(each))
        with self._timed(each):
            outputs = stage.forward(
                each.micro_batch,
                inputs,
                self._targets.pop(each.micro_batch, None) if stage.last else None,
                group,
                trained,
            )
        if not stage.last:
            self._give(each, outputs)
            kinds = tuple(TensorKind.of(one) for one in outputs if one.requires_grad)
            self._channels.kinds[each.stage + 1, Work.BACKWARD] = kinds

    def _backward(self, each: StagePass) -> None:
        stage, group = self.stages[each.stage], self._group(each)
        gradients: list[torch.Tensor] | None = None
        if not stage.last and each.work is not Work.WEIGHT:
            source = StagePass(each.stage + 1, Work.BACKWARD, each.micro_batch)
            gradients, _ = self._taken(source)
        self.record.mark(_kind(each), self._named(each))
        with self._timed(each):
            if each.work is Work.BACKWARD:
                given = stage.backward(each.micro_batch, gradients)
            elif each.work is Work.INPUT:
                given = stage.backward_inputs(each.micro_batch, gradients, group)
            else:
                stage.backward_weights(each.micro_batch, group)
        if each.work is not Work.WEIGHT and each.stage:
            self._give(each, given)
        if each.work is not Work.INPUT:
            self._updates.ran(each.stage, group)

    def _taken(self, source: StagePass) -> tuple[list[torch.Tensor], list[bool]]:
        """Input of a pass from another stage, and which tensors require gradients."""
        if source in self._given:
            tensors = self._given.pop(source)
            return tensors, [each.requires_grad for each in tensors]
        tensors = self._channels.take(source, self._device_of[source.stage])
        return tensors, [kind.trained for kind in self._channels.kinds[source.stage, source.work]]

    def _give(self, each: StagePass, tensors: Sequence[torch.Tensor]) -> None:
        """Hand over the output of a pass."""
        target = target_of(each, self._count)
        assert target is not None
        message = _message(each)
        if target in self.stages:
            self._given[message] = list(tensors)
            return
        self.record.mark(NOTE, f"{self._named(each)} sent")
        forward = each.work is Work.FORWARD
        self._channels.send(message, self._device_of[target], tensors, says_kinds=forward)

    def _catch_up(self, behind: int) -> None:
        """Run backward passes of an asynchronous pipeline until few enough micro-batches are open."""
        (stage,) = self.stages.values()
        while len(stage.open) > behind:
            self._backward(StagePass(stage.number, Work.BACKWARD, stage.open[0]))

    def _expect_group(self, numbers: range) -> None:
        device = self.layout.device
        if device:
            self._channels.expect({device - 1: [StagePass(device - 1, Work.FORWARD, k) for k in numbers]})
        if device < self.layout.devices - 1:
            self._channels.expect({device + 1: [StagePass(device + 1, Work.BACKWARD, k) for k in numbers]})

    def _sends(self, order: PipelineOrder) -> dict[int, list[StagePass]]:
        """Sends from each device to this one, in order."""
        found: dict[int, list[StagePass]] = {}
        for device, program in enumerate(order.devices):
            if device == self.layout.device:
                continue
            for each in program:
                target = target_of(each, self._count)
                if target is not None and self._device_of[target] == self.layout.device:
                    found.setdefault(device, []).append(_message(each))
        return found

    def _group(self, each: StagePass) -> int:
        """Iteration of a pass."""
        return each.micro_batch // self._micro_batches if self.plan.staleness else self.iteration

    def _named(self, each: StagePass) -> str:
        """Task name as in the simulation."""
        return str(each) if self.plan.staleness else f"{each} of {self.iteration}"

    def _timed(self, each: StagePass) -> AbstractContextManager[None]:
        what = each.stage, each.work
        return nullcontext() if self._times is None else self._times.timed(_kind(each), what)

    def _planned(self, workload: LayerWorkload, costs: StageCosts) -> PipelinePlan:
        settings = dict(self._settings)
        if settings.get("touched") is None:
            settings.pop("touched", None)
            if "touched" in self._settings:
                most = 1.999 / self.layout.replicas  # above, whole gradients would be less than rows
                settings["touched"] = min(costs.touched, most, 1.0)
        return pipeline_plan(
            self._order,
            settings,
            workload,
            devices=self.layout.devices,
            stages=self._count,
            micro_batches=self._micro_batches,
            transfer_seconds=costs.transfer,
        )

    def _record(self) -> None:
        """Continue recording; after the last recorded iteration adopt the policy's plan."""
        assert self._times is not None
        self._times.end(counts=self.iteration > 1)
        if self.iteration <= self._recorded:
            return
        self.flush() if not self.plan.staleness else self.settle()
        rows = self._updates.rows
        own = {
            number: (
                float(
                    stage.gradients[0].bytes + stage.bytes_apart if number == 0 else stage.gradients[0].bytes
                ),
                float(stage.bytes_apart if number == 0 else 0),
                max((each.touched[-1] for each in rows), default=0.0) if number == 0 else 0.0,
            )
            for number, stage in self.stages.items()
        }
        costs = gathered_costs(
            self.layout,
            self._times,
            own,
            stages=self._count,
            device=self._device,
            network=self._network,
            transfer=lambda: self._channels.measured_seconds(
                (self._device_of[0], self._device_of[min(1, self._count - 1)]), (0, Work.FORWARD)
            ),
        )
        self._times = None
        self.costs = costs
        self.workload = stage_workload(costs, self.layout.replicas)
        self.plan = self._planned(self.workload, costs)
        self._updates.adopt(self.plan)


def _kind(each: StagePass) -> str:
    return FORWARD if each.work is Work.FORWARD else BACKWARD


def _message(each: StagePass) -> StagePass:
    """Message key of a pass's output; input gradients of whole and split passes share it."""
    return each if each.work is Work.FORWARD else each._replace(work=Work.BACKWARD)


def pipeline(
    stages: Sequence[nn.Module] | Mapping[int, nn.Module],
    optimizer: Callable[[Iterable[nn.Parameter]], torch.optim.Optimizer],
    loss: Callable[[Any, Any], torch.Tensor],
    order: str | PipelineOrder = "breadth-first",
    *,
    micro_batches: int,
    replicas: int = 1,
    group: dist.ProcessGroup | None = None,
    ranks: Sequence[Sequence[int]] | None = None,
    tied: Sequence[Sequence[tuple[int, str]]] = (),
    max_norm: float | None = None,
    workload: LayerWorkload | None = None,
    network: tuple[float, float] | None = None,
    recorded: int = 3,
    timeout_s: float = 600.0,
    **settings: Any,
) -> PipelineTraining:
    """Train stages as a pipeline, in the order and with the messages of a simulated policy.

    Works on any process group of torch; every rank calls this. Stage s is on the device that the order names, in most
    orders s modulo the number of devices.

    Args:
        stages: The modules of all stages, or those of this rank by number. What one gives, a tensor or a tuple of some,
            the next one takes. A parameter that is in several of them is tied.
        optimizer: Makes the optimizer of a stage from its parameters: ``lambda ps: torch.optim.SGD(ps, lr=0.1)``.
        loss: The mean loss of an output of the last stage and a target.
        order: ``breadth-first``, ``fold3d``, ``trirace``, ``fast-forward``, ``modulo``, ``zero-bubble``, ``1f1b``,
            ``interleaved``, ``gpipe``, ``dualpipe-v``, or an order of your own.
        micro_batches: Micro-batches of a batch.
        replicas: Pipelines beside each other, each with its own rows; their gradients are averaged.
        group: The ranks; None: all.
        ranks: For each replica its ranks within the group, in the order of devices; None: in a row.
        tied: Weights that several stages have, stage and name of each: ``[[(0, "weight"), (3, "out.weight")]]``.
        max_norm: Norm to which all gradients together are clipped.
        workload: Times and bytes of the stages; None: those of recorded iterations.
        network: Bytes per second and seconds per message of a sum over replicas; None: measured.
        recorded: Iterations that are recorded after the first one; 0: none, and nothing is predicted.
        timeout_s: Longest wait for another rank.
        settings: Options of the policy, such as ``share`` of ``fold3d``.

    Raises:
        InputError: If stages, ranks and order do not fit, or a stage has nothing to train.
        CheckError: If a rank does not answer.

    Source: each policy names its own (``coppice train policies``).

    Examples:
        >>> store = dist.HashStore()
        >>> dist.init_process_group("gloo", rank=0, world_size=1, store=store)
        >>> halves = [nn.Linear(2, 4), nn.Linear(4, 1)]
        >>> training = pipeline(
        ...     halves, lambda ps: torch.optim.SGD(ps, lr=0.1), nn.functional.mse_loss, micro_batches=2
        ... )
        >>> training.step(torch.ones(4, 2), torch.ones(4, 1)).shape
        torch.Size([])
        >>> training.record.passes
        ['0F0 of 0', '0F1 of 0', '1F0 of 0', '1F1 of 0', '1B0 of 0', '1B1 of 0', '0B0 of 0', '0B1 of 0']
        >>> training.close()
        >>> dist.destroy_process_group()
    """
    if micro_batches < 1:
        raise InputError(f"expected 1 or more `micro_batches`, found {micro_batches}.")
    if recorded < 0:
        raise InputError(f"expected 0 or more `recorded` iterations, found {recorded}.")
    if max_norm is not None and not max_norm > 0:
        raise InputError(f"expected a `max_norm` above 0, found {max_norm:g}.")
    name = order if isinstance(order, str) else f"an order of its own ({crc32(repr(order).encode()):08x})"
    told = {"order": name, "micro_batches": micro_batches, "replicas": replicas, "ranks": ranks, "tied": tied}
    told |= {"max_norm": max_norm, "network": network, "recorded": recorded}
    require_equal_arguments({**told, **settings}, "pipeline", group)
    return PipelineTraining(
        stages,
        optimizer,
        loss,
        order,
        micro_batches=micro_batches,
        layout=PipelineLayout(group, replicas, ranks, timeout_s),
        tied=tied,
        max_norm=max_norm,
        workload=workload,
        network=network,
        recorded=recorded,
        timeout_s=timeout_s,
        settings=settings,
    )
