"""Tracing process: build a module on a fake process group, and trace a step on fake tensors.

Usage: ``python -m coppice.iteration.modules.worker REQUEST ANSWER``, where REQUEST is a
:class:`~coppice.iteration.modules.tracing.TraceRequest` as JSON and ANSWER the file to write.
"""

from __future__ import annotations

import inspect
import runpy
import sys
import traceback
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec

from coppice.decoding import decodable
from coppice.errors import InputError
from coppice.iteration.modules.tracing import ModuleTrace, TraceRequest, TraceResult

_FIRST_BUCKET, _BUCKET = 2**20, 25 * 2**20
"""Bytes of gradients with which PyTorch's DDP sends the first bucket, and the others."""


def answer(request: TraceRequest) -> TraceResult:
    """Trace, or the reason why there is none."""
    import torch.distributed as dist

    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # what PyTorch warns of here is not of the user's run
            return TraceResult(trace=_trace(request))
    except InputError as error:
        return TraceResult(error=str(error))
    finally:
        if dist.is_initialized():
            dist.destroy_process_group()


def _trace(request: TraceRequest) -> ModuleTrace:
    """Build, shard, and run a step."""
    import torch
    import torch.distributed as dist
    from torch._subclasses.fake_tensor import FakeTensorMode
    from torch.distributed.device_mesh import init_device_mesh
    from torch.testing._internal.distributed.fake_pg import FakeStore

    from coppice.iteration.modules.torch_recorder import OperationRecorder

    function = _function(request)
    dist.init_process_group("fake", rank=0, world_size=request.ranks, store=FakeStore())
    names = tuple(request.mesh)
    mesh = init_device_mesh("cpu", tuple(request.mesh.values()), mesh_dim_names=names)
    wants = [
        each
        for each in inspect.signature(function).parameters.values()
        if each.default is inspect.Parameter.empty
        and each.kind in (each.POSITIONAL_ONLY, each.POSITIONAL_OR_KEYWORD)
    ]
    takes_mesh = "mesh" in inspect.signature(function).parameters
    if len(wants) > 1 or (wants and not takes_mesh):
        found = ", ".join(each.name for each in wants)
        raise InputError(
            f"expected `{request.function}` to need nothing or `mesh`, found {found}: give the others defaults."
        )
    try:
        with torch.device("meta"):
            built = function(mesh=mesh) if takes_mesh else function()
    except Exception as error:
        raise _failed(error, request, "builds the module on the device meta") from error
    module, inputs = _parts(built, request)
    if request.shard == "zero3" and request.mesh.get("dp", 1) > 1 and not _shared_out(module):
        try:
            _share_out(module, mesh["dp"])
        except Exception as error:
            raise _failed(error, request, "`fully_shard` can shard") from error
    fake = FakeTensorMode(allow_non_fake_inputs=True)
    with fake:
        try:
            _made_fake(module)
            given = _inputs(inputs, request)
            flush = _buckets(module, mesh["dp"].get_group()) if _sums(module, request) else None
            # What only the first step does, such as trying how layouts propagate, is left behind by a step before.
            _step(module, given, flush, lambda: None)
            module.zero_grad(set_to_none=True)
            recorder = OperationRecorder(module)
            with recorder:
                _step(module, given, flush, recorder.begin_backward)
        except InputError:
            raise
        except Exception as error:
            raise _failed(error, request, "runs under fake tensors, without looking at values") from error
    return ModuleTrace(
        module=type(module).__name__.removeprefix("FSDP"),
        ranks=request.ranks,
        mesh=request.mesh,
        layers=recorder.layers,
        operations=recorder.operations,
        torch=str(torch.__version__),
    )


def _step(
    module: Any, given: list[Any], flush: Callable[[], None] | None, on_backward: Callable[[], None]
) -> None:
    """Run forward and backward pass."""
    loss = _loss(module(*given))
    on_backward()
    loss.backward()
    if flush is not None:
        flush()


def _made_fake(module: Any) -> None:
    """Move a module from the meta device to fake tensors; tied parameters stay tied."""
    places: dict[int, list[tuple[Any, str]]] = {}
    for each in module.modules():
        for name, parameter in each._parameters.items():  # noqa: SLF001
            if parameter is not None:
                places.setdefault(id(parameter), []).append((each, name))
    module.to_empty(device="cpu")
    for (owner, first), *others in places.values():
        for each, name in others:
            each._parameters[name] = owner._parameters[first]  # noqa: SLF001


def _function(request: TraceRequest) -> Callable[..., Any]:
    """Function of the file."""
    sys.path.insert(0, str(Path(request.file).resolve().parent))
    try:
        names = runpy.run_path(request.file)
    except Exception as error:
        raise _failed(error, request, "is a Python file that can be run") from error
    function = names.get(request.function)
    if not callable(function):
        own = [
            name
            for name, each in names.items()
            if inspect.isfunction(each) and each.__code__.co_filename == request.file
        ]
        there = f"which has {', '.join(own)}" if own else "which has no function"
        raise InputError(
            f"expected a function `{request.function}` in {request.file}, {there}: name one, as FILE:FUNCTION."
        )
    found: Callable[..., Any] = function
    return found


def _failed(error: BaseException, request: TraceRequest, wanted: str) -> InputError:
    """Root cause of a failure in one sentence, with the line of the file."""
    while error.__cause__ is not None:
        error = error.__cause__
    lines = [each for each in traceback.extract_tb(error.__traceback__) if each.filename == request.file]
    where = f"{request.file}:{lines[-1].lineno}" if lines else request.file
    words = next((line.strip() for line in str(error).splitlines() if line.strip()), "no reason given")
    return InputError(
        f"expected a module that {wanted}, found {type(error).__name__} at {where}: {words.rstrip('.')}."
    )


def _parts(built: Any, request: TraceRequest) -> tuple[Any, tuple[Any, ...] | None]:
    """The module, and its example inputs if given."""
    import torch

    module, inputs = built, None
    if isinstance(built, tuple) and len(built) == 2:
        module, inputs = built
    if not isinstance(module, torch.nn.Module):
        raise InputError(
            f"expected `{request.function}` to return a module or (module, inputs), found "
            f"{type(built).__name__}: return such."
        )
    if inputs is not None and not isinstance(inputs, tuple | list):
        inputs = (inputs,)
    return module, None if inputs is None else tuple(inputs)


def _inputs(inputs: tuple[Any, ...] | None, request: TraceRequest) -> list[Any]:
    """Inputs as fake tensors."""
    import torch
    from torch.utils._pytree import tree_map

    if request.inputs:
        return [_input(text) for text in request.inputs]
    if inputs is None:
        raise InputError(
            f"expected example inputs, found a module alone: let `{request.function}` return (module, inputs), or give "
            "their shapes (`inputs=8x256`)."
        )

    def made(each: Any) -> Any:
        if isinstance(each, torch.Tensor):
            return torch.empty_like(each, device="cpu").requires_grad_(each.requires_grad)
        return each

    return [tree_map(made, each) for each in inputs]


def _input(text: str) -> Any:
    """Tensor of a shape such as ``8x256`` or ``8x256:int64``."""
    import torch

    shape, _, kind = text.partition(":")
    dtype = getattr(torch, kind or "float32", None)
    if not (all(part.isdigit() for part in shape.split("x")) and isinstance(dtype, torch.dtype)):
        raise InputError(
            f"expected the shape of an input such as 8x256 or 4x128:int64, found {text!r}: give such."
        )
    return torch.empty([int(part) for part in shape.split("x")], dtype=dtype)


def _loss(output: Any) -> Any:
    """Loss: the one that the module returns, or the sum of its first floating-point output."""
    import torch
    from torch.utils._pytree import tree_leaves

    found = getattr(output, "loss", None)
    leaves = [found] if isinstance(found, torch.Tensor) else tree_leaves(output)
    for each in leaves:
        if isinstance(each, torch.Tensor) and each.requires_grad:
            return each if each.dim() == 0 else each.sum()
    raise InputError(
        "expected a module whose result can be differentiated, found none with a gradient: return a loss or "
        "activations."
    )


def _shared_out(module: Any) -> bool:
    """Whether the function itself shards parameters over replicas."""
    from torch.distributed.fsdp import FSDPModule

    if any(isinstance(each, FSDPModule) for each in module.modules()):
        return True
    meshes = [each.device_mesh for each in module.parameters() if hasattr(each, "device_mesh")]
    return any("dp" in name for mesh in meshes for name in mesh.mesh_dim_names or ())


def _sums(module: Any, request: TraceRequest) -> bool:
    """Whether replicas all-reduce their gradients in buckets."""
    return request.mesh.get("dp", 1) > 1 and not _shared_out(module)


def _share_out(module: Any, mesh: Any) -> None:
    """Shard parameters as FSDP2 recommends: each block of the outermost module lists, then the rest."""
    from torch import nn
    from torch.distributed.fsdp import fully_shard

    blocks: list[Any] = []
    within = [module]
    while within:
        each = within.pop()
        children = [child for child in each.children() if any(True for _ in child.parameters())]
        (blocks if isinstance(each, nn.ModuleList | nn.Sequential) else within).extend(children)
    for block in blocks:
        fully_shard(block, mesh=mesh)
    fully_shard(module, mesh=mesh)


def _buckets(module: Any, group: Any) -> Callable[[], None]:
    """All-reduce gradients in DDP's buckets as they fill; return the function that sends the last one."""
    import torch
    import torch.distributed as dist

    waiting: list[Any] = []
    sent = [0]

    def send() -> None:
        if waiting:
            sent[0] += 1
            dist.all_reduce(torch.cat([each.reshape(-1) for each in waiting]), group=group, async_op=True)
            waiting.clear()

    def flush() -> None:
        send()
        sent[0] = 0

    def ready(parameter: Any) -> None:
        grad = parameter.grad.to_local() if hasattr(parameter.grad, "to_local") else parameter.grad
        if waiting and waiting[0].dtype != grad.dtype:
            send()
        waiting.append(grad)
        if sum(each.nbytes for each in waiting) >= (_BUCKET if sent[0] else _FIRST_BUCKET):
            send()

    for each in module.parameters():
        if each.requires_grad:
            each.register_post_accumulate_grad_hook(ready)
    return flush


def main() -> None:
    """Answer the request of the command line."""
    request = msgspec.json.decode(sys.argv[1], type=decodable(TraceRequest))
    Path(sys.argv[2]).write_bytes(msgspec.json.encode(answer(request)))


if __name__ == "__main__":
    main()
