"""Communicator: collectives over arrays, called on every rank."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from types import TracebackType
from typing import Any

import numpy as np

from coppice.bounds.all_to_all.rates import rates_of
from coppice.collectives import Collective
from coppice.errors import InputError
from coppice.program.dialects.rank.program import RankProgram
from coppice.run.adapting.adapting import ADAPT_VARIABLE, NetworkWatch, agreed_network
from coppice.run.adapting.watching import CallTimes
from coppice.run.alltoallv.exchange import BlockExchange
from coppice.run.communicator.groups import AUTO, GroupSettings, agree, topology_of
from coppice.run.communicator.in_network import InNetwork, is_protocol, switch_defect
from coppice.run.engines.datatype import DataType, ReduceOp, array_of, check_reduction, data_type_of
from coppice.run.engines.engine import DirectEngine, Engine, GroupingEngine, StreamingEngine
from coppice.run.planned import FOREST, CallRequest, RankPrograms, is_plan_file
from coppice.topology.model import Topology


class Communicator:
    """Collectives of one group of ranks, planned for its topology.

    All calls are collective: every rank makes the same ones in the same order. The first time that something is asked
    for, the ranks agree on it, rank 0 plans it (or finds the plan on disk), and every rank keeps its program; from then
    on a call is no more than the run of that program.

    Arrays are contiguous NumPy arrays, or anything that exposes such memory. Elements of type bfloat16 are given as
    their bits in uint16, with ``dtype="bfloat16"``.

    Args:
        engine: This rank's end of the group.
        topology: The network, the same on all ranks; its rank r is rank r of the group.
        algorithm: ``forest`` for the optimal planner of each collective, a name of the catalogue, a plan file, the
            folder of a set of plans (the one for the size of the message), or ``auto``: what the engine does by itself
            where its ranks share memory, and forests elsewhere. A protocol of switches, such as ``switchml``:
            all-reduces at the switch that ``COPPICE_SWITCH`` names, and forests for the rest.
        pieces: Pieces into which chunks are cut, or ``auto`` for what the simulator finds best with the cost of a
            message that the engine shows.
        cache_dir: Where plans are kept; None for ``$COPPICE_CACHE``, ``$XDG_CACHE_HOME/coppice`` or
            ``~/.cache/coppice``.
        timeout_s: Longest wait for another rank in a collective, in seconds.
        check_every_call: Agree before every call, not only before what is new. It costs an exchange, and finds a rank
            that repeats an old call while the others make a new one, which otherwise ends in a timeout.
        fall_back: Where a switch fails, all ranks go on without it; otherwise they raise. It costs an exchange per
            all-reduce in the network, so that no rank uses a sum that another one does not have.
        adapt: Watch the times of calls, and plan anew where a part of the network becomes slow for good; None is on
            where ``COPPICE_ADAPT`` is 1. It needs an engine that times flows (torch, mpi), and costs an exchange every
            eighth call.

    Raises:
        InputError: If the topology has another number of ranks than the group, or an option is out of range.
        Mismatch: On every rank, if ranks have different topologies, versions or options.

    Examples:
        >>> from tempfile import TemporaryDirectory
        >>> from coppice.run.engines.numpy import run_ranks
        >>> from coppice.topology.presets import preset
        >>> def work(engine):
        ...     with Communicator(engine, preset("ring", gpus=4), cache_dir=directory) as group:
        ...         return group.all_reduce(np.full(3, engine.rank)).tolist()
        >>> with TemporaryDirectory() as directory:
        ...     run_ranks(4, work)
        [[6, 6, 6], [6, 6, 6], [6, 6, 6], [6, 6, 6]]
    """

    def __init__(
        self,
        engine: Engine,
        topology: Topology,
        *,
        algorithm: str = AUTO,
        pieces: int | str = "auto",
        cache_dir: str | os.PathLike[str] | None = None,
        timeout_s: float = 300.0,
        check_every_call: bool = False,
        fall_back: bool = True,
        adapt: bool | None = None,
    ) -> None:
        self.engine, self.topology = engine, topology
        self.rank, self.ranks = engine.rank, engine.ranks
        self.timeout_s = timeout_s
        self._settings = GroupSettings(
            algorithm=algorithm,
            pieces=pieces,
            cache_dir=cache_dir,
            timeout_s=timeout_s,
            check_every_call=check_every_call,
            fall_back=fall_back,
            adapt=os.environ.get(ADAPT_VARIABLE) == "1" if adapt is None else adapt,
        )
        record, defect = self._settings.record(topology), self._settings.defect(topology, engine.ranks)
        if not defect and is_protocol(algorithm):
            defect = switch_defect(algorithm)
        agree(engine.exchange, "the set-up of a communicator", record, error=defect)
        self._blocks: BlockExchange | None = None
        self._direct = engine if algorithm == AUTO and isinstance(engine, DirectEngine) else None
        self.in_network: InNetwork | None = None
        if is_protocol(algorithm):
            self.in_network = InNetwork(engine, algorithm, timeout_s=timeout_s, fall_back=fall_back)
        self._watch: NetworkWatch | None = None
        if self._settings.adapt and isinstance(engine, StreamingEngine) and not is_plan_file(algorithm):
            self._watch = NetworkWatch(engine, topology, timeout_s=timeout_s)
        self._programs = self._whole = self._planned_for(topology)

    def _planned_for(self, topology: Topology, whole: RankPrograms | None = None) -> RankPrograms:
        """Programs for a network, none made yet."""
        settings = self._settings
        return RankPrograms(
            self.engine,
            topology,
            algorithm=FOREST
            if settings.algorithm == AUTO or self.in_network is not None
            else settings.algorithm,
            pieces=settings.pieces,
            cache_dir=settings.cache_dir,
            timeout_s=settings.timeout_s,
            timed=self._watch is not None,
            whole=whole,
        )

    def replan(self, topology: Topology | None = None) -> None:
        """Go on with plans for another network of the same ranks, such as what faults leave; collective over the ranks.

        Every rank calls it between the same two calls. Results stay what they are; calls are planned anew as they come,
        by mending the trees of the first network (:func:`coppice.replan`) where there are any.

        Args:
            topology: The network, needed on rank 0; other ranks give the same one, or None.

        Raises:
            InputError: If the algorithm is a plan file, which is for one network.
            Mismatch: On every rank, if networks differ or have other ranks.
        """
        if is_plan_file(self._settings.algorithm):
            raise InputError(
                f"expected an algorithm that plans, found the plan {self._settings.algorithm}: "
                "`coppice.replan` mends a plan."
            )
        self.topology = agreed_network(self.engine, topology, ranks=self.ranks)
        self._programs = self._planned_for(self.topology, self._whole)
        self._blocks = None
        if self._watch is not None:
            self._watch.times = CallTimes()

    def __enter__(self) -> Communicator:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the engine and the jobs at a switch."""
        self.leave()
        self.engine.close()

    def leave(self) -> None:
        """Close the jobs at a switch; the engine stays open."""
        if self.in_network is not None:
            self.in_network.close()

    def prepare(
        self,
        collective: Collective,
        count: int,
        *,
        dtype: DataType | str = DataType.FLOAT32,
        op: ReduceOp | str = ReduceOp.SUM,
        root: int | None = None,
        in_place: bool = False,
    ) -> RankProgram:
        """This rank's program, planned if it is new; collective over the ranks.

        Args:
            collective: The collective.
            count: M in elements (see :mod:`coppice.program.dialects.rank.program`).
            dtype: Type of the elements.
            op: The reduction.
            root: Root rank of a rooted collective.
            in_place: Input and output are one memory.

        Raises:
            InputError: On every rank, if it cannot be planned.
            Mismatch: On every rank, if some rank asks for something else.
            RunError: If a rank is gone or does not answer.
        """
        request = CallRequest(
            collective=collective,
            count=count,
            dtype=DataType(dtype),
            op=ReduceOp(op) if collective.reduces else ReduceOp.SUM,
            root=root,
            in_place=in_place,
        )
        if self.in_network is not None:
            self.in_network.check(collective, request.dtype, request.op)
        found = self._programs.known(request)
        if found is None:
            return self._programs.make(request)
        if self._settings.check_every_call:
            agree(self.engine.exchange, collective.value, request.record())
        return found

    def all_reduce(
        self,
        buffer: Any,
        output: Any = None,
        *,
        op: ReduceOp | str = ReduceOp.SUM,
        dtype: DataType | str | None = None,
    ) -> Any:
        """Reduce the buffers of all ranks to all ranks.

        Args:
            buffer: What this rank contributes; takes the result if there is no output.
            output: Takes the result; as long as the buffer.
            op: The reduction.
            dtype: Type of the elements, where the array does not say it.

        Returns:
            The array with the result.
        """
        count = array_of(buffer).size
        if output is None:
            self._run(Collective.ALL_REDUCE, count, None, buffer, op=op, dtype=dtype)
            return buffer
        self._run(Collective.ALL_REDUCE, count, buffer, output, op=op, dtype=dtype)
        return output

    def all_gather(self, block: Any, output: Any = None, *, dtype: DataType | str | None = None) -> Any:
        """Gather the blocks of all ranks to all ranks, in rank order.

        Args:
            block: This rank's block, as long as all others; None if it lies at its place in the output already.
            output: Takes the result; a new array if there is none.
            dtype: Type of the elements, where the array does not say it.

        Returns:
            The array with the result.
        """
        if block is None:
            self._run(Collective.ALL_GATHER, self._divided(array_of(output).size), None, output, dtype=dtype)
            return output
        given = array_of(block)
        count = given.size * self.ranks
        output = np.empty(count, dtype=given.dtype) if output is None else output
        self._run(Collective.ALL_GATHER, count, block, output, dtype=dtype)
        return output

    def reduce_scatter(
        self,
        buffer: Any,
        output: Any = None,
        *,
        op: ReduceOp | str = ReduceOp.SUM,
        dtype: DataType | str | None = None,
        in_place: bool = False,
    ) -> Any:
        """Reduce the buffers of all ranks, and scatter the result by blocks.

        Args:
            buffer: What this rank contributes: a block for every rank.
            output: Takes the result; a new array if there is none.
            op: The reduction.
            dtype: Type of the elements, where the array does not say it.
            in_place: The result takes its place in the buffer; the rest of it holds partial sums afterwards.

        Returns:
            The array with the result; in place, this rank's block of the buffer.
        """
        given = array_of(buffer)
        count = self._divided(given.size)
        own = count // self.ranks
        if in_place:
            self._run(Collective.REDUCE_SCATTER, count, None, buffer, op=op, dtype=dtype)
            return given.reshape(-1)[self.rank * own : (self.rank + 1) * own]
        output = np.empty(own, dtype=given.dtype) if output is None else output
        self._run(Collective.REDUCE_SCATTER, count, buffer, output, op=op, dtype=dtype)
        return output

    def broadcast(self, buffer: Any, *, root: int = 0, dtype: DataType | str | None = None) -> Any:
        """Broadcast the root's buffer, in place.

        Returns:
            The buffer.
        """
        self._run(Collective.BROADCAST, array_of(buffer).size, None, buffer, root=root, dtype=dtype)
        return buffer

    def reduce(
        self,
        buffer: Any,
        *,
        root: int = 0,
        op: ReduceOp | str = ReduceOp.SUM,
        dtype: DataType | str | None = None,
    ) -> Any:
        """Reduce the buffers of all ranks to the root's buffer.

        Args:
            buffer: What this rank contributes; at other ranks than the root it is not written.
            root: Rank that receives the result.
            op: The reduction.
            dtype: Type of the elements, where the array does not say it.

        Returns:
            The buffer at the root, None at other ranks.
        """
        self._run(Collective.REDUCE, array_of(buffer).size, None, buffer, root=root, op=op, dtype=dtype)
        return buffer if self.rank == root else None

    def gather(
        self, block: Any, output: Any = None, *, root: int = 0, dtype: DataType | str | None = None
    ) -> Any:
        """Gather the blocks of all ranks to the root, in rank order.

        Args:
            block: This rank's block, as long as all others.
            output: At the root, takes the result; a new array if there is none.
            root: Rank that receives the blocks.
            dtype: Type of the elements, where the array does not say it.

        Returns:
            The array with the result at the root, None at other ranks.
        """
        given = array_of(block)
        count = given.size * self.ranks
        if self.rank != root:
            output = None
        elif output is None:
            output = np.empty(count, dtype=given.dtype)
        self._run(Collective.GATHER, count, block, output, root=root, dtype=dtype)
        return output

    def scatter(self, buffer: Any, output: Any, *, root: int = 0, dtype: DataType | str | None = None) -> Any:
        """Scatter the root's buffer by blocks.

        Args:
            buffer: At the root, a block for every rank; at other ranks None.
            output: Takes this rank's block; all are of the same length.
            root: Rank that has the blocks.
            dtype: Type of the elements, where the array does not say it.

        Returns:
            The output.
        """
        count = array_of(output).size * self.ranks
        given = buffer if self.rank == root else np.zeros(0, dtype=array_of(output).dtype)
        self._run(Collective.SCATTER, count, given, output, root=root, dtype=dtype)
        return output

    def all_to_all(self, buffer: Any, output: Any = None, *, dtype: DataType | str | None = None) -> Any:
        """Send block r of every rank's buffer to rank r, which stores them in rank order.

        Args:
            buffer: A block for every rank.
            output: Takes the result; a new array if there is none, and the buffer itself if that is given.
            dtype: Type of the elements, where the array does not say it.

        Returns:
            The array with the result.
        """
        given = array_of(buffer)
        count = self._divided(given.size)
        if output is buffer:
            self._run(Collective.ALL_TO_ALL, count, None, buffer, dtype=dtype)
            return buffer
        output = np.empty(count, dtype=given.dtype) if output is None else output
        self._run(Collective.ALL_TO_ALL, count, buffer, output, dtype=dtype)
        return output

    def all_to_all_unequal(
        self,
        buffer: Any,
        input_splits: Sequence[int],
        output_splits: Sequence[int] | None = None,
        output: Any = None,
        *,
        dtype: DataType | str | None = None,
    ) -> Any:
        """Send each rank a block of a length of its own, planned from the lengths of all ranks (MPI's ``Alltoallv``).

        Args:
            buffer: Blocks for rank 0, 1, 2, ..., without gaps.
            input_splits: Elements for each rank; 0 is allowed.
            output_splits: Elements from each rank; None takes what the others send.
            output: Takes the blocks of rank 0, 1, 2, ...; a new array if there is none.
            dtype: Type of the elements, where the array does not say it.

        Returns:
            The array with the result.

        Raises:
            Mismatch: On every rank, if a rank expects another length than is sent.

        Examples:
            >>> from coppice.run.engines.numpy import run_ranks
            >>> from coppice.topology.presets import preset
            >>> def work(engine):
            ...     with Communicator(engine, preset("star", gpus=3)) as group:
            ...         return group.all_to_all_unequal(np.full(engine.rank, engine.rank), [0, 0, engine.rank]).tolist()
            >>> run_ranks(3, work)
            [[], [], [1, 2, 2]]
        """
        given = np.ascontiguousarray(array_of(buffer)).reshape(-1)
        kind = data_type_of(given, dtype)
        if self._blocks is None:
            self._blocks = BlockExchange(self.engine, rates_of(self.topology))
        sent = [int(each) for each in input_splits]
        counts = self._blocks.counts(sent, output_splits, kind)
        if output is None:
            output = np.empty(int(counts[:, self.rank].sum()), dtype=given.dtype)
        self._blocks.carry_out(counts, given, output, dtype=kind, timeout_s=self.timeout_s)
        return output

    def barrier(self) -> None:
        """Return when all ranks have called this."""
        empty = np.zeros(0, dtype=np.uint8)
        self._run(Collective.BARRIER, 0, empty, empty)

    def subset(self, ranks: Sequence[int]) -> Communicator:
        """Communicator of some ranks, planned separately; called by every rank with its own group's ranks.

        Other GPUs pass on what is not theirs only where the group's ranks do not reach each other without them.

        Args:
            ranks: Ranks of this communicator; position i becomes rank i.

        Raises:
            InputError: If the engine cannot make groups, or this rank is not among them.
            Mismatch: On every rank of the group, if their lists differ.
        """
        if not isinstance(self.engine, GroupingEngine):
            raise InputError(
                f"expected an engine that makes groups, found {self.engine.name}: make one for the group itself."
            )
        return Communicator(
            self.engine.subset(ranks), topology_of(self.topology, ranks), **vars(self._settings)
        )

    def _run(
        self,
        collective: Collective,
        count: int,
        given: Any,
        output: Any,
        *,
        dtype: DataType | str | None = None,
        op: ReduceOp | str = ReduceOp.SUM,
        root: int | None = None,
    ) -> None:
        """Run a collective; in place where nothing is ``given``."""
        if root is not None and not 0 <= root < self.ranks:
            raise InputError(f"expected a root in 0 .. {self.ranks - 1}, found {root}.")
        kind = data_type_of(output if given is None else given, dtype)
        if collective.reduces:
            check_reduction(ReduceOp(op), kind)
        if self._direct is not None and self._direct.prefers_direct(collective, count * kind.itemsize):
            self._direct.run_direct(
                collective,
                given,
                output,
                count=count,
                dtype=kind,
                op=ReduceOp(op),
                root=-1 if root is None else root,
                in_place=given is None,
                timeout_s=self.timeout_s,
            )
            return
        program = self.prepare(collective, count, dtype=kind, op=op, root=root, in_place=given is None)
        self.carry_out(program, given, output, dtype=kind, op=ReduceOp(op))

    def carry_out(
        self,
        program: RankProgram,
        given: Any,
        wanted: Any,
        *,
        dtype: DataType,
        op: ReduceOp,
        timeout_s: float | None = None,
    ) -> None:
        """Run a program of :meth:`prepare`, by the engine or in the network; collective over the ranks.

        Args:
            program: This rank's program.
            given: The input, as :meth:`coppice.run.engines.engine.Engine.run` takes it.
            wanted: The output, likewise.
            dtype: Type of the elements.
            op: The reduction.
            timeout_s: Longest wait for another rank, in seconds; None for that of the communicator.

        Raises:
            RunError: If the collective did not complete.
        """
        by_switch = self.in_network if program.collective is Collective.ALL_REDUCE else None
        if by_switch is not None and by_switch.all_reduce(program, given, wanted, dtype=dtype, op=op):
            return
        limit_s = self.timeout_s if timeout_s is None else timeout_s
        begin = time.perf_counter()
        self.engine.run(program, given, wanted, dtype=dtype, op=op, timeout_s=limit_s)
        if self._watch is not None:
            seconds = time.perf_counter() - begin
            simulated_s = self._programs.simulated_s(program)
            left = self._watch.after(program, seconds, self.topology, simulated_s=simulated_s)
            if left is not None:
                self.replan(left)

    def _divided(self, elements: int) -> int:
        """The number of elements, if they make equal blocks for all ranks."""
        if elements % self.ranks:
            raise InputError(
                f"expected a buffer of equal blocks for {self.ranks} ranks, found {elements} elements: pad it to a "
                f"multiple of {self.ranks}."
            )
        return elements
