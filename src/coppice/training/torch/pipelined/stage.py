"""A pipeline stage on its device: passes over micro-batches, weights, gradients, and updates.

Gradients lie one after the other in flat memory, so that contiguous parts of them can be summed. Backward passes in
two parts are those of ``torch.distributed.pipelining``: the first keeps what the second needs. Where gradients are late
there are two versions of the weights, which take turns: the passes of a group read and fill one of them, while the
other is that of the group before.

Beside their programs stages begin alike, batches are dealt to micro-batches, and rows are evaluated.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from fractions import Fraction
from typing import Any

import torch
from torch import nn
from torch.distributed.pipelining._backward import stage_backward_input, stage_backward_weight

from coppice.errors import InputError
from coppice.training.torch.core.agree import require_alike, share_weights, tensors_of
from coppice.training.torch.pipelined.channels import PipelineLayout, StageChannels


class StageGradients:
    """Flat gradient buffers, one per type.

    Args:
        tensors: The tensors, by name.
    """

    def __init__(self, tensors: Mapping[str, torch.Tensor]) -> None:
        self._tensors = dict(tensors)
        self.flats: list[torch.Tensor] = []  # The rows
        self.views: dict[str, torch.Tensor] = {}  # For each name its gradient's place
        of_type: dict[torch.dtype, list[str]] = {}
        for name, tensor in tensors.items():
            of_type.setdefault(tensor.dtype, []).append(name)
        for kind, names in of_type.items():
            count = sum(tensors[name].numel() for name in names)
            flat = torch.zeros(count, dtype=kind, device=tensors[names[0]].device)
            place = 0
            for name in names:
                tensor = tensors[name]
                self.views[name] = flat[place : place + tensor.numel()].view(tensor.shape)
                place += tensor.numel()
            self.flats.append(flat)

    @property
    def bytes(self) -> int:
        """Total bytes."""
        return sum(flat.numel() * flat.element_size() for flat in self.flats)

    def collect(self, stage: int) -> None:
        """Move gradients into the buffers; later iterations accumulate there directly."""
        for name, view in self.views.items():
            tensor = self._tensors[name]
            if tensor.grad is None:
                raise InputError(
                    f"expected a gradient for every trained parameter of stage {stage}, found none of {name}: freeze "
                    "what is not used."
                )
            if tensor.grad.layout is not torch.strided:
                raise InputError(
                    f"expected dense gradients, found a sparse one of {name} of stage {stage}: take sparse=False, or "
                    "`order='trirace'` for an embedding of the first stage."
                )
            if tensor.grad.data_ptr() != view.data_ptr():
                view.copy_(tensor.grad)
                tensor.grad = view

    def zero(self) -> None:
        """Zero the buffers."""
        for flat in self.flats:
            flat.zero_()

    def part(self, low: Fraction, high: Fraction) -> list[torch.Tensor]:
        """Contiguous part of each buffer.

        Args:
            low: Share of the row at which it begins.
        """
        cut = [flat[int(low * flat.numel()) : int(high * flat.numel())] for flat in self.flats]
        return [each for each in cut if each.numel()]

    def load(self, values: Sequence[torch.Tensor]) -> None:
        """Load values."""
        with torch.no_grad():
            for flat, value in zip(self.flats, values, strict=True):
                flat.copy_(value)


Tensors = tuple[torch.Tensor, ...]


def as_tensors(value: Any, what: str) -> Tensors:
    """Tuple of one or several tensors."""
    found = (value,) if isinstance(value, torch.Tensor) else value
    if not isinstance(found, (tuple, list)) or not all(isinstance(each, torch.Tensor) for each in found):
        raise InputError(f"expected a tensor or a tuple of tensors as {what}, found {type(value).__name__}.")
    return tuple(found)


class TrainedStage:
    """A pipeline stage.

    Args:
        number: The stage.
        module: What it computes.
        optimizer: Makes its optimizer from parameters.
        loss: Of the last stage: the loss of an output and a target; None for others.
        micro_batches: Micro-batches of an iteration, by which losses are divided.
        versions: Versions of the weights that passes use in turn, 1 or 2.
        apart: Names of parameters whose gradients do not go with the others.

    Raises:
        InputError: If it has no trained parameter.
    """

    def __init__(
        self,
        number: int,
        module: nn.Module,
        optimizer: Callable[[Iterable[nn.Parameter]], torch.optim.Optimizer],
        *,
        loss: Callable[[torch.Tensor, Any], torch.Tensor] | None,
        micro_batches: int,
        versions: int,
        apart: Sequence[str],
    ) -> None:
        self.number, self.module = number, module
        self._loss, self._micro_batches = loss, micro_batches
        self.parameters = {name: each for name, each in module.named_parameters() if each.requires_grad}
        if not self.parameters:
            raise InputError(
                f"expected a trained parameter in every stage, found none in stage {number}: join it with another."
            )
        self.optimizer = optimizer(list(self.parameters.values()))
        if isinstance(self.optimizer, torch.optim.LBFGS):
            raise InputError(
                "expected an optimizer that updates each parameter by itself, found LBFGS: take another."
            )
        self._newest = 0
        self._leaves: list[dict[str, torch.Tensor]] = [dict(self.parameters)]
        if versions > 1:
            self._leaves = [
                {name: each.detach().clone().requires_grad_() for name, each in self.parameters.items()}
                for _ in range(versions)
            ]
            self._point()
        self.gradients = [
            StageGradients({name: leaf for name, leaf in leaves.items() if name not in apart})
            for leaves in self._leaves
        ]
        self._open: dict[int, tuple[Tensors, Tensors]] = {}  # by micro-batch: what came in, what went out
        self._halves: dict[int, tuple[Tensors, list[dict[str, Any]]]] = {}
        self.losses: dict[int, torch.Tensor] = {}

    @property
    def last(self) -> bool:
        """Whether it computes the loss."""
        return self._loss is not None

    @property
    def bytes_apart(self) -> int:
        """Bytes of parameters with separately reduced gradients."""
        together = self.gradients[0].views
        return sum(
            each.numel() * each.element_size()
            for name, each in self.parameters.items()
            if name not in together
        )

    @property
    def open(self) -> list[int]:
        """Micro-batches after forward and before backward, in order."""
        return list(self._open)

    def version(self, iteration: int) -> int:
        """Weight version of an iteration."""
        return iteration % len(self._leaves)

    def forward(
        self,
        micro_batch: int,
        inputs: Sequence[torch.Tensor],
        target: Any,  # What the loss is taken from
        iteration: int,  # The iteration, which says the version of weights
        trained: Sequence[bool],
    ) -> Tensors:
        """Run a forward pass; the last stage returns the loss."""
        own = tuple(
            each.detach().requires_grad_(wanted) for each, wanted in zip(inputs, trained, strict=True)
        )
        if len(self._leaves) > 1:
            leaves = self._leaves[self.version(iteration)]
            given = torch.func.functional_call(self.module, leaves, own)
        else:
            given = self.module(*own)
        if self._loss is None:
            # A view cannot leave its graph, as an output does when its gradients come in two parts.
            outputs = tuple(
                each.clone() if each._is_view() and each.requires_grad else each  # noqa: SLF001
                for each in as_tensors(given, f"the output of stage {self.number}")
            )
        else:
            value = self._loss(given, target)
            self.losses[micro_batch] = value.detach()
            outputs = (value / self._micro_batches,)
        self._open[micro_batch] = own, outputs
        return outputs

    def backward(self, micro_batch: int, gradients: Sequence[torch.Tensor] | None) -> list[torch.Tensor]:
        """Run a whole backward pass.

        Args:
            gradients: Those of the trained outputs; None: of the loss.

        Returns:
            Those of the trained inputs.
        """
        inputs, outputs = self._open.pop(micro_batch)
        trained = [each for each in outputs if each.requires_grad]
        if trained:
            torch.autograd.backward(trained, None if gradients is None else list(gradients))
        return _gradients(inputs)

    def backward_inputs(
        self, micro_batch: int, gradients: Sequence[torch.Tensor] | None, iteration: int
    ) -> list[torch.Tensor]:
        """Run the first part of a backward pass: input gradients."""
        inputs, outputs = self._open.pop(micro_batch)
        trained = [each for each in outputs if each.requires_grad]
        wanted = [each for each in inputs if each.requires_grad]
        if not wanted:  # as on the first stage: the second part does it all
            self._halves[micro_batch] = (tuple(trained), [{"gradients": gradients}])
            return []
        leaves = self._leaves[self.version(iteration)]
        _, groups = stage_backward_input(
            list(trained),
            None if gradients is None else list(gradients),
            wanted,
            iter(leaves.values()),  # type: ignore[arg-type]
        )
        self._halves[micro_batch] = ((), groups)
        return _gradients(inputs)

    def backward_weights(self, micro_batch: int, iteration: int) -> None:
        """Run the second part of a backward pass: weight gradients."""
        outputs, groups = self._halves.pop(micro_batch)
        if outputs:
            gradients = groups[0]["gradients"]
            torch.autograd.backward(list(outputs), None if gradients is None else list(gradients))
        else:
            leaves = self._leaves[self.version(iteration)]
            stage_backward_weight(iter(leaves.values()), groups)  # type: ignore[arg-type]

    def leaf(self, name: str, iteration: int) -> torch.Tensor:
        """Tensor of a parameter that an iteration reads, with its gradient."""
        return self._leaves[self.version(iteration)][name]

    def current_settings(self) -> list[dict[str, Any]]:
        """Current settings of the optimizer."""
        # Schedulers of rates look at this: the step comes, though later.
        self.optimizer._opt_called = True  # type: ignore[attr-defined] # noqa: SLF001
        return [{**group, "params": list(group["params"])} for group in self.optimizer.param_groups]

    def update(self, iteration: int, groups: list[dict[str, Any]]) -> None:
        """Step the optimizer by an iteration's gradients, with the settings at the time of the call."""
        version = self.version(iteration)
        self.make_newest(version)
        for name, parameter in self.parameters.items():
            view = self.gradients[version].views.get(name)
            parameter.grad = self._leaves[version][name].grad if view is None else view
        own = self.optimizer.param_groups
        self.optimizer.param_groups = groups
        try:
            self.optimizer.step()
        finally:
            self.optimizer.param_groups = own
        for name, leaf in self._leaves[version].items():
            if name not in self.gradients[version].views:
                leaf.grad = None
        self.gradients[version].zero()

    def make_newest(self, version: int) -> None:
        """Make a version the newest, with the newest values."""
        if version != self._newest:
            with torch.no_grad():
                for name, leaf in self._leaves[version].items():
                    leaf.copy_(self._leaves[self._newest][name])
            self._newest = version
            self._point()

    def refresh(self) -> None:
        """Copy the newest values to all versions."""
        newest = self._newest
        for version in range(len(self._leaves)):
            self.make_newest(version)
        self.make_newest(newest)

    def _point(self) -> None:
        """Point the parameters at the newest version."""
        for name, parameter in self.parameters.items():
            parameter.data = self._leaves[self._newest][name].data


def _gradients(inputs: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """Gradients of the inputs that require them, zeros where nothing depends on one."""
    found = []
    for each in inputs:
        if each.requires_grad:
            found.append(torch.zeros_like(each) if each.grad is None else each.grad)
            each.grad = None
    return found


def begin_alike(stages: Mapping[int, TrainedStage], layout: PipelineLayout) -> None:
    """Broadcast the weights of the first replica."""
    group = layout.replica_group
    source = layout.rows[0][layout.device]
    names = [f"{number}.{name}" for number, stage in stages.items() for name in stage.parameters]
    trained = [each for stage in stages.values() for each in stage.parameters.values()]
    require_alike(names, trained, group)
    for stage in stages.values():
        share_weights(tensors_of(stage.module), source, group)
        stage.refresh()


def rows_of(values: Any, what: str, micro_batches: int) -> list[tuple[torch.Tensor, ...]]:
    """Rows of each micro-batch."""
    tensors = as_tensors(values, what)
    for each in tensors:
        if not each.dim() or not len(each) or len(each) % micro_batches:
            rows = len(each) if each.dim() else 0
            raise InputError(
                f"expected {what} whose rows are a multiple of {micro_batches} micro-batches, found {rows}."
            )
    return list(zip(*(each.chunk(micro_batches) for each in tensors), strict=True))


def evaluated(
    stages: Mapping[int, TrainedStage],
    count: int,
    device_of: Mapping[int, int],
    channels: StageChannels,  # What carries activations; nothing is expected there
    inputs: Any,
) -> Any:
    """Output of the last stage, on its rank; None elsewhere."""
    own: list[torch.Tensor] = []
    given: Any = None
    for number, stage in sorted(stages.items()):
        if number == 0:
            own = list(as_tensors(inputs, "inputs"))
        elif number - 1 not in stages:
            own = channels.take_now(device_of[number - 1])
        was = stage.module.training
        stage.module.eval()
        try:
            with torch.no_grad():
                given = stage.module(*own)
        finally:
            stage.module.train(was)
        if number + 1 < count:
            own = list(as_tensors(given, f"the output of stage {number}"))
            if number + 1 not in stages:
                channels.send_now(device_of[number + 1], own)
    channels.finish()
    return given if count - 1 in stages else None
