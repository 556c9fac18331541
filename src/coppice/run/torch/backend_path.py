"""Backend path of collectives not left to gloo or NCCL: shared memory directly, or planned programs."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch

from coppice.bounds.all_to_all.rates import RankRates, one_box, rates_of
from coppice.collectives import Collective
from coppice.errors import CoppiceError, InputError
from coppice.planners.algorithms.catalogue import algorithms
from coppice.run.alltoallv.exchange import BlockExchange
from coppice.run.communicator.communicator import Communicator
from coppice.run.communicator.groups import agree, host_of_process, topology_of
from coppice.run.communicator.in_network import is_protocol
from coppice.run.engines.datatype import DataType, ReduceOp
from coppice.run.engines.engine import Engine
from coppice.run.engines.put_signal.engine import PutSignalEngine
from coppice.run.engines.shared_memory import Exchange, ShmEngine
from coppice.run.engines.torch.engine import TorchEngine
from coppice.run.errors import Mismatch, PeerLost
from coppice.run.planned import (
    TUNING_VARIABLE,
    AlgorithmRules,
    is_plan_file,
    read_rules,
    topology_in_file,
)
from coppice.run.torch.puts import CollectiveCall, PutChoice, open_puts
from coppice.text import parse_size, suggestion
from coppice.topology.model import Topology

_SIZES = tuple(1 << exponent for exponent in range(14, 23, 2))
_ROUNDS = 3


class BackendPath:
    """How one rank runs the collectives of a group on one kind of device: messages, shared memory or puts.

    Attributes:
        engine: Carries them out.
        threshold_bytes: M from which this path is the faster one.
        puts: Which calls are carried out by puts, where that is the way; None elsewhere, and all are carried
            out.
    """

    def __init__(
        self,
        engine: Engine,
        groups: Sequence[Communicator],
        timeout: Callable[[], float],
        threshold_bytes: int,
        *,
        puts: PutChoice | None = None,
        rates: RankRates | None = None,
    ) -> None:
        self.engine, self._groups, self._timeout = engine, groups, timeout
        # Messages of one switch are no better than those of gloo or NCCL
        self._blocks: BlockExchange | None = None
        if rates is not None and (rates.balances or not isinstance(engine, TorchEngine)):
            self._blocks = BlockExchange(engine, rates)
        self.direct = not groups and puts is None  # They need no plan, since all ranks share memory
        self.threshold_bytes, self.puts = threshold_bytes, puts

    def recording(self) -> bool:
        """Whether calls are being captured into a graph."""
        return isinstance(self.engine, PutSignalEngine) and self.engine.device.recording()

    def run(
        self,
        collective: Collective,
        given: torch.Tensor | None,
        wanted: torch.Tensor,
        *,
        count: int,
        dtype: DataType,
        op: ReduceOp = ReduceOp.SUM,
        root: int = -1,  # Root rank of a rooted collective
        # First element of each rank's block and M, where blocks differ; for direct paths
        bounds: Sequence[int] | None = None,
    ) -> None:
        """Run a collective; in place if no input is given."""
        source = None if given is None else _memory(given)
        target, timeout_s = _memory(wanted), self._timeout()
        if isinstance(self.engine, ShmEngine) and self.direct:
            self.engine.run_direct(
                collective,
                source,
                target,
                count=count,
                dtype=dtype,
                timeout_s=timeout_s,
                op=op,
                root=root,
                bounds=bounds,
                in_place=given is None,
            )
            return
        if self.puts is not None:
            call = CollectiveCall(
                collective=collective, count=count, dtype=dtype, op=op, root=root, in_place=given is None
            )
            if not self.puts.knows(call):
                self.puts.plan(call)
            taken = self.puts.group_for(call)
            if taken is None:
                raise InputError(
                    f"expected a collective that can be put, found {collective} of {count} {dtype}."
                )
            chosen: Sequence[Communicator] = (taken,)
        else:
            chosen = self._groups
        for group in chosen:
            try:
                program = group.prepare(
                    collective,
                    count,
                    dtype=dtype,
                    op=op,
                    root=root if collective.rooted else None,
                    in_place=given is None,
                )
            except InputError:  # the same on every rank: the algorithm is not for this
                if group is chosen[-1]:
                    raise
            else:
                group.carry_out(program, source, target, dtype=dtype, op=op, timeout_s=timeout_s)
                return

    def replan(self, topology: Topology | None) -> None:
        """Plan for another network of the same ranks from now on; collective over the ranks."""
        if not self._groups:
            raise InputError(
                "expected a group whose calls are planned, found one by shared memory or puts: its network stays."
            )
        for group in self._groups:
            group.replan(topology)
        rates = rates_of(self._groups[0].topology)
        if self._blocks is not None:
            self._blocks = BlockExchange(self.engine, rates)

    @property
    def exchanges_blocks(self) -> bool:
        """Whether :meth:`exchange_blocks` is for this group."""
        return self._blocks is not None

    def exchange_blocks(
        self,
        given: torch.Tensor,
        wanted: torch.Tensor,
        sent: Sequence[int],
        received: Sequence[int],
        *,
        dtype: DataType,
    ) -> None:
        """Exchange blocks of unequal lengths, in elements, as planned from all ranks' counts."""
        if self._blocks is None:
            raise InputError(
                "expected a group that plans blocks of unequal lengths, found one that does not."
            )
        self._blocks.run(
            _memory(given), _memory(wanted), sent, received, dtype=dtype, timeout_s=self._timeout()
        )

    def abort(self, reason: str) -> None:
        """Abort outstanding work, so that closing waits for nobody."""
        if isinstance(self.engine, PutSignalEngine):
            self.engine.device.abort(reason)

    def close(self) -> None:
        """Release the engine; ranks that wait for this one raise."""
        for group in self._groups:
            group.leave()
        self.engine.close()


def open_backend_path(
    store: Any,
    exchange: Exchange,  # Gives every rank the bytes of all, by the store
    rank: int,
    members: Sequence[int],  # Ranks of the world, by rank of the group
    options: Options,  # From :func:`~coppice.run.torch.backend_path.options_from`
    *,
    world: int,  # Number of ranks of the world
    device: str,  # `cpu` or `cuda`
    timeout: Callable[[], float],  # Longest wait for another rank, in seconds, as it is at the time
    # All-reduces a tensor by gloo or NCCL, and waits: the threshold is measured against it
    native: Callable[[torch.Tensor], None],
) -> BackendPath | None:
    """Open the path of a group, None where its library does everything; collective over the ranks."""
    topology, hosts, rules = _agreed(exchange, rank, members, options, device, world)
    one_host = hosts == 1
    if options.engine == "put-signal" or (options.engine == "auto" and device == "cuda"):
        asked = options.engine == "put-signal"
        putting = open_puts(store, rank, len(members), device=device, timeout_s=timeout(), asked=asked)
        if putting is not None:
            return _put_path(putting, topology, hosts, rules, options, device, timeout, native)
        if asked:
            return None
    engine: Engine
    if one_host and device == "cpu" and options.engine != "torch":
        engine = ShmEngine.connect(rank, len(members), exchange, exchange_timeout_s=timeout())
        if topology is None and options.algorithm is None:
            return BackendPath(engine, (), timeout, options.threshold_bytes or 0, rates=one_box(len(members)))
    else:
        engine = TorchEngine(store, rank, len(members), device=device, exchange_timeout_s=timeout())
    topology = topology or _star(len(members))
    names = ["forest"] if options.algorithm in (None, "forest") else [str(options.algorithm), "forest"]
    groups = [
        Communicator(
            engine,
            topology,
            algorithm=name,
            cache_dir=options.cache_dir,
            timeout_s=timeout(),
            check_every_call=bool(options.check_every_call),
        )
        for name in names
    ]
    if options.threshold_bytes is not None or groups[0].in_network is not None:
        return BackendPath(engine, groups, timeout, options.threshold_bytes or 0, rates=rates_of(topology))
    path = BackendPath(engine, groups, timeout, 0, rates=rates_of(topology))
    path.threshold_bytes = _measured_threshold(path, device, native)
    return path


def _put_path(
    engine: PutSignalEngine,
    topology: Topology | None,
    hosts: int,
    rules: AlgorithmRules | None,
    options: Options,
    device: str,
    timeout: Callable[[], float],
    native: Callable[[torch.Tensor], None],
) -> BackendPath:
    """The way by puts; by size as rules say, or else from the threshold on."""
    planned = topology or _star(engine.ranks)

    def group_of(algorithm: str) -> Communicator:
        return Communicator(
            engine,
            planned,
            algorithm=algorithm,
            pieces=1,  # those of programs that are put are another matter
            cache_dir=options.cache_dir,
            timeout_s=timeout(),
            check_every_call=bool(options.check_every_call),
        )

    puts = PutChoice(engine, group_of, algorithm=options.algorithm or "forest", rules=rules, nodes=hosts)
    path = BackendPath(engine, (), timeout, options.threshold_bytes or 0, puts=puts, rates=rates_of(planned))
    if options.threshold_bytes is None and rules is None:
        path.threshold_bytes = _measured_threshold(path, device, native)
    return path


def _star(ranks: int) -> Topology:
    """What is planned on where no topology is given: one switch."""
    from coppice.topology.presets import preset

    return preset("star", gpus=ranks)


def _agreed(
    exchange: Exchange, rank: int, members: Sequence[int], options: Options, device: str, world: int
) -> tuple[Topology | None, int, AlgorithmRules | None]:
    """The group's topology, if one is given, on how many hosts its ranks are, and rules by size, if there are any."""
    from coppice.version import __version__

    error, topology, rules = "", None, None
    try:
        topology = _topology(options, members, world)
        rules = None if options.tuning is None else read_rules(options.tuning)
    except CoppiceError as found:
        error = str(found)
    record = {
        "version": __version__,
        "engine": options.engine,
        "algorithm": options.algorithm,
        "threshold_bytes": options.threshold_bytes,
        "topology": None if topology is None else topology.sha256,
        "tuning": None if rules is None else rules.sha256,
        "check_every_call": bool(options.check_every_call),
        "device": device,
    }
    try:
        hosts = agree(exchange, "the set-up of its group", record, error=error, own=host_of_process())
    except RuntimeError as found:
        lines = str(found).splitlines() or [type(found).__name__]
        raise PeerLost(
            f"rank {rank} did not hear from all {len(members)} ranks of its group ({lines[0]}): see their output."
        ) from found
    apart = len(set(hosts))
    emulated = options.engine == "put-signal" and device == "cpu"
    if apart > 1 and (options.engine == "shm" or emulated):
        raise Mismatch(
            f"expected all ranks on one host for the engine {options.engine}, found {apart}: use auto or torch."
        )
    return topology, apart, rules


def _topology(options: Options, members: Sequence[int], world: int) -> Topology | None:
    """What a group is planned on, if something is given: a topology, or a plan, which has one."""
    spec, whole = options.topology, None
    if spec is not None:
        from coppice.topology.sources import resolve

        whole = resolve(spec)
    elif is_plan_file(options.algorithm):
        spec = str(options.algorithm)
        whole = topology_in_file(spec)
    if whole is None:
        return None
    if whole.num_ranks != world:
        raise InputError(
            f"expected a topology of {world} ranks, found {whole.num_ranks} in {spec}: start as many processes as it "
            "has GPUs."
        )
    if list(members) == list(range(world)):
        return whole
    return topology_of(whole, members)


def _measured_threshold(path: BackendPath, device: str, native: Callable[[torch.Tensor], None]) -> int:
    """The least size, of a few, at which the path is faster: the same on every rank."""
    for size in _SIZES:
        data = torch.ones(size // 4, dtype=torch.float32, device=device)

        def by_path(data: torch.Tensor = data) -> None:
            path.run(
                Collective.ALL_REDUCE, None, data, count=data.numel(), dtype=DataType.FLOAT32, op=ReduceOp.MAX
            )

        seconds = [_least_seconds(path, device, lambda data=data: native(data)), 0.0]  # type: ignore[misc]
        seconds[1] = _least_seconds(path, device, by_path)
        if seconds[1] < seconds[0]:
            return size
    return 4 * _SIZES[-1]


def _least_seconds(path: BackendPath, device: str, run: Callable[[], None]) -> float:
    """Of a few rounds after a first one, each begun together; of all ranks the slowest."""
    least = float("inf")
    run()
    for _ in range(_ROUNDS):
        path.engine.exchange(b"")
        begin = time.perf_counter()
        run()
        if device == "cuda":
            torch.cuda.synchronize()
        least = min(least, time.perf_counter() - begin)
    return max(float(answer) for answer in path.engine.exchange(str(least).encode()))


def _memory(tensor: torch.Tensor) -> Any:
    """The tensor as engines take it: bytes on the CPU, the tensor itself on a GPU."""
    if tensor.device.type != "cpu":
        return tensor
    if not tensor.numel():
        return np.zeros(0, dtype=np.uint8)
    return tensor.detach().reshape(-1).view(torch.uint8).numpy()


ENGINES = ("auto", "torch", "shm", "put-signal")


@dataclass(frozen=True, kw_only=True)
class Options:
    """Options of a process group, given to ``init_process_group(pg_options=...)``.

    What is None is taken from the environment, and otherwise has its default. All ranks need the same.
    """

    # A preset name or file; its rank r is rank r of the world. `COPPICE_TOPOLOGY`; without one, ranks of one
    # host use shared memory directly, others are planned as if on one switch.
    topology: str | None = None
    # `auto`, `torch` (messages of gloo or NCCL), `shm` (shared memory of one host) or `put-signal` (puts and
    # signals: of NCCL or torch's symmetric memory for tensors on GPUs, which is what `auto` tries first
    # there; on CPUs the emulated device, for tests). `COPPICE_ENGINE`.
    engine: str | None = None
    # `forest`, a name of the catalogue, a plan file (`plan.json`) or a set of plans (`plans/`, by the size of the
    # message) for its collective, on its topology, with forests for the rest; or a protocol of switches such as
    # `switchml`. `COPPICE_ALGORITHM`.
    algorithm: str | None = None
    # Smaller tensors (M of :mod:`coppice.program.dialects.rank.program`, in bytes) go to gloo or NCCL.
    # `COPPICE_THRESHOLD`; without one it is measured.
    threshold_bytes: int | None = None
    # File of `coppice tune export --to put-signal-rules`, which says by collective and size what is put and
    # by which algorithm, in place of `algorithm` and `threshold_bytes`. `COPPICE_TUNING`.
    tuning: str | None = None
    cache_dir: str | None = None  # Where plans are kept. `COPPICE_CACHE`.
    # Compare every planned call between the ranks before it runs, not only new ones.
    # `TORCH_DISTRIBUTED_DEBUG=DETAIL`.
    check_every_call: bool | None = None


def options_from(given: Options | None, environment: Mapping[str, str] | None = None) -> Options:
    """Options with the environment's values in place of None.

    Args:
        environment: Variables (default: those of this process).

    Examples:
        >>> found = options_from(Options(engine="shm"), {"COPPICE_ENGINE": "torch", "COPPICE_THRESHOLD": "64K"})
        >>> found.engine, found.threshold_bytes, found.topology
        ('shm', 65536, None)
    """
    variables = os.environ if environment is None else environment
    said = given or Options()
    threshold = said.threshold_bytes
    if threshold is None and (text := variables.get("COPPICE_THRESHOLD", "").strip()):
        threshold = parse_size(text, option="COPPICE_THRESHOLD")
    if threshold is not None and threshold < 0:
        raise InputError(f"expected a threshold of 0 bytes or more, found {threshold}.")
    engine = said.engine or variables.get("COPPICE_ENGINE") or "auto"
    if engine not in ENGINES:
        raise InputError(f"expected the engine {', '.join(ENGINES)}, found {engine!r}: choose one of them.")
    algorithm = said.algorithm or variables.get("COPPICE_ALGORITHM") or None
    if algorithm not in (None, "forest") and not is_plan_file(algorithm) and not is_protocol(str(algorithm)):
        known = {name for name, _ in algorithms()}
        if algorithm not in known:
            hint = suggestion(str(algorithm), known, otherwise="`coppice algorithms` lists all.")
            raise InputError(f"expected forest or the name of an algorithm, found {algorithm!r}: {hint}")
    checked = said.check_every_call
    if checked is None:
        checked = variables.get("TORCH_DISTRIBUTED_DEBUG", "").upper() == "DETAIL"
    return replace(
        said,
        topology=said.topology or variables.get("COPPICE_TOPOLOGY") or None,
        engine=engine,
        algorithm=algorithm,
        threshold_bytes=threshold,
        tuning=said.tuning or variables.get(TUNING_VARIABLE) or None,
        check_every_call=checked,
    )
