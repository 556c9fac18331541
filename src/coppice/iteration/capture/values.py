"""What stands in for values of tensors on the GPU, which a capture does not have.

A floating-point number (``loss.item()``) is 1, as losses are printed and averaged; an integer is 1 as well, but keeps
where it was read and is refused where it becomes a size, so that no wrong shape goes unseen. Tests for numbers that are
not finite find none. Everything else (`if tensor`, indices by masks) is refused with the line of the script, unless the
user gives what is read there.
"""

# Methods of PyTorch's classes are replaced here.
# mypy: disable-error-code="attr-defined, no-untyped-call, misc, assignment, method-assign, arg-type"

from __future__ import annotations

import linecache
import sys
import sysconfig
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.overrides import TorchFunctionMode

from coppice.iteration.capture.fake_gpu import GpuMode

_aten = torch.ops.aten
_OWN = (
    str(Path(torch.__file__).parent),
    str(Path(__file__).resolve().parents[2]),
    sysconfig.get_path("stdlib"),
)
"""Where code is that is no script: PyTorch, this package, Python."""
_ARITHMETIC = (
    *(
        "add",
        "radd",
        "sub",
        "rsub",
        "mul",
        "rmul",
        "floordiv",
        "rfloordiv",
        "mod",
        "rmod",
        "neg",
        "abs",
        "pos",
    ),
    *("lshift", "rshift", "and", "or", "xor", "pow"),
)


class Refusal(Exception):  # noqa: N818 (what was refused, no fault of the program)
    """What a script asks for that a capture has not."""


class ScriptLine(NamedTuple):
    """A line of a script."""

    file: str
    line: int

    @property
    def text(self) -> str:
        """Its place, and what stands there."""
        return f"{self.file}:{self.line} ({linecache.getline(self.file, self.line).strip()!r})"


def outside(file: str) -> bool:
    """Whether a file is neither PyTorch's nor Python's nor ours."""
    of_python = file.startswith(_OWN[2]) and "site-packages" not in file
    return not (file.startswith(("<", *_OWN[:2])) or of_python)


def place() -> ScriptLine:
    """The innermost line that is neither PyTorch's nor ours."""
    frame = sys._getframe(1)  # noqa: SLF001
    while frame is not None:
        if outside(frame.f_code.co_filename):
            return ScriptLine(frame.f_code.co_filename, frame.f_lineno)
        frame = frame.f_back
    return ScriptLine("<script>", 0)


class AssumedInt(int):
    """An integer that stands in for one of a tensor, and for what is computed from it."""

    where: ScriptLine

    def __new__(cls, value: int, where: ScriptLine) -> AssumedInt:
        """An integer read at a line."""
        made = super().__new__(cls, value)
        made.where = where
        return made

    def __reduce__(self) -> tuple[type, tuple[int]]:
        return int, (int(self),)


def _carried(name: str) -> Callable[..., Any]:
    plain = getattr(int, name)

    def method(self: AssumedInt, *others: Any) -> Any:
        found = plain(self, *others)
        return AssumedInt(found, self.where) if type(found) is int else found

    return method


for _name in _ARITHMETIC:
    setattr(AssumedInt, f"__{_name}__", _carried(f"__{_name}__"))


class StandIns:
    """StandIns that a script reads.

    Args:
        mode: Where its tensors are.
        assumed: Values that lines read, by file and line.
        strict: Refuse every value that is not given.
    """

    def __init__(self, mode: GpuMode, assumed: Mapping[tuple[str, int], Any], *, strict: bool) -> None:
        self.mode, self.strict = mode, strict
        self._assumed = dict(assumed)
        self.notes: dict[ScriptLine, str] = {}  # What was read where, and what stood in for it

    def assumed(self, where: ScriptLine) -> Any:
        """Value that the user gives for a line; None: none is given."""
        for (file, line), value in self._assumed.items():
            if line == where.line and (where.file == file or where.file.endswith("/" + file.lstrip("./"))):
                return value
        return None

    def refuse(self, what: str, where: ScriptLine, hint: str = "") -> Refusal:
        """The reason why a value is not there."""
        name = Path(where.file).name
        return Refusal(
            f"expected a script that needs no values of GPU tensors, found {what} at {where.text}: "
            f"{hint}give it by the line, as `value` {name}:{where.line}=VALUE."
        )

    def number(self, tensor: torch.Tensor, what: str) -> Any:
        """Number that stands in for one of a tensor."""
        where = place()
        given = self.assumed(where)
        kind = tensor.dtype
        if given is not None:
            given = given[0] if isinstance(given, list) else given
            return bool(given) if kind == torch.bool else given
        finite = getattr(tensor, "taken_finite", None)
        if finite is not None:
            return finite
        reader = _reader()
        if reader.endswith("grad_scaler.py"):
            return 0.0  # no gradient is infinite
        if kind == torch.bool and not outside(reader):
            return False  # what PyTorch's own loops and checks end with
        if kind == torch.bool:
            raise self.refuse(what, where)
        if self.strict and outside(reader):
            raise self.refuse(what, where)
        floating = kind.is_floating_point or kind.is_complex
        if not outside(reader):  # PyTorch's own
            return 1.0 if floating else 1
        self.notes.setdefault(where, f"{what} is taken to be {'1.0' if floating else '1'}")
        return 1.0 if floating else AssumedInt(1, where)

    def several(self, tensor: torch.Tensor, what: str) -> Any:
        """Numbers that stand in for those of a tensor, as nested lists."""
        where = place()
        given = self.assumed(where)

        def made(sizes: tuple[int, ...], given: Any) -> Any:
            if not sizes:
                return given if given is not None else self.number(tensor, what)
            if isinstance(given, list) and len(given) != sizes[0]:
                raise Refusal(
                    f"expected {sizes[0]} values at {where.text}, found {len(given)} given for it: give as many, or "
                    "one."
                )
            parts = given if isinstance(given, list) else [given] * sizes[0]
            return [made(sizes[1:], part) for part in parts]

        return made(tuple(tensor.shape), given)

    def rows(self, what: str) -> int:
        """Number of rows that an operator finds in the data."""
        where = place()
        given = self.assumed(where)
        if isinstance(given, int):
            return given
        raise self.refuse(
            f"a size that depends on values ({what})", where, "give every rank the same size, or "
        )


def _reader() -> str:
    """File of the code that reads a value."""
    frame = sys._getframe(1)  # noqa: SLF001
    while frame is not None:
        file = frame.f_code.co_filename
        if not file.startswith(_OWN[1]) and not file.endswith(("_tensor.py", "_ops.py", "<genexpr>")):
            return file
        frame = frame.f_back
    return ""


class SizesMode(TorchFunctionMode):
    """Context that refuses sizes which stand in for those of tensors."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run a function of PyTorch."""
        refuse_assumed((*args, *(kwargs or {}).values()), func)
        return func(*args, **(kwargs or {}))


def refuse_assumed(values: Any, func: Any) -> None:
    """Refuse arguments that stand in for values of tensors."""
    for each in values:
        if type(each) is AssumedInt and getattr(func, "__name__", "") not in _HARMLESS:
            raise Refusal(
                f"expected sizes that a capture knows, found one that was read from a GPU tensor at {each.where.text}: "
                f"give it by the line, as `value` {Path(each.where.file).name}:{each.where.line}=VALUE."
            )
        if type(each) is slice:
            refuse_assumed((each.start, each.stop, each.step), func)
        elif type(each) in (list, tuple) and len(each) < 10_000:
            refuse_assumed(each, func)


_HARMLESS = {
    *(
        "tensor",
        "add",
        "sub",
        "mul",
        "div",
        "true_divide",
        "__mul__",
        "__truediv__",
        "__add__",
        "__sub__",
        "__rmul__",
    ),
    *(
        "__radd__",
        "__rsub__",
        "__rtruediv__",
        "__imul__",
        "__itruediv__",
        "__iadd__",
        "fill_",
        "full_like",
        "div_",
    ),
    *(
        "mul_",
        "add_",
        "sub_",
        "__lt__",
        "__gt__",
        "__le__",
        "__ge__",
        "__eq__",
        "__ne__",
        "as_tensor",
        "clamp",
    ),
    *("clip", "clamp_", "manual_seed", "masked_fill", "masked_fill_"),
}
"""Functions that take such a number as one among values."""


def install(values: StandIns) -> None:
    """Let values of fake tensors be what stands in for them."""

    def item(self: torch.Tensor) -> Any:
        return values.number(self, f"`.item()` of {_kind(self)}")

    def tolist(self: torch.Tensor) -> Any:
        return values.several(self, f"`.tolist()` of {_kind(self)}")

    def numpy(self: torch.Tensor, *_: Any, **__: Any) -> Any:
        if not self.dtype.is_floating_point:
            return torch.tensor(
                values.several(self, f"`.numpy()` of {_kind(self)}"), dtype=self.dtype
            ).numpy()
        values.number(self, f"`.numpy()` of {_kind(self)}")
        with torch._C._DisableTorchDispatch():  # noqa: SLF001
            return torch.ones(tuple(self.shape), dtype=self.dtype).numpy()

    def truth(self: torch.Tensor) -> bool:
        if self.numel() == 1 and self.dtype != torch.bool and getattr(self, "taken_finite", None) is None:
            given = values.assumed(place())
            if given is None:
                raise values.refuse("a tensor that decides (`if`)", place())
            return bool(given)
        return bool(values.number(self, "a tensor that decides (`if`)"))

    FakeTensor.item = item
    FakeTensor.tolist = tolist
    FakeTensor.numpy = numpy
    FakeTensor.__array__ = numpy
    FakeTensor.__bool__ = truth
    FakeTensor.__float__ = lambda self: float(values.number(self, f"`float()` of {_kind(self)}"))
    FakeTensor.__int__ = lambda self: values.number(self, f"`int()` of {_kind(self)}")
    FakeTensor.__index__ = lambda self: values.number(self, f"an index made from {_kind(self)}")
    FakeTensor.__format__ = lambda self, spec: format(item(self), spec) if self.dim() == 0 else repr(self)
    _install_host(values)
    _install_finite()


def _install_host(values: StandIns) -> None:
    """Host tensors that were written from the GPU have no values either."""
    for name, what in (("item", "`.item()`"), ("tolist", "`.tolist()`"), ("numpy", "`.numpy()`")):
        plain, of_fake = getattr(torch.Tensor, name), getattr(FakeTensor, name)

        def method(
            self: torch.Tensor,
            *args: Any,
            plain: Any = plain,
            of_fake: Any = of_fake,
            what: str = what,
            **kwargs: Any,
        ) -> Any:
            if type(self) is torch.Tensor and values.mode.is_unknown(self):
                return of_fake(self)
            del what
            return plain(self, *args, **kwargs)

        setattr(torch.Tensor, name, method)


def _kind(tensor: torch.Tensor) -> str:
    return f"a {str(tensor.dtype).removeprefix('torch.')} tensor"


def _install_finite() -> None:
    """All values are taken to be finite."""

    def marked(plain: Any, finite: bool) -> Any:  # noqa: FBT001
        def function(*args: Any, **kwargs: Any) -> Any:
            found = plain(*args, **kwargs)
            if isinstance(found, FakeTensor):
                found.taken_finite = finite
            return found

        return function

    def carried(plain: Any, *, flips: bool = False) -> Any:
        def function(self: Any, *args: Any, **kwargs: Any) -> Any:
            found = plain(self, *args, **kwargs)
            known = getattr(self, "taken_finite", None)
            if known is not None and isinstance(found, FakeTensor):
                found.taken_finite = known != flips
            return found

        return function

    for name, finite in (("isnan", False), ("isinf", False), ("isfinite", True)):
        setattr(torch, name, marked(getattr(torch, name), finite))
        setattr(torch.Tensor, name, marked(getattr(torch.Tensor, name), finite))
    for name in ("any", "all", "logical_or", "logical_and", "max", "sum"):
        setattr(torch, name, carried(getattr(torch, name)))
        setattr(torch.Tensor, name, carried(getattr(torch.Tensor, name)))
    for name in (
        "__or__",
        "__and__",
        "logical_or",
        "logical_and",
        "float",
        "int",
        "to",
        "clone",
        "detach",
        "cpu",
    ):
        setattr(torch.Tensor, name, carried(getattr(torch.Tensor, name)))
    for name in ("logical_not", "__invert__"):
        setattr(torch.Tensor, name, carried(getattr(torch.Tensor, name), flips=True))
    torch.logical_not = carried(torch.logical_not, flips=True)
