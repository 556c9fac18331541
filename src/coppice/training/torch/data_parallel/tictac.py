"""Order FSDP2's all-gathers by TicTac, for sharded parameters instead of parameter servers.

FSDP2 gathers the parameters of a module when it starts and, by default, on the host not before. What it shall gather
ahead is told it by `set_modules_to_forward_prefetch` and `set_modules_to_backward_prefetch`, module by module: here
from an order that TicTac chooses for the recorded workload, in which a reduce-scatter is the push of a module's
gradients and an all-gather the pull of its parameters. Only the order of gathers changes, so results are those of
FSDP2 bit for bit. The backward pass uses modules in another order, and has an order of its own.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import FSDPModule
from torch.utils.hooks import RemovableHandle

from coppice.arguments import checked
from coppice.errors import InputError
from coppice.iteration.layers import LayerWorkload
from coppice.iteration.policies.data_parallel.tictac import TicTac
from coppice.training.torch.core.agree import broadcast_from_first
from coppice.training.torch.core.attached import after_backward
from coppice.training.torch.core.measure import (
    BOUNDARY,
    GRADIENT,
    READ,
    DeviceClock,
    StepRecord,
    measure_network,
)
from coppice.training.torch.data_parallel.recorder import launch_plan, tensor_times


@dataclass(frozen=True)
class Prefetches:
    """All-gathers of one pass."""

    # Modules that each module has gathered when it has started, in their order
    by_module: Mapping[int, tuple[int, ...]]
    launched: tuple[int, ...]  # All modules in the order in which they are gathered


def prefetches(run: Sequence[int], gathers: Sequence[int], ahead: int | None) -> Prefetches:
    """Modules that each module prefetches, so that all-gathers follow an order.

    A module that starts is gathered then, if it was not before: nothing else can come between. Then follows what the
    order has up to the last of the modules that run next.

    Args:
        run: Modules in the order in which they run.
        gathers: Modules in the order in which they shall be gathered.
        ahead: Modules that run next, of which all shall be gathered; None: all that follow.

    Examples:
        >>> prefetches((0, 1, 2, 3), (0, 1, 2, 3), 1).by_module
        {0: (1,), 1: (2,), 2: (3,)}
        >>> prefetches((0, 1, 2, 3), (3, 2, 1, 0), None).launched
        (0, 3, 2, 1)
    """
    at = {module: turn for turn, module in enumerate(gathers)}
    launched: dict[int, None] = {}
    found: dict[int, tuple[int, ...]] = {}
    for turn, module in enumerate(run):
        launched.setdefault(module)
        following = run[turn + 1 :] if ahead is None else run[turn + 1 : turn + 1 + ahead]
        until = max((at[each] for each in following), default=-1) + 1
        wanted = tuple(each for each in gathers[:until] if each not in launched)
        if wanted:
            found[module] = wanted
            launched.update(dict.fromkeys(wanted))
    return Prefetches(found, tuple(launched))


class PrefetchOrder:
    """All-gather order of a model; made by :func:`prefetch_order`."""

    def __init__(
        self,
        model: nn.Module,
        policy: TicTac,
        *,
        ahead: int | None,
        network: tuple[float, float] | None,
        recorded: int,
        group: dist.ProcessGroup | None,
    ) -> None:
        # Modules with parameters in the order of the forward pass, as rank 0 recorded them; None until then
        self.workload: LayerWorkload | None = None
        # Names of these modules in the order in which the forward pass gathers them
        self.forward: list[str] = []
        self.backward: list[str] = []  # The same of the backward pass
        self._model, self._policy, self._group = model, policy, group
        self._ahead, self._network, self._recorded = ahead, network, recorded
        sharded = [(name, each) for name, each in model.named_modules() if isinstance(each, FSDPModule)]
        held = [(name, each, _held(each)) for name, each in sharded]
        self._names = [name or "(root)" for name, _, own in held if own]
        self._modules: list[Any] = [module for _, module, own in held if own]  # both FSDPModule and nn.Module
        self._held = [own for _, _, own in held if own]
        if not isinstance(model, FSDPModule) or not self._held:
            raise InputError(
                "expected a model that is sharded by fully_shard, found none: call it on the model first."
            )
        self._device = self._held[0][0].device
        self._record = StepRecord(DeviceClock(self._device))
        self._started: list[int] = []
        self._ended: list[int] = []
        self._iterations = 0
        self._in_backward = False
        self._hooks: list[RemovableHandle] = [model.register_forward_pre_hook(self._begin, prepend=True)]
        for place, (module, own) in enumerate(zip(self._modules, self._held, strict=True)):
            self._hooks += [
                module.register_forward_pre_hook(lambda *_, place=place: self._starts(place)),
                module.register_forward_hook(lambda *_, place=place: self._ends(place), prepend=True),
            ]
            trained = next((each for each in own if each.requires_grad), None)
            if trained is not None:
                self._hooks.append(
                    trained.register_post_accumulate_grad_hook(  # type: ignore[no-untyped-call]
                        lambda _, place=place: self._arrived(place)
                    )
                )
        self._hooks.append(model.register_forward_hook(lambda *_: self._record.mark(BOUNDARY)))

    def close(self) -> None:
        """Restore FSDP2's own order."""
        self._forget()
        for module in self._modules:
            module.set_modules_to_forward_prefetch([])
            module.set_modules_to_backward_prefetch([])
        if self._device.type == "cpu":
            self._root._set_unshard_async_op(False)  # noqa: SLF001, FBT003 (FSDP2's interface)

    @property
    def _root(self) -> FSDPModule:
        assert isinstance(self._model, FSDPModule)
        return self._model

    def _forget(self) -> None:
        for hook in self._hooks:
            hook.remove()
        self._hooks = []

    def _begin(self, *_: object) -> None:
        """Start a forward pass; once enough are recorded, all-gathers are reordered."""
        if not (self._model.training and torch.is_grad_enabled()):
            return
        if self._iterations >= self._recorded:
            self._order()
            return
        self._started, self._ended = [], []
        self._record.begin()

    def _starts(self, place: int) -> None:
        if self._counts() and place not in self._started:
            self._started.append(place)
            self._record.mark(READ, place)

    def _ends(self, place: int) -> None:
        if self._counts() and place not in self._ended:
            self._ended.append(place)

    def _counts(self) -> bool:
        return self._model.training and torch.is_grad_enabled() and not self._in_backward

    def _arrived(self, place: int) -> None:
        if not self._in_backward:
            self._in_backward = True
            after_backward(self._end)
        self._record.mark(GRADIENT, place)

    def _end(self) -> None:
        self._in_backward = False
        self._record.end(counts=self._iterations > 0)  # the first one is not timed
        self._iterations += 1

    def _order(self) -> None:
        """Set the policy's order for rank 0's recording on all ranks."""
        self._forget()
        everyone: Any = dist.group.WORLD if self._group is None else self._group
        network = self._network or measure_network(everyone, self._device)
        forward, backward = tensor_times(self._record, len(self._modules))
        own = self._started, self._ended, forward, backward
        first = dist.get_process_group_ranks(everyone)[0]
        started, ended, forward, backward = broadcast_from_first(lambda: own, first=first, group=everyone)
        self.workload = self._workload(started, forward, backward, network)
        back = ended[::-1]
        modules = self._modules
        ahead = self._ahead
        there = prefetches(started, self._gathers(self.workload, started), ahead)
        again = prefetches(back, self._gathers(self._workload(back, backward, forward, network), back), ahead)
        for place, wanted in there.by_module.items():
            modules[place].set_modules_to_forward_prefetch([modules[each] for each in wanted])
        for place, wanted in again.by_module.items():
            modules[place].set_modules_to_backward_prefetch([modules[each] for each in wanted])
        if self._device.type == "cpu":  # where a gather has no stream of its own to run on
            self._root._set_unshard_async_op(True)  # noqa: SLF001, FBT003 (FSDP2's interface)
        self.forward = [self._names[place] for place in there.launched]
        self.backward = [self._names[place] for place in again.launched]

    def _workload(
        self,
        run: Sequence[int],
        forward: Sequence[float],
        backward: Sequence[float],
        network: tuple[float, float],
    ) -> LayerWorkload:
        """Workload of modules in sequence."""
        rate, message = network
        return LayerWorkload(
            forward=tuple(forward[place] for place in run),
            backward=tuple(backward[place] for place in run),
            bytes=tuple(
                float(sum(each.numel() * each.element_size() for each in self._held[place])) for place in run
            ),
            bytes_per_second=rate,
            message_seconds=message,
            workers=dist.get_world_size(self._group),
        )

    def _gathers(self, workload: LayerWorkload, run: Sequence[int]) -> list[int]:
        """Modules in the simulated order of pulls."""
        plan = launch_plan(self._policy, workload, run)
        return [plan.tensors[plan.messages[number].carries[0]] for number in plan.order["down"]]


def _held(module: Any) -> list[nn.Parameter]:
    """Parameters gathered with a module: those below it that are not sharded separately."""
    found = list(module.parameters(recurse=False))
    for child in module.children():
        if not isinstance(child, FSDPModule):
            found += _held(child)
    return list(dict.fromkeys(found))


@checked
def prefetch_order(
    model: nn.Module,
    *,
    order: str = "tac",
    ahead: int | None = 2,
    network: tuple[float, float] | None = None,
    recorded: int = 3,
    group: Any = None,
) -> PrefetchOrder:
    """All-gather the parameters of a model sharded by ``fully_shard`` in TicTac's order.

    The first iterations are FSDP2's own and recorded. Then every module gathers, by FSDP2's own interface, what comes
    next in the order that the policy ``tictac`` chooses from rank 0's times; every rank calls this.

    Args:
        model: The model, on which ``fully_shard`` has been called, and on those of its parts that are gathered apart.
        order: ``tac`` by times, ``tic`` by structure, ``backward`` as gradients are pushed.
        ahead: Modules that run next and whose parameters are gathered, at least: each costs the memory of its
            parameters. None: all.
        network: Bytes per second and seconds per message; None: measured when the order is chosen.
        recorded: Iterations that are recorded, 2 or more; the first is not timed.
        group: The ranks that train; None: all.

    Raises:
        InputError: If the model is not sharded, or a number is out of range.

    Source: TicTac (Hashemi et al., MLSys 2019), section 4, and FSDP2's explicit prefetching.
    """
    if ahead is not None and ahead < 1:
        raise InputError(
            f"expected `ahead` of 1 or more, found {ahead}: leave FSDP2 alone to gather nothing ahead."
        )
    if recorded < 2:
        raise InputError(
            f"expected 2 recorded iterations or more, found {recorded}: the first one is not timed."
        )
    return PrefetchOrder(
        model, TicTac.of(order=order), ahead=ahead, network=network, recorded=recorded, group=group
    )
