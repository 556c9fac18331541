"""Record the step of a script that is run whole: operators, collectives, memory, and what a job is recognised by.

A step ends with the last call of an optimizer before the next forward pass. The step that is recorded begins where the
one before ends; of a first step, at its first forward pass.
"""

# What PyTorch offers for tracing is private or untyped.
# mypy: disable-error-code="attr-defined, no-untyped-call, arg-type, misc, assignment, override, no-any-return"

from __future__ import annotations

from typing import Any, Self

import msgspec
import torch
import torch.distributed as dist
from torch import nn
from torch._guards import active_fake_mode
from torch._subclasses.fake_tensor import FakeTensor
from torch.distributed._tools.mem_tracker import MemTracker
from torch.distributed._tools.mod_tracker import ModTracker
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook
from torch.utils._pytree import tree_leaves

from coppice.iteration.capture.facts import FactsOfScript
from coppice.iteration.capture.fake_gpu import GpuMode, on_gpu
from coppice.iteration.modules.torch_recorder import OperationRecorder
from coppice.iteration.modules.tracing import ModuleOperation

_TOTAL = "Total"


class StepsAreOver(BaseException):
    """Ends a script after its steps; no script catches it by mistake."""


class GpuMemory(MemTracker):
    """PyTorch's tracker of memory, for scripts that call modules as often as they like; it keeps totals alone.

    Args:
        mode: Where tensors on the GPU are fake.
    """

    def __init__(self, mode: GpuMode) -> None:
        super().__init__()
        self._known: set[int] = set()
        self._mode = mode
        self._mod_tracker = _ForwardPasses()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run an operator, and track what it allocates."""
        if self._mode.trying:
            return func(*args, **(kwargs or {}))
        return super().__torch_dispatch__(func, types, args, kwargs)

    def most(self) -> tuple[int, dict[str, int]]:
        """Most bytes on the GPU, and by kind."""
        found = [snap for device, snap in self._peak_mem_snap.items() if device.type == "cuda"]
        parts: dict[str, int] = {}
        for snap in found:
            for kind, size in snap.items():
                if kind != _TOTAL:
                    name = str(getattr(kind, "value", kind))
                    parts[name] = parts.get(name, 0) + size
        return sum(snap[_TOTAL] for snap in found), parts

    def now(self) -> int:
        """Bytes on the GPU."""
        return sum(snap[_TOTAL] for device, snap in self._curr_mem_snap.items() if device.type == "cuda")

    def _pre_fw_hook(self, module: nn.Module, inputs: Any) -> None:
        del inputs
        if id(module) not in self._known:
            self._known.add(id(module))
            self._track_module_params_and_buffers(module, install_grad_hooks=True)
        elif self._mod_tracker.is_bw and self._ac_mod is None:
            self._ac_mod, self._in_ac = (lambda: module), True

    def _post_fw_hook(self, module: nn.Module, inputs: Any, outputs: Any) -> None:
        del inputs, outputs
        if self._mod_tracker.is_bw and self._ac_mod is not None and self._ac_mod() is module:
            self._ac_mod, self._in_ac = None, False

    def _update_peak_stats(self, peak_state: Any) -> None:
        del peak_state
        for device, snap in self._curr_mem_snap.items():
            if self._peak_mem.get(device, 0) < snap[_TOTAL]:
                self._peak_mem[device] = snap[_TOTAL]
                self._peak_mem_snap[device] = dict(snap)


class _ForwardPasses(ModTracker):
    """Tells when modules run; its hooks of backward passes, which PyTorch's pipelines refuse, are left out."""

    def _fw_pre_hook(self, mod: nn.Module, inputs: Any) -> None:
        self._user_pre_fw_hook(mod, inputs)

    def _fw_post_hook(self, mod: nn.Module, inputs: Any, outputs: Any) -> None:
        self._user_post_fw_hook(mod, inputs, outputs)


class ScriptRecorder(OperationRecorder):
    """Context that records the last of some steps, and stops the script behind it.

    Args:
        mode: Where tensors on the GPU are fake.
        rank: This rank.
        steps: How many steps.
    """

    def __init__(self, mode: GpuMode, rank: int, steps: int) -> None:
        super().__init__(None)
        self._mode, self._rank, self._wanted = mode, rank, steps
        self.steps = 0  # Steps that are over
        self.setup: list[ModuleOperation] = []
        self.facts = FactsOfScript()
        self._begun = False
        self._end = -1  # Operations of the step, where its optimizer has run
        self._kept: list[ModuleOperation] | None = None
        self._updates = 0
        self._roots: list[nn.Module] = []

    def __enter__(self) -> Self:
        super().__enter__()
        self._handles += [
            register_optimizer_step_pre_hook(self._begins_update),
            register_optimizer_step_post_hook(self._ends_update),
        ]
        return self

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Run an operator, and record it if it is one of the GPU."""
        if any(not issubclass(each, FakeTensor) and each is not torch.Tensor for each in types) and any(
            hasattr(each, "__tensor_flatten__") for each in types if not issubclass(each, FakeTensor)
        ):
            return NotImplemented
        if self._mode.trying or active_fake_mode() is not self._mode:
            return func(*args, **(kwargs or {}))
        layer = self._layer()
        result = func(*args, **(kwargs or {}))
        if any(map(on_gpu, tree_leaves((args, kwargs, result)))) or "c10d" in str(func):
            self._backward = torch._C._current_autograd_node() is not None  # noqa: SLF001
            before = len(self.operations)
            self._note(func, args, kwargs or {}, result, layer)
            for number in range(before, len(self.operations)):
                self._noted(number, args)
        return result

    def _noted(self, number: int, args: Any) -> None:
        """Complete an operation that was recorded."""
        operation = self.operations[number]
        again = self._backward and torch.is_grad_enabled()  # as checkpoints enable it to run forward again
        if again:
            operation = msgspec.structs.replace(operation, again=True)
        if not (self._stack or self._backward):  # between modules
            operation = msgspec.structs.replace(operation, layer=-1)
        if operation.collective in ("send", "recv"):
            group, peer = _peer(args)
            self.facts.sends(group)
            operation = msgspec.structs.replace(operation, ranks=sorted((self._rank, peer)))
        if self._updates:
            operation = msgspec.structs.replace(operation, update=True)
        self.operations[number] = operation
        self.facts.operator(args, operation)

    def _begins_update(self, *_: Any) -> None:
        self._updates += 1

    def _ends_update(self, *_: Any) -> None:
        self._updates -= 1
        self._end = len(self.operations)

    def _enters(self, module: nn.Module, inputs: Any) -> None:
        """Begin a forward pass, and with it possibly a step."""
        backward = torch._C._current_autograd_node() is not None  # noqa: SLF001
        if not self._stack and not backward and any(True for _ in module.parameters()):
            self._new_root(module)
            if not self._begun:
                self._begun = True
                self.setup = [each for each in self.operations if each.collective]
                self._cut(len(self.operations))
            if self._end >= 0:
                self._step_is_over()
            self.facts.forward(module)
        super()._enters(module, inputs)
        self.facts.enters(module, self._layer_of[id(module)])

    def _new_root(self, module: nn.Module) -> None:
        if any(each is module for each in self._roots):
            return
        self._roots.append(module)
        self._names.update({id(each): name for name, each in module.named_modules()})
        self.facts.root(module)

    def _step_is_over(self) -> None:
        """Keep the step that has ended, and stop if it was the last one."""
        self.steps += 1
        self._kept = self.operations[: self._end]
        self.facts.step_is_over()
        if self.steps >= self._wanted:
            raise StepsAreOver
        self._cut(self._end)
        self._end = -1

    def _cut(self, count: int) -> None:
        """Forget the first operations."""
        self.operations = [
            msgspec.structs.replace(each, after=[at - count for at in each.after if at >= count])
            for each in self.operations[count:]
        ]
        self._writer = {key: (at - count, found) for key, (at, found) in self._writer.items() if at >= count}

    def finish(self) -> list[ModuleOperation]:
        """Operations of the last step."""
        if self._kept is not None and self.steps >= self._wanted:
            return self._kept
        if self._end >= 0:  # the script ended behind an optimizer
            self.steps += 1
            self.facts.step_is_over()
            return self.operations[: self._end]
        if self._kept is not None:
            return self._kept
        self.facts.step_is_over()
        return self.operations


def _peer(args: Any) -> tuple[list[int], int]:
    """Ranks of the group of a send, and the rank at its other end."""
    group = next(
        each if isinstance(each, dist.ProcessGroup) else dist.ProcessGroup.unbox(each)
        for each in args
        if isinstance(each, dist.ProcessGroup | torch.ScriptObject)
    )
    ranks = dist.get_process_group_ranks(group)
    number = next((each for each in args if isinstance(each, int) and not isinstance(each, bool)), 0)
    return list(ranks), ranks[number] if 0 <= number < len(ranks) else number
