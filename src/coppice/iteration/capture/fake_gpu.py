"""Tensors on a GPU that is not there: shapes are kept and nothing is computed, while host tensors stay real.

Theory. A fake tensor (``FakeTensorMode``) has shape, type and device, and no data. PyTorch without CUDA cannot make
one on a CUDA device whose gradients are computed, as autograd wants a guard of it. So a tensor of the GPU is one of
the processor with the index 0 (``cpu:0``, which no other tensor has) to everything in C++, and one of the GPU to
everything in Python. Factories that C++ calls with the options of such a tensor then have ``cpu:0`` as well, and make
tensors of the GPU. Operators of host tensors alone run as they are, so that data are loaded and counted for real.
Parameters are fake from the start: nothing reads their values, and a model may be larger than the host.
"""

# What PyTorch offers for this is private or untyped.
# mypy: disable-error-code="attr-defined, no-untyped-call, arg-type, misc, assignment, method-assign, override"
# mypy: disable-error-code="no-any-return, redundant-expr, call-overload, truthy-bool"

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._pytree import arg_tree_leaves

_INNER = torch.device("cpu", 0)
"""Device of a tensor on the GPU, as C++ sees it."""

_aten = torch.ops.aten
_to_copy = torch.ops.aten._to_copy.default  # noqa: SLF001
_item = torch.ops.aten._local_scalar_dense.default  # noqa: SLF001
_OF_DATA = (_aten.nonzero.default, _aten.masked_select.default)
"""Operators that find as many rows as the data have."""
_new_fake = FakeTensor.__new__
_dispatch_mode = FakeTensorMode.dispatch
_dispatch_tensor = FakeTensor.__torch_dispatch__.__func__
_plain_device = torch._C.TensorBase.device  # noqa: SLF001
_plain_data = torch._C.TensorBase.data  # noqa: SLF001
_plain_apply = nn.Module._apply  # noqa: SLF001
_plain_parameter = nn.Parameter.__new__
_plain_wrapper = torch.Tensor._make_wrapper_subclass  # noqa: SLF001


def on_gpu(value: Any) -> bool:
    """Whether a value is a tensor on the GPU."""
    return isinstance(value, FakeTensor) and value.fake_device.type == "cuda"


def gpu() -> torch.device:
    """The GPU of this rank."""
    return torch.device("cuda", torch.cuda.current_device())


class GpuMode(FakeTensorMode):
    """Context in which tensors on a GPU are fake, and host tensors real."""

    avoid_device_init = True

    def __init__(self) -> None:
        super().__init__(allow_non_fake_inputs=True)
        self.allow_meta = True
        self.trying = False  # What runs is not the script's: DTensor tries how layouts propagate
        self.forced = False  # Host tensors are fake as well
        self.rows: Callable[[str], int] | None = None  # Rows that an operator finds in the data
        self.number: Callable[[torch.Tensor, str], Any] | None = None  # Value of a tensor
        self.target: torch.device | None = None  # Where the copy that comes next goes
        # Storages on the host that were written from the GPU, so that their values are not known
        self.unknown: set[StorageWeakRef] = set()

    @contextmanager
    def all_fake(self) -> Iterator[None]:
        """Context in which host tensors are fake as well."""
        before, self.forced = self.forced, True
        try:
            yield
        finally:
            self.forced = before

    def like(self, tensor: torch.Tensor, device: torch.device | None = None) -> torch.Tensor:
        """Fake tensor of the shape, strides and type of another."""
        with self.all_fake(), self:
            return torch.empty_strided(
                tuple(tensor.shape), tensor.stride(), dtype=tensor.dtype, device=device or tensor.device
            )

    def is_unknown(self, tensor: torch.Tensor) -> bool:
        """Whether a host tensor was written from the GPU."""
        return bool(self.unknown) and StorageWeakRef(tensor.untyped_storage()) in self.unknown

    def run(self, func: Any, types: Any, args: Any, kwargs: dict[str, Any]) -> Any:
        """Run an operator."""
        leaves = [each for each in arg_tree_leaves(*args, **kwargs) if isinstance(each, torch.Tensor)]
        device = kwargs.get("device")
        fake = self.forced or any(isinstance(each, FakeTensor) for each in leaves)
        if not fake and not (device is not None and device.type == "cuda"):
            return func(*args, **kwargs)
        if func is _to_copy:
            return self._copied(func, types, args, kwargs)
        if func in (_aten.copy_.default, _aten._foreach_copy_.default):
            return self._overwritten(func, types, args, kwargs)
        if func is _item and self.number is not None:
            return self.number(args[0], "a value")
        if func in _OF_DATA and self.rows is not None:
            return self._found(func, args)
        return self._faked(func, types, args, kwargs)

    def _faked(self, func: Any, types: Any, args: Any, kwargs: dict[str, Any]) -> Any:
        """Run an operator on fake tensors, with all that it decomposes to."""
        with self.all_fake():
            return _dispatch_mode(self, func, types, args, kwargs)

    def _found(self, func: Any, args: Any) -> torch.Tensor:
        """Result of an operator whose size depends on values."""
        source = args[0]
        count = self.rows(str(func).removeprefix("aten.").split(".")[0]) if self.rows is not None else 0
        nonzero = func is _aten.nonzero.default
        sizes = (count, source.dim()) if nonzero else (count,)
        with self.all_fake(), self:
            return torch.empty(sizes, dtype=torch.int64 if nonzero else source.dtype, device=source.device)

    def _copied(self, func: Any, types: Any, args: Any, kwargs: dict[str, Any]) -> Any:
        """Copy a tensor, possibly to another device."""
        source = args[0]
        target = self.target or kwargs.get("device") or source.device
        self.target = None
        kwargs = {name: value for name, value in kwargs.items() if name not in ("device", "pin_memory")}
        if not isinstance(source, FakeTensor):
            source = self.like(source)
        found = self._faked(func, types, (source, *args[1:]), kwargs)
        found.fake_device = target
        return found

    def _overwritten(self, func: Any, types: Any, args: Any, kwargs: dict[str, Any]) -> Any:
        """Write tensors over others, possibly of another device."""
        several = func is not _aten.copy_.default
        targets, sources = (args[0], args[1]) if several else ([args[0]], [args[1]])
        fakes: list[torch.Tensor] = []
        for target, source in zip(targets, sources, strict=True):
            if not isinstance(target, FakeTensor):
                self.unknown.add(StorageWeakRef(target.untyped_storage()))
            fakes.append(self.like(source, target.device) if source.device != target.device else source)
        if all(isinstance(each, FakeTensor) for each in targets):
            given = (targets, fakes, *args[2:]) if several else (targets[0], fakes[0], *args[2:])
            self._faked(func, types, given, kwargs)
        return None if several else args[0]


def _run(self: FakeTensorMode, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Any = None) -> Any:
    """Dispatch of all modes of fake tensors."""
    kwargs = dict(kwargs or {})
    if func is torch.ops.prim.device.default and isinstance(args[0], FakeTensor):
        return _device_in_c(args[0])
    device = kwargs.get("device")
    if device is not None and device.type == "cpu" and device.index is not None:
        kwargs["device"] = gpu()
    if isinstance(self, GpuMode):
        return self.run(func, types, args, kwargs)
    return _dispatch_mode(self, func, types, args, kwargs)


def _device_in_c(tensor: FakeTensor) -> torch.device:
    if tensor.fake_mode.in_kernel_invocation:
        return torch.device("meta")
    return _INNER if tensor.fake_device.type == "cuda" else tensor.fake_device


def _fake_of_tensor(
    cls: Any, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
) -> Any:
    if func is torch.ops.prim.device.default and isinstance(args[0], FakeTensor):
        return _device_in_c(args[0])
    return _dispatch_tensor(cls, func, types, args, kwargs or {})


def _made_fake(
    cls: Any, mode: Any = None, elem: Any = None, device: Any = None, *args: Any, **kwargs: Any
) -> Any:
    """``FakeTensor.__new__``, whose tensors on a GPU are of the processor to C++."""
    given = [device, *(kwargs.pop(name, None) for name in ("fake_device", "_fake_device"))]
    wanted = torch.device(next(each for each in given if each is not None))
    made = _new_fake(cls, mode, elem, _INNER if wanted.type == "cuda" else wanted, *args, **kwargs)
    made.fake_device = wanted
    return made


def _shown(device: torch.device) -> torch.device:
    return gpu() if device.type == "cpu" and device.index is not None else device


def install(
    mode: GpuMode,
    rows: Callable[[str], int] | None = None,
    number: Callable[[torch.Tensor, str], Any] | None = None,
) -> None:
    """Make PyTorch of this process take fake tensors on a GPU for such; the mode is to be entered as well.

    Args:
        mode: Where tensors on the GPU are fake.
        rows: How many rows operators such as ``nonzero`` find.
        number: What stands in for the value of a tensor.
    """
    mode.rows, mode.number = rows, number
    FakeTensorMode.dispatch = _run
    FakeTensor.__new__ = staticmethod(_made_fake)
    FakeTensor.__torch_dispatch__ = classmethod(_fake_of_tensor)
    torch.Tensor._make_wrapper_subclass = staticmethod(_wrapper)  # noqa: SLF001
    torch.Tensor.device = property(lambda self: _shown(_plain_device.__get__(self)))
    torch.Tensor.is_cuda = property(lambda self: self.device.type == "cuda")
    torch.Tensor.get_device = lambda self: self.device.index if self.device.type == "cuda" else -1
    _install_copies(mode)
    _install_parameters(mode)


def _wrapper(*args: Any, **kwargs: Any) -> Any:
    """Tensors that hold others (DTensor) are, to C++, where those are."""
    device = kwargs.get("device")
    if device is not None and torch.device(device).type == "cuda":
        kwargs["device"] = _INNER
    return _plain_wrapper(*args, **kwargs)


def _install_copies(mode: GpuMode) -> None:
    """Copies between host and GPU, which C++ would not do."""
    plain_to, plain_type = torch.Tensor.to, torch.Tensor.type

    def to(self: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
        copy = bool(kwargs.pop("copy", False))
        device, dtype, _, layout = torch._C._nn._parse_to(*args, **kwargs)  # noqa: SLF001
        device = None if device is None else _shown(device)
        if device is not None and device.type == "cuda" and device.index is None:
            device = gpu()
        here = self.device
        moves = device is not None and device != here
        if type(self) not in (torch.Tensor, nn.Parameter, FakeTensor):
            # C++ would move what is there already.
            where = {"device": device} if moves else {}
            same = dtype is None or dtype == self.dtype
            if same and not (moves or copy or layout not in (None, torch.preserve_format)):
                return self
            shape = {} if layout is None else {"memory_format": layout}
            return plain_to(self, dtype=dtype or self.dtype, copy=copy, **where, **shape)
        fake = isinstance(self, FakeTensor)
        if moves and "meta" in (device.type, here.type):
            if device.type == "meta" and not fake:
                return plain_to(self, *args, copy=copy, **kwargs)
            return mode.like(self, device)
        if not fake and not (moves and device.type == "cuda"):
            return plain_to(self, *args, copy=copy, **kwargs)
        casts = dtype is not None and dtype != self.dtype
        if not (moves or casts or copy or layout not in (None, torch.preserve_format)):
            return self
        settings: dict[str, Any] = {"dtype": dtype} if casts else {}
        if layout is not None:
            settings["memory_format"] = layout
        mode.target = device if moves else None
        return _to_copy(self if fake else mode.like(self), **settings)

    def of_type(self: torch.Tensor, dtype: Any = None, *args: Any, **kwargs: Any) -> Any:
        if not on_gpu(self):
            return plain_type(self, dtype, *args, **kwargs) if dtype is not None else plain_type(self)
        if dtype is None:
            kind = torch.empty(0, dtype=self.dtype).type()
            return kind.replace("torch.", "torch.cuda.")
        if isinstance(dtype, torch.dtype):
            return self.to(dtype)
        return self.to(torch.empty(0).type(str(dtype).replace("torch.cuda.", "torch.")).dtype)

    def cuda(self: torch.Tensor, device: Any = None, *_args: Any, **_kwargs: Any) -> torch.Tensor:
        index = device if isinstance(device, int) else torch.device(device or "cuda").index
        return self.to(torch.device("cuda", torch.cuda.current_device() if index is None else index))

    def set_data(self: torch.Tensor, value: torch.Tensor) -> None:
        if isinstance(value, FakeTensor) and not isinstance(self, FakeTensor):
            torch.utils.swap_tensors(self, mode.like(value))
            return
        if isinstance(self, FakeTensor) and type(value) is torch.Tensor:
            value = mode.like(value)
        _plain_data.__set__(self, value)
        if isinstance(self, FakeTensor) and isinstance(value, FakeTensor):
            self.fake_device = value.fake_device

    torch.Tensor.to = to
    torch.Tensor.type = of_type
    torch.Tensor.cuda = cuda
    torch.Tensor.cpu = lambda self, *_args, **_kwargs: self.to(torch.device("cpu"))
    torch.Tensor.pin_memory = lambda self, *_args, **_kwargs: self
    torch.Tensor.is_pinned = lambda _self, *_args, **_kwargs: False
    torch.Tensor.record_stream = lambda _self, _stream: None
    torch.Tensor.data = property(_plain_data.__get__, set_data)


def _install_parameters(mode: GpuMode) -> None:
    """Parameters are fake wherever they are, and stay the same when their module moves."""

    def parameter(cls: Any, data: Any = None, requires_grad: bool = True) -> Any:  # noqa: FBT001, FBT002
        if type(data) is torch.Tensor and data.device.type == "cpu" and cls is nn.Parameter:
            data = mode.like(data)
        return _plain_parameter(cls, data, requires_grad)

    def apply(self: nn.Module, fn: Any, recurse: bool = True) -> nn.Module:  # noqa: FBT001, FBT002
        if recurse:
            for each in self.children():
                each._apply(fn)  # noqa: SLF001
        kept = dict(self._parameters)
        for name, each in kept.items():
            if not isinstance(each, FakeTensor):
                continue
            with torch.no_grad():
                moved = fn(each)
                gradient = None if each.grad is None else fn(each.grad)
            if moved is not each:
                each.grad = None
                each.data = moved
                each.grad = gradient
            del self._parameters[name]
        _plain_apply(self, fn, recurse=False)
        self._parameters.update({name: self._parameters.get(name, each) for name, each in kept.items()})
        for name in kept:  # in the order in which they were
            self._parameters[name] = self._parameters.pop(name)
        return self

    nn.Parameter.__new__ = staticmethod(parameter)
    nn.Module._apply = apply  # noqa: SLF001
