"""What scripts do besides a step: load data in processes, save and load checkpoints, compile, start processes."""

# Names of PyTorch are replaced here.
# mypy: disable-error-code="attr-defined, no-untyped-call, misc, assignment, arg-type, method-assign"

from __future__ import annotations

import copy
import os
from pathlib import Path
from typing import Any

import torch
import torch.multiprocessing
import torch.utils.data
from torch import nn
from torch._subclasses.fake_tensor import FakeTensor

from coppice.iteration.capture.fake_gpu import GpuMode
from coppice.iteration.capture.values import place

_COMPILED = "compiled regions run operator by operator, so that what fusion saves of memory is missing"


class Surroundings:
    """What was replaced, with notes."""

    def __init__(self, mode: GpuMode, rank: int, ranks: int) -> None:
        self.mode, self.rank, self.ranks = mode, rank, ranks
        self.notes: dict[str, None] = {}
        self._saved: dict[str, Any] = {}

    def install(self) -> None:
        """Replace what cannot be done without values or in other processes."""
        self._install_loaders()
        self._install_checkpoints()
        self._install_compile()
        self._install_processes()
        self._install_mixed_precision()
        _install_copies()
        self._install_distributed_tensors()
        _install_foreach()

    def _install_loaders(self) -> None:
        plain = torch.utils.data.DataLoader.__init__

        def loader(self: Any, *args: Any, **kwargs: Any) -> None:
            names = ("dataset", "batch_size", "shuffle", "sampler", "batch_sampler", "num_workers")
            kwargs |= dict(zip(names, args, strict=False))
            rest = args[len(names) :]
            for name, value in zip(("collate_fn", "pin_memory", "drop_last", "timeout"), rest, strict=False):
                kwargs[name] = value
            kwargs |= {"num_workers": 0, "pin_memory": False, "timeout": 0}
            for name in (
                "prefetch_factor",
                "persistent_workers",
                "multiprocessing_context",
                "pin_memory_device",
            ):
                kwargs.pop(name, None)
            plain(self, **kwargs)

        torch.utils.data.DataLoader.__init__ = loader

    def _install_checkpoints(self) -> None:
        saved, plain_save, plain_load = self._saved, torch.save, torch.load

        def save(obj: Any, f: Any, *args: Any, **kwargs: Any) -> None:
            leaves = torch.utils._pytree.tree_leaves(obj)  # noqa: SLF001
            if not any(isinstance(each, FakeTensor) or hasattr(each, "device_mesh") for each in leaves):
                plain_save(obj, f, *args, **kwargs)
                return
            where = place()
            name = f"to {f} " if isinstance(f, str | os.PathLike) else ""
            self.notes[
                f"{where.text} saves a checkpoint {name}which is not written, as there are no values"
            ] = None
            if isinstance(f, str | os.PathLike):
                saved[str(Path(f).resolve())] = obj

        def load(f: Any, *args: Any, **kwargs: Any) -> Any:
            if isinstance(f, str | os.PathLike) and str(Path(f).resolve()) in saved:
                return saved[str(Path(f).resolve())]
            kwargs["map_location"] = "cpu"
            return plain_load(f, *args, **kwargs)

        torch.save, torch.load = save, load
        try:
            import torch.distributed.checkpoint as distributed
            from torch.distributed.checkpoint import state_dict_loader, state_dict_saver
        except ImportError:
            return

        def left_out(what: str) -> Any:
            def function(*_: Any, **__: Any) -> None:
                self.notes[f"{place().text} {what} a distributed checkpoint, which is left out"] = None

            return function

        for name, what in (("save", "saves"), ("async_save", "saves"), ("load", "loads")):
            setattr(distributed, name, left_out(what))
            for module in (state_dict_loader, state_dict_saver):
                if hasattr(module, name):
                    setattr(module, name, getattr(distributed, name))

    def _install_compile(self) -> None:
        def compile_(model: Any = None, **kwargs: Any) -> Any:
            self.notes[_COMPILED] = None
            return model if model is not None else (lambda found: compile_(found, **kwargs))

        def compile_module(_: Any, *_args: Any, **_kwargs: Any) -> None:
            self.notes[_COMPILED] = None

        torch.compile, nn.Module.compile = compile_, compile_module

    def _install_distributed_tensors(self) -> None:
        """DTensor tries how layouts propagate, and would tell other ranks its random state."""
        try:
            from torch.distributed.tensor import _dispatch, _random
            from torch.distributed.tensor._sharding_prop import ShardingPropagator
        except ImportError:
            return
        _dispatch.is_rng_supported_mesh = _random.is_rng_supported_mesh = lambda _: False
        plain, mode = ShardingPropagator._propagate_tensor_meta_non_cached, self.mode  # noqa: SLF001

        def propagated(propagator: Any, schema: Any) -> Any:
            before, mode.trying = mode.trying, True
            try:
                return plain(propagator, schema)
            finally:
                mode.trying = before

        ShardingPropagator._propagate_tensor_meta_non_cached = propagated  # noqa: SLF001

    def _install_processes(self) -> None:
        def spawn(fn: Any, args: Any = (), nprocs: int = 1, **_: Any) -> None:
            if nprocs not in (1, self.ranks):
                self.notes[
                    f"{place().text} starts {nprocs} processes, of which one runs as rank {self.rank}"
                ] = None
            fn(self.rank, *args)

        torch.multiprocessing.spawn = torch.multiprocessing.start_processes = spawn

    def _install_mixed_precision(self) -> None:
        """Autocast of the GPU is that of the processor, whose dispatch keys tensors have."""
        plain = torch.amp.autocast_mode.autocast.__init__

        def autocast(
            self: Any,
            device_type: str,
            dtype: Any = None,
            enabled: bool = True,  # noqa: FBT001, FBT002
            cache_enabled: Any = None,
        ) -> None:
            if torch.device(device_type).type == "cuda":
                device_type, dtype = "cpu", dtype or torch.float16
            plain(self, device_type, dtype, enabled, cache_enabled)

        torch.amp.autocast_mode.autocast.__init__ = autocast
        for name in (
            "is_autocast_enabled",
            "get_autocast_dtype",
            "set_autocast_enabled",
            "set_autocast_dtype",
        ):
            plain_query = getattr(torch, name)

            def query(*args: Any, plain_query: Any = plain_query) -> Any:
                return plain_query(*("cpu" if each == "cuda" else each for each in args))

            setattr(torch, name, query)
        torch.get_autocast_gpu_dtype = lambda: torch.get_autocast_dtype("cpu")


def _install_copies() -> None:
    """Deep copies of fake tensors."""

    def deepcopy(self: FakeTensor, memo: dict[int, Any]) -> Any:
        if id(self) in memo:
            return memo[id(self)]
        with torch.no_grad():
            made = self.detach().clone()
        made.requires_grad_(self.requires_grad)
        if getattr(self, "_is_param", False) or isinstance(self, nn.Parameter):
            made = nn.Parameter(made, requires_grad=self.requires_grad)
        if self.grad is not None:
            made.grad = copy.deepcopy(self.grad, memo)
        memo[id(self)] = made
        return made

    FakeTensor.__deepcopy__ = deepcopy


def _install_foreach() -> None:
    """Optimizers take tensors of a GPU several at once, which they do not know of fake ones."""
    from torch.optim import optimizer
    from torch.utils import _foreach_utils

    for known in (
        optimizer._foreach_supported_types,  # noqa: SLF001
        getattr(_foreach_utils, "_foreach_supported_types", None),
    ):
        if isinstance(known, list) and FakeTensor not in known:
            known.append(FakeTensor)
