"""Agreement of ranks: equal arguments, what the first rank finds or decides, and errors about those that are lost."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
import torch.distributed as dist

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


def require_equal_arguments(told: Mapping[str, object], call: str, group: dist.ProcessGroup | None) -> None:
    """Check that all ranks passed equal arguments, since unequal ones would deadlock later.

    Args:
        told: What this rank was told, by argument: numbers, words, and what is made of them. Other things are left
            out.
        group: The ranks; None: all.
    """
    own = {key: value for key, value in told.items() if _is_plain(value)}
    everyone: list[Any] = [None] * dist.get_world_size(group)
    dist.all_gather_object(everyone, own, group=group)
    for rank, other in enumerate(everyone):
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
