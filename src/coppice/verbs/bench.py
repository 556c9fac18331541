"""Benchmark algorithms against the library's own collective, from a launched program."""

from __future__ import annotations

import os
from collections.abc import Iterator
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

from msgspec import Struct

from coppice.collectives import Collective
from coppice.errors import InputError
from coppice.options import AnySizes, argument, option, parse_settings
from coppice.options.calls import verb
from coppice.options.shared import (
    USUAL_SIZES,
    BoxesOption,
    EngineOption,
    RoundsOption,
    SetOption,
    TimeoutOption,
    TogetherOption,
)

if TYPE_CHECKING:
    from coppice.run.bench.measuring import BenchRow
    from coppice.run.engines.engine import Engine
    from coppice.topology.model import Topology

TOPOLOGY_VARIABLE = "COPPICE_TOPOLOGY"
_USUAL = "forest,ring,native"


class BenchOptions(Struct, frozen=True, kw_only=True):
    """Options of a benchmark."""

    algorithms: Annotated[
        str,
        option(
            "forest, names of `coppice algorithms`, plan files and sets of plans (folders), native (the library's own) "
            "and direct (of --engine shm).",
            "--algorithm",
            "-a",
            metavar="LIST",
        ),
    ] = _USUAL
    engine: EngineOption = None
    topology: Annotated[
        str | None,
        option(
            f"Preset or file [default: ${TOPOLOGY_VARIABLE}, else that of a plan, or one switch between all ranks].",
            metavar="TOPOLOGY",
        ),
    ] = None
    boxes: BoxesOption = None
    settings: SetOption = None
    rounds: RoundsOption = 20
    warmup: Annotated[int, option("Rounds before.", "-w", "--warmup-iters", ge=0)] = 5
    dtype: Annotated[str, option("Such as float32, bfloat16, int64.", "-d", "--datatype")] = "float32"
    op: Annotated[str, option("sum, avg, min, max, product.", "-o", "--op")] = "sum"
    root: Annotated[int, option("Root rank.", "-r", "--root", metavar="RANK", ge=0)] = 0
    in_place: Annotated[bool, option("Input and output are one memory.")] = False
    timeout: TimeoutOption = 300.0
    together: TogetherOption = None
    skew: Annotated[
        str | None,
        option(
            "Unequal blocks of an all-to-all: the k-th rank gets 1/k^S (zipf:S), one gets N times as much (hot:N), or "
            "a matrix. Algorithms are direct and two-stage (planned at run time), optimal (planned before), native, "
            "and those of the catalogue.",
            metavar="zipf:S|hot:N|FILE",
        ),
    ] = None

    @property
    def spec(self) -> str | None:
        """The topology that is named here or in the environment."""
        return self.topology or os.environ.get(TOPOLOGY_VARIABLE)

    @property
    def names(self) -> list[str]:
        """The algorithms."""
        chosen = self.algorithms
        if self.skew is not None and chosen == _USUAL:
            chosen = "direct,two-stage,native"
        return [name.strip() for name in chosen.split(",") if name.strip()]

    @property
    def given(self) -> str | None:
        """The first plan file or set of plans among the algorithms."""
        from coppice.run.planned import is_plan_file

        return next(filter(is_plan_file, self.names), None)

    def network(self, ranks: int) -> Topology:
        """What is planned for."""
        from coppice.run.planned import topology_in_file
        from coppice.topology.load import load

        if self.spec is None and self.given is not None:
            return topology_in_file(self.given)
        if self.spec is not None:
            parameters: dict[str, Any] = dict(parse_settings(self.settings or ()))
            return load(self.spec, boxes=self.boxes, **parameters)
        if self.together is not None:
            raise InputError(
                f"expected the topology that the groups were planned on, found none: give `topology`, or set "
                f"{TOPOLOGY_VARIABLE}."
            )
        return load("star", gpus=ranks)

    def checked(self, collective: Collective | str | None) -> Collective | None:
        """The collective; None where several jobs run at once.

        Raises:
            InputError: If there is neither or both.
        """
        if (collective is None) == (self.together is None):
            found = "neither" if collective is None else "both"
            raise InputError(f"expected COLLECTIVE or `together`, found {found}: give one.")
        named = None if collective is None else Collective.named(collective)
        if self.skew is not None and named is not Collective.ALL_TO_ALL:
            raise InputError(
                f"expected all_to_all with `skew`, found {named or 'several jobs'}: leave `skew` out."
            )
        return named

    def rows(
        self, end: Engine, network: Topology, collective: Collective | None, sizes: list[int]
    ) -> Iterator[BenchRow]:
        """The measured rows, as soon as each is there; collective over the ranks."""
        from coppice.run.bench.measuring import bench as measure
        from coppice.run.bench.skewed import bench_skewed
        from coppice.run.bench.together import bench_together
        from coppice.run.engines.datatype import DataType, ReduceOp

        if collective is None or self.together is not None:
            yield from bench_together(
                end,
                network,
                Path(self.together or ""),
                dtype=_named(DataType, self.dtype),
                op=_named(ReduceOp, self.op),
                rounds=self.rounds,
                warmup=self.warmup,
                timeout_s=self.timeout,
            )
            return
        if self.skew is not None:
            yield from bench_skewed(
                end,
                network,
                self.skew,
                algorithms=self.names,
                sizes=sizes,
                dtype=_named(DataType, self.dtype),
                rounds=self.rounds,
                warmup=self.warmup,
                timeout_s=self.timeout,
            )
            return
        yield from measure(
            end,
            network,
            collective,
            algorithms=self.names,
            sizes=sizes,
            dtype=_named(DataType, self.dtype),
            op=_named(ReduceOp, self.op),
            root=self.root,
            in_place=self.in_place,
            rounds=self.rounds,
            warmup=self.warmup,
            timeout_s=self.timeout,
        )


class BenchCall(BenchOptions, frozen=True):
    """A benchmark of a collective at sizes."""

    collective: Annotated[
        Collective | str | None, argument("all_reduce, all_gather, reduce_scatter, broadcast, ...")
    ] = None
    sizes: Annotated[AnySizes, argument("Message sizes M.")] = USUAL_SIZES


@verb(BenchCall)
def bench(asked: BenchCall) -> list[BenchRow]:
    """Benchmark algorithms and the library's own collective in one run, interleaved round by round.

    Every rank of a program that torchrun, mpirun or `coppice lab run` started calls it, with the same arguments, and
    gets the same rows. With `together` the plans of several groups run at once (:func:`plan_groups`, ``.save()``), and
    each has a row.

    Raises:
        InputError: On every rank, if something cannot be requested.
        RunError: If a rank is lost.

    Examples:
        >>> import coppice
        >>> coppice.bench("all_reduce", "1K", engine="smoke")
        Traceback (most recent call last):
        coppice.errors.InputError: expected `engine` torch, mpi, shm, put-signal, found 'smoke': choose one of them.
    """
    from coppice.run.engines.launched import engine_name, open_engine
    from coppice.text import sizes_of

    collective, sizes = asked.checked(asked.collective), list(sizes_of(asked.sizes))
    end = open_engine(engine_name(asked.engine), timeout_s=asked.timeout)
    try:
        return list(asked.rows(end, asked.network(end.ranks), collective, sizes))
    finally:
        end.close()


_Kind = TypeVar("_Kind", bound=StrEnum)


def _named(kind: type[_Kind], text: str) -> _Kind:
    try:
        return kind(text.strip().lower())
    except ValueError:
        raise InputError(f"expected one of {', '.join(kind)}, found {text!r}.") from None
