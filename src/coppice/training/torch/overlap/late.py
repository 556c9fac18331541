"""Parameters with outstanding updates, which complete when the parameter is read.

Modules that were seen to read a parameter wait for it. Others may read it too: a branch that the recorded iteration did
not take, a parent that uses the weights of a child, a fused kernel in evaluation, a moving average of weights. So a
parameter is of a class of its own while its update is outstanding, and any function of torch that is called with it
completes the update first. What only asks for its shape, type or gradient does not.

Functions that wait for other ranks, or take times, are left to Python by torch.compile.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

import torch
from torch.utils._pytree import tree_leaves

_Function = TypeVar("_Function", bound=Callable[..., Any])

UPDATES_ARE_LATE = (
    "the policy of schedule() updates parameters late: call optimizer.flush() before what is compiled"
)
"""Why a graph is broken where a module waits for its parameters."""


def uncompiled(reason: str) -> Callable[[_Function], _Function]:
    """Decorator for functions that compiled code calls uncompiled.

    Args:
        reason: Why; torch says it where a graph must not be broken.
    """
    found: Any = torch.compiler.disable(reason=reason)  # type: ignore[no-untyped-call]
    return found  # type: ignore[no-any-return]


_ABOUT = (
    *(
        *("shape", "dtype", "device", "layout", "ndim", "itemsize", "nbytes", "requires_grad", "is_leaf"),
        "grad_fn",
    ),
    *("grad", "_grad", "_version", "is_cuda", "is_cpu", "is_sparse", "is_meta", "is_nested"),
)
_METHODS = ("size", "dim", "numel", "nelement", "element_size", "stride", "is_floating_point", "is_complex")


def _metadata() -> frozenset[Any]:
    """Functions that read no values."""
    found: set[Any] = {getattr(torch.Tensor, name) for name in _METHODS}
    for name in _ABOUT:
        described: Any = getattr(torch.Tensor, name)
        found.add(described.__get__)
    assigned: Any = torch.Tensor.grad
    return frozenset({*found, assigned.__set__, torch.is_floating_point, torch.is_complex, torch.numel})


_ONLY_METADATA = _metadata()


class LateParameters:
    """Parameters with outstanding updates.

    Args:
        complete: Completes the updates of some of them, and gives them their class back (:meth:`updated`).
    """

    def __init__(self, complete: Callable[[Sequence[torch.Tensor]], None]) -> None:
        self._complete = complete
        self._own: dict[int, type] = {}
        self._late: dict[type, type] = {}

    def expect(self, parameters: Sequence[torch.Tensor]) -> None:
        """Mark updates as outstanding."""
        for parameter in parameters:
            if id(parameter) not in self._own:
                self._own[id(parameter)] = type(parameter)
                parameter.__class__ = self._late_class(type(parameter))

    def updated(self, parameters: Sequence[torch.Tensor]) -> None:
        """Called before updates are made."""
        for parameter in parameters:
            kind = self._own.pop(id(parameter), None)
            if kind is not None:
                parameter.__class__ = kind

    def _late_class(self, kind: type) -> type:
        if kind in self._late:
            return self._late[kind]

        @uncompiled(UPDATES_ARE_LATE)
        def reading(
            _: type,
            func: Callable[..., Any],
            types: Any,
            args: Any = (),
            kwargs: Mapping[str, Any] | None = None,
        ) -> Any:
            del types
            given = dict(kwargs or {})
            if func not in _ONLY_METADATA:
                self._complete(
                    [
                        each
                        for each in tree_leaves((args, given))
                        if isinstance(each, torch.Tensor) and type(each) is made
                    ]
                )
                return func(*args, **given)
            with torch._C.DisableTorchFunctionSubclass():  # noqa: SLF001 (what torch's own subclasses do)
                return func(*args, **given)

        def copied(parameter: torch.Tensor, memo: dict[int, Any]) -> Any:
            self._complete([parameter])
            return parameter.__deepcopy__(memo)  # type: ignore[no-untyped-call]

        def reduced(parameter: torch.Tensor, protocol: Any) -> Any:
            self._complete([parameter])
            return parameter.__reduce_ex__(protocol)  # type: ignore[no-untyped-call]

        body = {
            "__torch_function__": classmethod(reading),
            "__deepcopy__": copied,
            "__reduce_ex__": reduced,
            "__doc__": "A parameter whose update is outstanding.",
        }
        made = type(f"Late{kind.__name__}", (kind,), body)
        self._late[kind] = made
        return made
