"""Agreement of ranks: equal arguments and parameters, what the first one decides, and errors about those lost.

Tensors of which no rank had a gradient are not updated, and keep what their optimizer has of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel

from coppice.arguments import shown
from coppice.errors import CheckError, CoppiceError, InputError
from coppice.training.autolrs.controller import Controller
from coppice.training.autolrs.log import Action, SearchDecision, State

_KINDS: dict[str, type[CoppiceError]] = {kind.__name__: kind for kind in (InputError, CheckError)}


def lost_rank(
    error: BaseException, task: str, *, all_ranks: str = "all ranks", lost: str = "one"
) -> CheckError:
    r"""Error about a rank that does not answer.

    Args:
        error: What the library says.
        task: What the ranks are expected to do.
        all_ranks: Who they are.
        lost: Who does not answer.

    Examples:
        >>> print(lost_rank(RuntimeError("closed by peer\n at line 3"), "sum gradients"))  # doctest: +ELLIPSIS
        expected all ranks to sum gradients, found one that does not answer (closed by peer): start the training...
    """
    return CheckError(
        f"expected {all_ranks} to {task}, found {lost} that does not answer ({reason_of(error)}): start the training "
        "again from its last checkpoint."
    )


def reason_of(error: BaseException) -> str:
    """The first line of an error's message, or the error's kind."""
    lines = str(error).strip().splitlines()
    return lines[0] if lines else type(error).__name__


def broadcast_from_first(
    find: Callable[[], Any],
    *,
    first: int,
    group: dist.ProcessGroup | None,
    device: torch.device | None = None,  # Where the group takes bytes from; None: the group knows
) -> Any:
    """Result of a function on the first rank, on every rank; its error is raised everywhere."""
    told: list[Any] = [None, None, None]
    raised: Exception | None = None
    if dist.get_rank() == first:
        try:
            told[0] = find()
        except Exception as error:  # noqa: BLE001 (raised below, on all ranks)
            raised = error
            kind = next((name for name, each in _KINDS.items() if isinstance(error, each)), "")
            told = [None, kind, str(error) if kind else f"{type(error).__name__}: {error}"]
    dist.broadcast_object_list(told, src=first, group=group, device=device)
    if raised is not None:
        raise raised
    found, kind, said = told
    if kind is None:
        return found
    if kind:
        raise _KINDS[kind](said)
    raise CheckError(f"expected rank {first} to say how to go on, found that it failed ({said}).")


def gathered(own: Any, group: dist.ProcessGroup | None) -> list[Any]:
    """What each rank of a group gives, by rank; collective over the ranks."""
    found: list[Any] = [None] * dist.get_world_size(group)
    dist.all_gather_object(found, own, group=group)
    return found


def first_other(everyone: Sequence[Any]) -> int | None:
    """The first rank that gives something else than rank 0; None: all give the same."""
    return next((rank for rank, each in enumerate(everyone) if each != everyone[0]), None)


def require_equal_arguments(told: Mapping[str, object], call: str, group: dist.ProcessGroup | None) -> None:
    """Check that all ranks passed equal arguments, since unequal ones would deadlock later.

    Args:
        told: What this rank was told, by argument: numbers, words, and what is made of them. Other things are left
            out.
        group: The ranks; None: all.
    """
    own = {key: value for key, value in told.items() if _is_plain(value)}
    for rank, other in enumerate(gathered(own, group)):
        differing = next((key for key in {**own, **other} if own.get(key) != other.get(key)), None)
        if differing is not None:
            raise InputError(
                f"expected the same {differing} on all ranks, found {shown(own.get(differing))} on this rank and "
                f"{shown(other.get(differing))} on rank {rank}: call {call} alike on all."
            )


def _is_plain(value: object) -> bool:
    """Whether a value is a number, a string, None, or a container of those."""
    if isinstance(value, Mapping):
        return all(map(_is_plain, value.values()))
    if isinstance(value, (list, tuple)):
        return all(map(_is_plain, value))
    return value is None or isinstance(value, (bool, int, float, str))


class World:
    """A process group, or a single process.

    Args:
        group: The group whose ranks train together; None is the default group, if there is one.
    """

    def __init__(self, group: dist.ProcessGroup | None = None) -> None:
        joined = dist.is_available() and dist.is_initialized()
        self.size = dist.get_world_size(group) if joined else 1
        self.rank = dist.get_rank(group) if joined else 0
        self._group = group
        self._root = dist.get_global_rank(group, 0) if joined and group is not None else 0
        self._device = torch.device("cpu")
        if joined and not any(name in dist.get_backend_config(group) for name in ("gloo", "mpi")):
            self._device = torch.device("cuda", torch.cuda.current_device())

    @property
    def decides(self) -> bool:
        """Whether this rank decides, logs and shows progress."""
        return self.rank == 0

    def mean(self, values: Sequence[float]) -> list[float]:
        """Element-wise mean over the ranks; not finite where one rank's is not."""
        if self.size == 1:
            return list(values)
        tensor = torch.tensor(values, dtype=torch.float64, device=self._device)
        dist.all_reduce(tensor, group=self._group)
        means: list[float] = (tensor / self.size).tolist()
        return means

    def barrier(self) -> None:
        """Wait for all ranks."""
        self.mean([0.0])

    def observe(
        self, controller: Controller, losses: Sequence[float], validation: float | None
    ) -> SearchDecision:
        """Let rank 0 observe averaged losses; every rank returns its decision and state."""
        if self.size == 1:
            return controller.observe(losses, validation)
        decision = SearchDecision(action=Action.CONTINUE, ended=False)
        failed: CoppiceError | None = None
        if self.decides:
            try:
                decision = controller.observe(losses, validation)
            except CoppiceError as error:
                failed = error
        else:
            controller.follow(losses, validation)
        news = torch.tensor([int(decision.ended or failed is not None)], device=self._device)
        dist.broadcast(news, src=self._root, group=self._group)
        if news.item():

            def decided() -> tuple[SearchDecision, State]:
                if failed is not None:
                    raise CheckError(str(failed))
                return decision, controller.state

            decision, controller.state = self.agree(decided)
        return decision

    def agree(self, find: Callable[[], Any]) -> Any:
        """What a function gives on rank 0, on every rank; its error is raised everywhere."""
        if self.size == 1:
            return find()
        return broadcast_from_first(find, first=self._root, group=self._group, device=self._device)


class UsedTensors:
    """Union over the ranks of the tensors with gradients, exchanged along with the all-reduces.

    Args:
        count: Number of trained tensors.
        group: The ranks, in a group that carries nothing else.
        device: Where they compute.
        timeout_s: Longest wait for another rank.
    """

    def __init__(self, count: int, group: dist.ProcessGroup, device: torch.device, timeout_s: float) -> None:
        self._count, self._group, self._device, self._timeout_s = count, group, device, timeout_s
        self._marks = torch.ones(count, dtype=torch.int32)
        self._work: Any = None
        self._places = frozenset(range(count))

    def exchange(self, places: Iterable[int]) -> None:
        """Exchange this rank's tensors with gradients at the end of backward."""
        marks = torch.zeros(self._count, dtype=torch.int32)
        marks[list(places)] = 1
        self._marks = marks.to(self._device)
        self._work = dist.all_reduce(self._marks, op=dist.ReduceOp.MAX, group=self._group, async_op=True)

    def places(self) -> frozenset[int]:
        """Tensors with a gradient on any rank in this iteration."""
        if self._work is not None:
            try:
                self._work.wait(timedelta(seconds=self._timeout_s))
            except RuntimeError as error:
                raise lost_rank(error, "say which gradients they have") from error
            self._work = None
            self._places = frozenset(self._marks.nonzero().flatten().tolist())
        return self._places


def require_whole_gradients(whole: bool) -> None:  # noqa: FBT001 (what it requires)
    """Check that gradients are not split, where tensors may have none."""
    if not whole:
        raise InputError(
            "expected `unused=False` where chunks are chosen, found True: send whole gradients (`ratio=1`)."
        )


def trained_parameters(
    model: nn.Module, optimizer: torch.optim.Optimizer
) -> tuple[list[str], list[nn.Parameter]]:
    """Names and tensors that the optimizer trains, in model order, without empty ones."""
    if isinstance(optimizer, torch.optim.LBFGS):
        raise InputError(
            "expected an optimizer that updates each parameter by itself, found LBFGS: take another."
        )
    if any(isinstance(each, DistributedDataParallel) for each in model.modules()):
        raise InputError(
            "expected a plain model, found DistributedDataParallel, which sums gradients itself: give its `module`."
        )
    given = [p for group in optimizer.param_groups for p in group["params"] if p.requires_grad and p.numel()]
    wanted = {id(p) for p in given}
    if not wanted:
        raise InputError(
            "expected an optimizer of parameters that are trained, found that all are frozen or empty: set "
            "requires_grad of what is to be trained."
        )
    found = [(name, p) for name, p in model.named_parameters() if id(p) in wanted]
    if len(found) != len(wanted):
        raise InputError(
            f"expected an optimizer of the model's parameters, found {len(wanted) - len(found)} of {len(wanted)} that "
            "are not the model's: hand both over together."
        )
    sharded = next((name for name, p in found if isinstance(p, DTensor)), None)
    if sharded is not None:
        raise InputError(
            f"expected parameters that every rank has whole, found {sharded} as a DTensor: whoever shards it sums its "
            "gradients (for FSDP2 there is prefetch_order)."
        )
    devices = sorted({str(p.device) for _, p in found})
    if len(devices) > 1:
        raise InputError(
            f"expected trained parameters on one device, found {devices[0]} and {devices[1]}: a rank has one device; "
            "schedule each part of the model by itself."
        )
    device = found[0][1].device
    if device.type == "cuda" and device.index != torch.cuda.current_device():
        raise InputError(
            f"expected the current device to be that of the parameters, found {device} and "
            f"cuda:{torch.cuda.current_device()}: call torch.cuda.set_device({device.index}) first, as NCCL needs it."
        )
    return [name for name, _ in found], [p for _, p in found]


def share_weights(tensors: Iterable[torch.Tensor], source: int, group: dist.ProcessGroup | None) -> None:
    """Give all ranks of a group the tensors of one of them.

    Args:
        source: That rank, among all.
    """
    with torch.no_grad():
        for tensor in tensors:
            dist.broadcast(tensor.detach(), src=source, group=group)


def tensors_of(*modules: nn.Module) -> list[torch.Tensor]:
    """Parameters and buffers of modules."""
    return [each for module in modules for each in (*module.parameters(), *module.buffers())]


def require_dense(gradient: torch.Tensor | None, name: str) -> torch.Tensor:
    """The gradient of a parameter, if it can be averaged."""
    if gradient is None or gradient.is_sparse:
        raise InputError(f"expected dense gradients, found another of {name}: sparse ones are not summed.")
    return gradient


def require_no_missing(names: Sequence[str], *remedies: str) -> None:
    """Check that no trained parameter is without a gradient.

    Args:
        names: Those that are.
        remedies: What else can be done about it.
    """
    if names:
        raise InputError(
            f"expected gradients of all trained parameters, found none of {', '.join(names[:3])}"
            f"{f' and {len(names) - 3} more' if len(names) > 3 else ''}: freeze what is not used "
            f"(requires_grad=False), {', '.join(remedies)}."
        )


def require_alike(names: Sequence[str], trained: Sequence[nn.Parameter], group: dist.ProcessGroup) -> None:
    """Check that ranks train the same tensors."""
    own = [(name, list(p.shape), str(p.dtype)) for name, p in zip(names, trained, strict=True)]
    for rank, other in enumerate(gathered(own, group)):
        if other != own:
            differing = next(
                (mine[0] for mine, theirs in zip(own, other, strict=False) if mine != theirs), "their number"
            )
            raise InputError(
                f"expected the same trained parameters on all ranks, found others on rank {rank} ({differing}): "
                "build the model alike on all."
            )
