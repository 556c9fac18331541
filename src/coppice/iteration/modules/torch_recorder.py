"""Record one rank's operators with FLOPs, bytes and layer, and its collectives.

Runs in the tracing process only. Operators are seen below autograd and below tensors with a layout of their own
(``DTensor``), so that what is seen are local tensors and collectives. An operation depends on what last wrote the
storages that it reads; views cost nothing. An operator of a backward pass belongs to the layer whose forward pass made
its autograd node, which the node's sequence number tells.
"""

# What PyTorch offers for tracing is private or untyped.
# mypy: disable-error-code="attr-defined, no-untyped-call, arg-type"

from __future__ import annotations

from collections.abc import Callable, Iterator
from types import TracebackType
from typing import Any, Self

import torch
import torch.distributed as dist
from torch.distributed.distributed_c10d import _resolve_process_group, get_process_group_ranks
from torch.multiprocessing.reductions import StorageWeakRef
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook
from torch.utils._python_dispatch import TorchDispatchMode, is_traceable_wrapper_subclass_type
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import flop_registry, sdpa_backward_flop_count, sdpa_flop_count

from coppice.iteration.modules.tracing import ModuleLayer, ModuleOperation
from coppice.iteration.totals import standard_collective

_FREE = (
    *("aten.detach", "aten.lift_fresh", "aten.alias", "aten._local_scalar_dense", "prim.device"),
    *("aten.empty", "aten.new_empty", "aten.sym_", "aten.is_", "aten._unsafe_view", "aten.resize_"),
    "inductor.resize_",
)
"""How names of operators begin that move nothing."""


class OperationRecorder(TorchDispatchMode):
    """Context that records operators.

    Args:
        model: The module whose forward and backward passes run; None: modules are named as they come.
    """

    def __init__(self, model: torch.nn.Module | None) -> None:
        super().__init__()
        self.operations: list[ModuleOperation] = []
        self.layers: list[ModuleLayer] = []
        self._backward = False
        self._names = {id(each): name for name, each in (model.named_modules() if model is not None else ())}
        self._layer_of: dict[int, int] = {}
        self._counted: set[int] = set()
        self._stack: list[int] = []
        self._last = -1
        self._sequence = torch.autograd._get_sequence_nr()  # noqa: SLF001
        self._made_in: dict[int, int] = {}
        self._writer: dict[int, tuple[int, StorageWeakRef]] = {}
        self._handles: list[Any] = []

    def begin_backward(self) -> None:
        """Mark the start of the backward pass."""
        self._backward = True

    def __enter__(self) -> Self:
        self._handles = [
            register_module_forward_pre_hook(self._enters),
            register_module_forward_hook(self._leaves, always_call=True),
        ]
        super().__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        for handle in self._handles:
            handle.remove()
        super().__exit__(kind, error, traceback)

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Run and record an operator; DTensor operators run on the local tensors first."""
        if any(is_traceable_wrapper_subclass_type(each) for each in types):
            return NotImplemented
        layer = self._layer()
        result = func(*args, **(kwargs or {}))
        self._note(func, args, kwargs or {}, result, layer)
        return result

    def _enters(self, module: torch.nn.Module, _: Any) -> None:
        """Record the start of a module's forward pass."""
        number = id(module)
        if number not in self._layer_of:
            self._layer_of[number] = self._new_layer(module)
        if self._layer_of[number] >= 0:
            self._last = self._layer_of[number]
        self._stack.append(self._layer_of[number])

    def _leaves(self, _module: torch.nn.Module, _inputs: Any, _outputs: Any) -> None:
        """Record the end of a module's forward pass."""
        if self._stack:
            self._stack.pop()

    def _new_layer(self, module: torch.nn.Module) -> int:
        """Index of a module with parameters of its own as a layer; else -1."""
        own = [each for each in module.parameters(recurse=False) if id(each) not in self._counted]
        if not own:
            return -1
        self._counted.update(id(each) for each in own)
        sizes = [(_whole_elements(each), each.element_size()) for each in own]
        self.layers.append(
            ModuleLayer(
                name=self._names.get(id(module), "") or type(module).__name__,
                kind=type(module).__name__,
                parameters=sum(count for count, _ in sizes),
                gradient_bytes=sum(count * each for count, each in sizes),
            )
        )
        return len(self.layers) - 1

    def _layer(self) -> int:
        """Index of the running layer."""
        inner = next((each for each in reversed(self._stack) if each >= 0), -1)
        node = torch._C._current_autograd_node()  # noqa: SLF001
        if self._stack and (inner >= 0 or node is None):
            layer = inner if inner >= 0 else self._last
        elif node is not None:
            layer = self._made_in.get(node._sequence_nr(), self._last)  # noqa: SLF001
            self._last = layer
        else:
            layer = self._last
        made = torch.autograd._get_sequence_nr()  # noqa: SLF001
        for number in range(self._sequence, made):
            self._made_in[number] = layer
        self._sequence = made
        return layer

    def _note(self, func: Any, args: Any, kwargs: Any, result: Any, layer: int) -> None:
        """Record an operator that ran."""
        name = str(func)
        short = name.rsplit(".", 1)[0]
        if short.startswith("profiler"):
            return
        reads = [each for each in tree_leaves((args, kwargs)) if isinstance(each, torch.Tensor)]
        wrote = [each for each in tree_leaves(result) if isinstance(each, torch.Tensor)]
        if "c10d" in short and "wait_tensor" not in short:
            self._note_collective(short, func, args, reads, wrote, layer)
            return
        number = len(self.operations)
        waits = "wait_tensor" in short
        if not waits and (_is_view(func) or short.startswith(_FREE)):
            return
        after = sorted(
            {at for at in map(self._written_by, reads) if at >= 0 and self.operations[at].collective}
        )
        if waits and not after:
            return
        moved = 0 if waits else sum(each.nbytes for each in [*reads, *wrote])
        self.operations.append(
            ModuleOperation(
                name=short,
                layer=layer,
                backward=self._backward,
                flops=0 if waits else _flops(func, args, kwargs, result),
                moved_bytes=moved,
                element_bytes=wrote[0].element_size() if wrote else 2,
                after=after,
                waits=waits,
            )
        )
        for each in [*wrote, *_mutated(func, args, kwargs)]:
            self._writes(each, number)

    def _note_collective(
        self, name: str, func: Any, args: Any, reads: list[Any], wrote: list[Any], layer: int
    ) -> None:
        """Record a collective in a group of more than one rank."""
        kind = standard_collective(name.rsplit(".", 1)[1])
        ranks = _group_ranks(args)
        if not kind or len(ranks) < 2:
            return
        if "monitored" in name:
            kind = "barrier"
        number = len(self.operations)
        sizes = [sum(each.nbytes for each in part) for part in _parts(args, wrote)]
        self.operations.append(
            ModuleOperation(
                name=name,
                layer=layer,
                backward=self._backward,
                after=sorted({at for at in map(self._written_by, reads) if at >= 0}),
                collective=kind,
                size_bytes=max(sizes, default=0),
                ranks=list(ranks),
            )
        )
        for each in [*wrote, *_mutated(func, args, {})]:
            self._writes(each, number)

    def _written_by(self, tensor: Any) -> int:
        """Operation that last wrote a tensor's storage; -1: none."""
        return self._writer.get(_storage(tensor).cdata, (-1, None))[0]

    def _writes(self, tensor: Any, number: int) -> None:
        """Record that an operation wrote a tensor; its storage is kept alive, so that its key is not reused."""
        found = _storage(tensor)
        self._writer[found.cdata] = number, found


def _storage(tensor: Any) -> StorageWeakRef:
    return StorageWeakRef(tensor.untyped_storage())


def _whole_elements(parameter: Any) -> int:
    """Elements of a parameter on this rank before sharding over replicas (the mesh dimension ``dp``)."""
    local = parameter.to_local() if hasattr(parameter, "to_local") else parameter
    count = int(local.numel())
    if hasattr(parameter, "device_mesh"):
        mesh = parameter.device_mesh
        names = mesh.mesh_dim_names or ()
        for dimension, (name, placement) in enumerate(zip(names, parameter.placements, strict=False)):
            if "dp" in name and placement.is_shard():
                count *= mesh.size(dimension)
        count = min(count, int(parameter.numel()))
    return count


def _is_view(func: Any) -> bool:
    """Whether an operator returns a view of an operand."""
    schema = getattr(func, "_schema", None)
    if schema is None or not schema.returns:
        return False
    return all(each.alias_info is not None and not each.alias_info.is_write for each in schema.returns)


def _mutated(func: Any, args: Any, kwargs: Any) -> Iterator[Any]:
    """Operands that an operator writes in place."""
    schema = getattr(func, "_schema", None)
    for place, each in enumerate(schema.arguments if schema is not None else ()):
        if each.alias_info is not None and each.alias_info.is_write:
            given = kwargs.get(each.name, args[place] if place < len(args) else None)
            yield from (leaf for leaf in tree_leaves(given) if isinstance(leaf, torch.Tensor))


def _parts(args: Any, wrote: list[Any]) -> list[list[Any]]:
    """Tensors of each argument and of the output; the largest total is the size of a collective."""
    found = [[leaf for leaf in tree_leaves(each) if isinstance(leaf, torch.Tensor)] for each in args]
    return [*found, wrote]


def _group_ranks(args: Any) -> list[int]:
    """Ranks of a collective's group, given as an object or by name."""
    for each in reversed(tree_leaves(args)):
        if isinstance(each, torch.ScriptObject):
            try:
                return list(get_process_group_ranks(dist.ProcessGroup.unbox(each)))
            except (RuntimeError, TypeError, AttributeError):  # another object, such as an operation
                continue
        if isinstance(each, dist.ProcessGroup):
            return list(get_process_group_ranks(each))
        if isinstance(each, str):
            try:
                return list(get_process_group_ranks(_resolve_process_group(each)))
            except (RuntimeError, KeyError, ValueError):  # a reduction, such as sum
                continue
    return []


def _flops(func: Any, args: Any, kwargs: Any, result: Any) -> int:
    """FLOPs of matrix products, convolutions and attention; 0 for others."""
    packet = getattr(func, "_overloadpacket", None)
    formula: Callable[..., Any] | None = flop_registry.get(packet)
    if formula is not None:
        return int(formula(*args, **kwargs, out_val=result))
    name = str(packet)
    if "attention" in name and "for_cpu" in name:
        if "backward" in name:
            return int(sdpa_backward_flop_count(*(each.shape for each in args[:4])))
        return int(sdpa_flop_count(*(each.shape for each in args[:3])))
    return 0
