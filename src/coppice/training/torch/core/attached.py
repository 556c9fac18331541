"""Hooks and attributes that a schedule attaches to modules, which copies of the modules do not inherit.

Hooks of a schedule belong to the model that it trains. A copy of that model (``copy.deepcopy``, a moving average of
its weights, ``torch.save``) has its weights after all updates that were asked for, and none of these hooks: it trains
alone, or is evaluated. The schedule goes on with the model that it has.
"""

from __future__ import annotations

import copyreg
import weakref
from collections.abc import Callable, Mapping
from typing import Any, SupportsIndex

import torch
import torch.distributed as dist
from torch import nn
from torch.utils.hooks import RemovableHandle

from coppice.errors import InputError

_REDUCE = "__reduce_ex__"


class ModuleAttachments:
    """Hooks and attributes of modules that their copies do not inherit.

    Args:
        settle: Called before a module is copied, so that its weights are those after all updates.

    Examples:
        >>> import copy
        >>> layer, seen = nn.Linear(2, 1), []
        >>> attached = ModuleAttachments(lambda: seen.append("settled"))
        >>> attached.before(layer, lambda module, given: seen.append("ran"))
        >>> own = copy.deepcopy(layer)
        >>> out = own(torch.ones(1, 2)), layer(torch.ones(1, 2))
        >>> seen, len(own._forward_pre_hooks)
        (['settled', 'ran'], 0)
        >>> attached.remove()
        >>> len(layer._forward_pre_hooks)
        0
    """

    def __init__(self, settle: Callable[[], None] = lambda: None) -> None:
        self._settle = settle
        self._handles: list[tuple[nn.Module, RemovableHandle]] = []
        self._set: list[tuple[nn.Module, str]] = []

    def before(self, module: nn.Module, hook: Callable[..., Any], *, first: bool = False) -> None:
        """Add a forward pre-hook."""
        self.add(module, module.register_forward_pre_hook(hook, prepend=first))

    def behind(
        self, module: nn.Module, hook: Callable[..., Any], *, first: bool = False, always: bool = False
    ) -> None:
        """Add a forward hook, with ``always`` also called on failure."""
        self.add(module, module.register_forward_hook(hook, prepend=first, always_call=always))

    def add(self, module: nn.Module, handle: RemovableHandle) -> None:
        """Track a hook handle of a module."""
        self._handles.append((module, handle))
        _plain_copies(module).leave_out(self._settle, hook=handle.id)

    def set(self, module: nn.Module, name: str, value: object) -> None:
        """Override a class attribute on the object."""
        vars(module)[name] = value
        self._set.append((module, name))
        _plain_copies(module).leave_out(self._settle, name=name)

    def remove(self) -> None:
        """Restore the modules."""
        modules = {}
        for module, handle in self._handles:
            handle.remove()
            modules[id(module)] = module
        for module, name in self._set:
            vars(module).pop(name, None)
            modules[id(module)] = module
        for module in modules.values():
            copies = vars(module).get(_REDUCE)
            if isinstance(copies, _PlainCopies) and not copies.still(module):
                del vars(module)[_REDUCE]
        self._handles, self._set = [], []


class _PlainCopies:
    """Copy protocol of a module without its attachments; replaces its ``__reduce_ex__``."""

    def __init__(self, module: nn.Module) -> None:
        self._module = weakref.ref(module)
        self._hooks: set[int] = set()
        self._names: set[str] = {_REDUCE}
        self._settles: list[Callable[[], None]] = []

    def leave_out(self, settle: Callable[[], None], *, hook: int | None = None, name: str = "") -> None:
        """Exclude a hook, or an attribute, from copies."""
        self._hooks |= set() if hook is None else {hook}
        self._names |= {name} if name else set()
        if settle not in self._settles:
            self._settles.append(settle)

    def still(self, module: nn.Module) -> bool:
        """Whether anything is attached to the module."""
        state = vars(module)
        hooks = {each for name, value in state.items() if "hooks" in name and value for each in value}
        return bool(self._hooks & hooks or (self._names - {_REDUCE}) & state.keys())

    def __call__(self, protocol: SupportsIndex) -> Any:
        """Reduce value for `copy` and `pickle`."""
        module = self._module()
        assert module is not None
        for settle in self._settles:
            settle()
        reduced: Any = type(module).__reduce_ex__(module, protocol)
        made, given, *rest = reduced
        if rest and isinstance(rest[0], Mapping):
            rest[0] = self._plain(rest[0])
        elif rest and isinstance(rest[0], tuple):  # with slots
            rest[0] = tuple(self._plain(each) if isinstance(each, Mapping) else each for each in rest[0])
        return made, given, *rest

    def _plain(self, state: Mapping[str, Any]) -> dict[str, Any]:
        """Attributes without attachments."""
        return {
            name: type(value)((key, each) for key, each in value.items() if key not in self._hooks)
            if "hooks" in name and isinstance(value, dict)
            else value
            for name, value in state.items()
            if name not in self._names
        }

    def __deepcopy__(self, memo: object) -> Any:
        """Deep copy of classes that copy their own attributes."""
        del memo
        module = self._module()
        raise InputError(
            f"expected a scheduled model whose class leaves copies to torch, found {type(module).__name__} with a "
            "__deepcopy__ of its own: load model.state_dict() into a new one, or call optimizer.close() first."
        )


def _plain_copies(module: nn.Module) -> _PlainCopies:
    """Copy protocol of a module."""
    found = vars(module).get(_REDUCE)
    if not isinstance(found, _PlainCopies):
        found = vars(module)[_REDUCE] = _PlainCopies(module)
    return found


def after_backward(call: Callable[[], None]) -> None:
    """Call something when the backward pass that runs is over, as DDP and FSDP do."""
    engine: Any = torch.autograd.Variable._execution_engine  # noqa: SLF001 (there is no other way)
    engine.queue_callback(call)


def _group_called(name: str) -> dist.ProcessGroup:
    """Process group of a name in this process."""
    try:
        found: Any = torch._C._distributed_c10d  # noqa: SLF001 (torch finds its groups so)
        resolved: dist.ProcessGroup = found._resolve_process_group(name)  # noqa: SLF001
        return resolved
    except (RuntimeError, AttributeError):
        raise InputError(
            f"expected the process group {name!r} of the saved model, found none of that name: make the groups in the "
            "same order first, or save model.state_dict() and load that."
        ) from None


def _reduced_group(group: dist.ProcessGroup) -> tuple[Callable[[str], dist.ProcessGroup], tuple[str]]:
    """Copy process groups by name: a copied layer reduces over the same ranks."""
    return _group_called, (group.group_name,)


if dist.is_available():
    copyreg.pickle(dist.ProcessGroup, _reduced_group)
