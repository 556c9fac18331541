"""Engine over torch.distributed: point-to-point messages by gloo, or by NCCL between GPUs.

Receives are posted a few steps ahead, all of them into memory that waits for nothing. Messages travel over connections
of the engine's own, so tags never meet those of the program around it. Tags also depend on what is run: ranks that run
different things never take each other's messages, whose unequal lengths would end the process, and time out instead.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import time
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from datetime import timedelta
from typing import Any

import numpy as np
from numpy.typing import NDArray

from coppice.collectives import Collective
from coppice.errors import InputError, MissingExtraError
from coppice.program.dialects.rank.program import RankProgram
from coppice.rows import offsets
from coppice.run.engines.datatype import DataType, ReduceOp
from coppice.run.engines.engine import BaseEngine, check_rank
from coppice.run.engines.interpreter import RankMemory
from coppice.run.engines.progress import ExecutionOrder, carry_out
from coppice.run.engines.torch.messages import (
    LARGEST_TAG,
    GlooTransport,
    first_line,
    lost,
    timed_out,
    wait_for,
    wait_steps,
)
from coppice.run.errors import Mismatch, PeerLost, RunError, TimedOut

WINDOW = 8
"""Steps whose receives are posted at once."""
_KEPT = 32
_CARD_BYTES = 504
_FEW_RANKS = 16
_WORDS = 200
_GRACE_S = 0.1
_CLOSING = timedelta(milliseconds=1)


class TorchEngine(BaseEngine):
    """Endpoint of one rank in a group of processes with a common torch store.

    Args:
        store: The store, such as a ``TCPStore``; what it holds for others is not touched.
        rank: This rank.
        ranks: Number of ranks.
        device: ``cpu`` for gloo, or ``cuda`` for NCCL on the current GPU; buffers are tensors of the GPU then.
        exchange_timeout_s: Longest time to wait in an exchange, and for the other ranks to appear, in seconds.

    Raises:
        InputError: If the device is not served here.
        MissingExtraError: If torch is not installed.
        PeerLost: If the other ranks do not appear.
    """

    name = "torch"

    def __init__(
        self, store: Any, rank: int, ranks: int, *, device: str = "cpu", exchange_timeout_s: float = 300.0
    ) -> None:
        dist = _distributed()
        check_rank(rank, ranks)
        if device not in ("cpu", "cuda"):
            raise InputError(f"expected the device cpu or cuda, found {device!r}: choose one of them.")
        super().__init__(rank, ranks, exchange_timeout_s)
        self.device = device
        self._store = dist.PrefixStore("coppice-engine", store)
        self._calls = self._subsets = 0
        self._kept: OrderedDict[int, _Kept] = OrderedDict()
        timeout = timedelta(seconds=exchange_timeout_s)
        try:
            self._gloo: Any = dist.ProcessGroupGloo(
                dist.PrefixStore("gloo", self._store), rank, ranks, timeout
            )
        except RuntimeError as error:
            raise PeerLost(
                f"rank {rank} did not find the other {ranks - 1} ranks ({first_line(error)}): start them all."
            ) from error
        self._grouped: Any = None
        self._own: Any = None
        if device == "cuda":
            from coppice.run.engines.torch.tensors import nccl_group

            self._grouped = nccl_group(dist.PrefixStore("nccl", self._store), rank, ranks, timeout)

    @classmethod
    def from_environment(cls, *, timeout_s: float = 300.0) -> TorchEngine:
        """Engine of a process started by torchrun.

        Args:
            timeout_s: Longest time to wait for the other ranks, now and in exchanges, in seconds.

        Raises:
            InputError: If a variable of torchrun is missing.
            PeerLost: If the other ranks do not appear.
        """
        _distributed()
        from torch.distributed.rendezvous import rendezvous

        missing = [
            name for name in ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT") if name not in os.environ
        ]
        if missing:
            raise InputError(
                f"expected the variables of torchrun, found no {missing[0]}: start with `torchrun`."
            )
        try:
            store, rank, ranks = next(rendezvous("env://", timeout=timedelta(seconds=timeout_s)))
        except RuntimeError as error:
            address = f"{os.environ['MASTER_ADDR']}:{os.environ['MASTER_PORT']}"
            raise PeerLost(
                f"expected a store at {address}, found none ({first_line(error)}): start all ranks."
            ) from error
        return cls(store, rank, ranks, exchange_timeout_s=timeout_s)

    def _carry_out(
        self, program: RankProgram, given: Any, wanted: Any, dtype: DataType, op: ReduceOp, timeout_s: float
    ) -> None:
        if self._grouped is not None:
            from coppice.run.engines.torch.tensors import run_steps

            with self._failing_together(str(program.collective)):
                run_steps(self._grouped, program, given, wanted, dtype=dtype, op=op, device=self.device)
            return
        memory = RankMemory(program, given, wanted, dtype=dtype, op=op)
        self._calls += 1
        words = (program.collective, program.count, program.root, dtype, op, self._calls)
        with self._failing_together(f"{program.collective} of {program.count} {dtype}"):
            kept = self._kept_for(program)
            scratch, staging = kept.memory(memory.scratch)
            memory.use_scratch(scratch)
            messages = GlooTransport(
                self._gloo,
                kept.order,
                kept.wait_step,
                memory,
                staging,
                first_tag=_first_tag(words),
                timeout_s=timeout_s,
            )
            carry_out(kept.order, memory, staging, messages, timeout_s=timeout_s)

    def native(
        self, collective: Collective, given: Any, output: Any, *, dtype: DataType, op: ReduceOp, root: int
    ) -> None:
        """See :meth:`coppice.run.bench.measuring.Native.native`: gloo's collective, for GPU tensors NCCL's."""
        self._check_open()
        from coppice.run.engines.torch.messages import run_native

        on_gpu = getattr(getattr(output, "device", None), "type", "") == "cuda"
        if on_gpu and self._grouped is None:
            from coppice.run.engines.torch.tensors import nccl_group

            timeout = timedelta(seconds=self._exchange_timeout_s)
            store = _distributed().PrefixStore("nccl", self._store)
            self._own = self._own or nccl_group(store, self.rank, self.ranks, timeout)
        group, name = (self._grouped or self._own, "NCCL") if on_gpu else (self._gloo, "gloo")
        with self._failing_together(f"{name}'s {collective}"):
            run_native(group, collective, given, output, dtype=dtype, op=op, root=root)

    def native_blocks(
        self, given: Any, wanted: Any, sent: Sequence[int], received: Sequence[int], *, dtype: DataType
    ) -> None:
        """See :meth:`coppice.run.bench.skewed.NativeBlocks.native_blocks`: gloo's all-to-all."""
        self._check_open()
        torch = _torch()
        with self._failing_together("gloo's all_to_all of unequal blocks"):
            tensors = [torch.from_numpy(each.view(np.uint8)) for each in (wanted, given)]
            splits = [[count * dtype.itemsize for count in part] for part in (received, sent)]
            self._gloo.alltoall_base(*tensors, *splits).wait()

    def stream(
        self,
        *,
        out: NDArray[np.uint8] | None,
        dst: int,
        into: NDArray[np.uint8] | None,
        src: int,
        timeout_s: float,
    ) -> NDArray[np.float64]:
        """See :meth:`coppice.run.engines.engine.StreamingEngine.stream`; over gloo, from memory of the host."""
        self._check_open()
        torch, what = _torch(), "a stream"
        tag = _first_tag((what,))
        timeout = timedelta(seconds=timeout_s)
        arrived = np.zeros(0 if into is None else len(into))
        with self._failing_together(what):
            begin = time.perf_counter()
            try:
                arriving = [
                    self._gloo.recv([torch.from_numpy(row)], src, tag)
                    for row in (() if into is None else into)
                ]
                leaving = [
                    self._gloo.send([torch.from_numpy(row)], dst, tag) for row in (() if out is None else out)
                ]
            except RuntimeError as error:  # the connection is known to be gone already
                raise lost(self.rank, dst, what, error) from None
            for place, work in enumerate(arriving):
                wait_for(work, timeout, self.rank, src, what)
                arrived[place] = time.perf_counter() - begin
            for work in leaving:
                wait_for(work, timeout, self.rank, dst, what)
        return arrived

    def exchange(self, data: bytes) -> list[bytes]:
        """See :meth:`coppice.run.engines.engine.Engine.exchange`."""
        self._check_open()
        self._calls += 1
        with self._failing_together("an exchange about something new"):
            first = data[:_CARD_BYTES]
            card = len(data).to_bytes(8, "little") + first + bytes(_CARD_BYTES - len(first))
            cards = self._cards(card)
            lengths = [int.from_bytes(card[:8], "little") for card in cards]
            rests = [max(0, length - _CARD_BYTES) for length in lengths]
            found = self._spread(data[_CARD_BYTES:], rests, 1) if any(rests) else [b""] * self.ranks
            return [
                card[8 : 8 + min(length, _CARD_BYTES)] + rest
                for card, length, rest in zip(cards, lengths, found, strict=True)
            ]

    def subset(self, ranks: Sequence[int]) -> TorchEngine:
        """This rank's engine in the group of ``ranks``, in that order; called by every rank with its own group.

        Raises:
            InputError: If they are not different ranks, or this one is not among them.
        """
        self._check_open()
        members = self._members(ranks)
        self._subsets += 1
        prefix = f"{self._subsets}:{','.join(map(str, members))}"
        group = TorchEngine(
            _distributed().PrefixStore(prefix, self._store),
            members.index(self.rank),
            len(members),
            device=self.device,
            exchange_timeout_s=self._exchange_timeout_s,
        )
        self._groups.append(group)
        return group

    def close(self) -> None:
        """See :meth:`coppice.run.engines.engine.Engine.close`."""
        super().close()
        if self._gloo is not None:
            self._tell("closed its engine", key=f"closed/{self.rank}")
        self._gloo = self._grouped = self._own = None
        self._kept.clear()

    def _cards(self, card: bytes) -> list[bytes]:
        """All ranks' cards, which are equally long; of few ranks each tells all others at once, and wakes up once."""
        if not 1 < self.ranks <= _FEW_RANKS:
            return self._spread(card, [len(card)] * self.ranks, 0)
        torch, timeout = _torch(), timedelta(seconds=self._exchange_timeout_s)
        mine = torch.frombuffer(bytearray(card * self.ranks), dtype=torch.uint8)
        found = torch.empty_like(mine)
        options = torch.distributed.distributed_c10d.AllToAllOptions()
        options.timeout = timeout
        try:
            self._gloo.alltoall_base(found, mine, [], [], options).wait(timeout)
        except RuntimeError as error:
            if timed_out(error):
                raise TimedOut(
                    f"rank {self.rank} waited {self._exchange_timeout_s:g} s in an exchange for the other ranks: see "
                    "what they do, or allow more time."
                ) from None
            raise lost(self.rank, self._gone(), "an exchange", error) from None
        told = found.numpy().tobytes()
        return [told[begin : begin + len(card)] for begin in range(0, len(told), len(card))]

    def _gone(self) -> int | None:
        """A rank to which the connection is known to be gone."""
        memory = _torch().zeros(1, dtype=_torch().uint8)
        for peer in (peer for peer in range(self.ranks) if peer != self.rank):
            try:
                self._gloo.recv([memory], peer, LARGEST_TAG)
            except RuntimeError:
                return peer
        return None

    def _spread(self, data: bytes, lengths: Sequence[int], stage: int) -> list[bytes]:
        """All ranks' bytes, whose lengths are known: in each round twice as many, from twice as far."""
        torch = _torch()
        tag = _first_tag(("exchange", stage, self._calls))
        timeout = timedelta(seconds=self._exchange_timeout_s)
        have, reach = [data], 1
        while reach < self.ranks:
            number = min(reach, self.ranks - reach)
            source, target = (self.rank + reach) % self.ranks, (self.rank - reach) % self.ranks
            sizes = [lengths[(source + place) % self.ranks] for place in range(number)]
            arrival = np.empty(sum(sizes), dtype=np.uint8)
            leaving = np.frombuffer(b"".join(have[:number]), dtype=np.uint8).copy()
            works = []
            for start, memory, peer in (
                (self._gloo.recv, arrival, source),
                (self._gloo.send, leaving, target),
            ):
                if not len(memory):
                    continue
                try:
                    works.append((peer, start([torch.from_numpy(memory)], peer, tag)))
                except RuntimeError as error:  # the connection is known to be gone already
                    raise lost(self.rank, peer, "an exchange", error) from None
            for peer, work in works:
                wait_for(work, timeout, self.rank, peer, "an exchange")
            ends = offsets(np.array(sizes, dtype=np.int64)).tolist()
            have += [arrival[ends[place] : ends[place + 1]].tobytes() for place in range(number)]
            reach *= 2
        return [have[(rank - self.rank) % self.ranks] for rank in range(self.ranks)]

    def _kept_for(self, program: RankProgram) -> _Kept:
        found = self._kept.get(id(program))
        if found is None:
            found = self._kept[id(program)] = _Kept(program)
            while len(self._kept) > _KEPT:
                self._kept.popitem(last=False)
        self._kept.move_to_end(id(program))
        return found

    @contextlib.contextmanager
    def _failing_together(self, what: str) -> Iterator[None]:
        """Close the connections when the body raises, so that no other rank waits for this one."""
        try:
            yield
        except InputError:
            raise
        except RunError as error:
            self._tell(what, key=f"doing/{self.rank}")
            time.sleep(_GRACE_S)  # others close their connections before they can leave word
            first, kind = self._reason(), type(error)
            text = f"{error} The first to give up was {first}" if first else str(error)
            if kind is TimedOut and (difference := self._difference(what)):
                kind, text = Mismatch, difference
            self._break(f"rank {self.rank} in {what}: {error}", text)
            raise kind(text) from error
        except BaseException as error:
            kind_name = type(error).__name__
            self._break(
                f"rank {self.rank} in {what}, which failed with {kind_name}.", f"it failed with {kind_name}."
            )
            raise

    def _reason(self) -> str:
        """What the first rank that failed has left in the store, if that still answers."""
        with contextlib.suppress(Exception):
            if self._store.check(["failed"]):
                return bytes(self._store.get("failed")).decode(errors="replace")
        return ""

    def _difference(self, what: str) -> str:
        """What another rank that gave up was in, if it is something else."""
        for peer in range(self.ranks):
            with contextlib.suppress(Exception):
                key = f"doing/{peer}"
                if self._store.check([key]) and (theirs := bytes(self._store.get(key)).decode()) != what:
                    return (
                        f"ranks do different things: rank {self.rank} waited in {what}, and rank {peer} in {theirs}; "
                        "make the same calls in the same order on all ranks."
                    )
        return ""

    def _break(self, told: str, lost: str) -> None:
        """Leave word for the others, and close all connections."""
        self._lost = f"the group of rank {self.rank} broke earlier: {lost}"
        self._tell(told, key="failed")
        self._kept.clear()
        gloo, self._gloo, self._grouped = self._gloo, None, None
        if gloo is not None:
            _close_connections(gloo, self.rank, self.ranks)

    def _tell(self, words: str, *, key: str) -> None:
        with contextlib.suppress(Exception):
            self._store.compare_set(key, "", words[:_WORDS])


class _Kept:
    """What of a program is kept from run to run: its order and its memory."""

    def __init__(self, program: RankProgram) -> None:
        self.program = program  # its id is the key
        self.order = ExecutionOrder(program, WINDOW, early=True)
        self.wait_step = wait_steps(self.order)
        self._memory: dict[Any, tuple[NDArray[Any], NDArray[Any]]] = {}

    def memory(self, like: NDArray[Any]) -> tuple[NDArray[Any], NDArray[Any]]:
        """Scratch memory and memory for arrivals."""
        if like.dtype not in self._memory:
            self._memory[like.dtype] = like, np.empty(self.order.staging_elements, dtype=like.dtype)
        return self._memory[like.dtype]


def _close_connections(gloo: Any, rank: int, ranks: int) -> None:
    """Close the connections of a group while messages are under way.

    A wait that times out makes gloo close all connections of this process; one over a broken connection does not.
    """
    torch = _torch()
    for peer in (peer for peer in range(ranks) if peer != rank):
        try:
            gloo.recv([torch.zeros(1, dtype=torch.uint8)], peer, LARGEST_TAG).wait(_CLOSING)
        except RuntimeError as error:
            if timed_out(error):
                return


def _first_tag(words: Sequence[object]) -> int:
    """A number that differs for different calls."""
    digest = hashlib.blake2b(repr(tuple(map(str, words))).encode(), digest_size=4).digest()
    return int.from_bytes(digest, "little") & LARGEST_TAG


def _torch() -> Any:
    try:
        import torch
    except ImportError:
        package = "torch"
        raise MissingExtraError.of(package, extra="torch") from None
    return torch


def _distributed() -> Any:
    """torch.distributed, with gloo."""
    distributed = _torch().distributed
    if not distributed.is_available() or not distributed.is_gloo_available():
        raise InputError("expected a build of torch with gloo, found one without: install another one.")
    return distributed
