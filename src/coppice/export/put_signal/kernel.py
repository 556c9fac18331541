"""Export a plan as one CUDA file: a kernel for NCCL's device API with the programs of all ranks in a table.

An all-reduce whose trees are stars at a switch that adds and copies, as operations on memory that stands for all.

A star of sums, all ranks to a switch and their sum to the root, is one load by the root that the switch adds up; a star
of copies is one store that the switch copies (multimem of PTX, NVLS). The load takes the root's own part by way of the
switch too, so that all ranks are root of an equal part, whatever the plan's roots are: (1 + 1/n) M of each link, the
least. Nobody may load before all have begun, and nobody may end before all have loaded and stored: a signal of each to
each, before and after.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from fractions import Fraction
from importlib import resources

import numpy as np

from coppice.collectives import Collective
from coppice.errors import InputError
from coppice.export.formats import Exported, PutSignalKernelOptions, PutSignalOptions
from coppice.export.put_signal.program import provenance_of, verified_put_signal
from coppice.program.dialects.put_signal.program import PutSignalAct, PutSignalCall, PutSignalProgram
from coppice.program.memory import all_sizes
from coppice.schedule.forest import Forest, Phase, expanded
from coppice.schedule.plan import Plan
from coppice.text import percent_text, plural


def multimem_rows(ranks: int, rank: int) -> Iterator[str]:
    """Operations of a rank as kernel calls, with as many chunks as ranks.

    Examples:
        >>> list(multimem_rows(2, 1))
        ['signal(0)', 'wait(0, 1)', 'sum_to_all(1)', 'signal(0)', 'wait(0, 1)']
    """
    peers = [peer for peer in range(ranks) if peer != rank]
    meet = [*(f"signal({peer})" for peer in peers), *(f"wait({peer}, 1)" for peer in peers)]
    yield from (*meet, f"sum_to_all({rank})", *meet)


def check_stars(forest: Forest) -> None:
    """Refuse forests that such a kernel does not support.

    Args:
        forest: A verified forest that branches at switches.
    """
    if forest.collective is not Collective.ALL_REDUCE:
        raise InputError(
            f"expected an all_reduce where switches add, found {forest.collective}: plan without `in_network`."
        )
    whole = expanded(forest)
    topology = whole.topology
    nodes = set(topology.rank_nodes.tolist())
    for tree in range(whole.num_trees):
        root, edges = (
            int(whole.tree_root[tree]),
            [(source, target) for source, target, _ in whole.edges(tree)],
        )
        switches = {end for edge in edges for end in edge if topology.rank[end] < 0}
        if whole.tree_phase[tree] == Phase.REDUCE:
            edges = [(target, source) for source, target in edges]
        centre = switches.pop() if len(switches) == 1 else -1
        if sorted(edges) != sorted([(root, centre), *((centre, node) for node in nodes - {root})]):
            raise InputError(
                "expected trees in which all ranks meet at one switch, found another: a kernel has no way to add or "
                "copy in several switches or between boxes; plan one box, or without `in_network`."
            )


_SWITCHES = """
//
// Sums and copies are made by the switches of the box: each chunk has a rank that loads the sum of all ranks' inputs
// through an address that stands for the memory of all (multimem), and stores to all. Ranks meet before and after."""
_BUFFERS = ("INPUT", "OUTPUT", "STAGING")
_IN_BLOCKS = {Collective.ALL_GATHER: (1, 0), Collective.REDUCE_SCATTER: (0, 1)}
_MOST_ROWS = 2**17
"""Of 28 bytes each, in the GPU's memory; a rank number has 16 bits, and a program of more ranks has more rows."""


def export_put_signal_kernel(
    plan: Plan, options: PutSignalKernelOptions, *, on_stage: Callable[[str], None] = lambda _: None
) -> Exported:
    """Export a CUDA kernel for NCCL's device API: loads and stores within a box, GIN puts between boxes.

    Blocks follow each other as it is, each on its part of every chunk, so that one piece is usual; more need less
    staging memory.
    """
    if isinstance(plan.body, Forest) and plan.body.branches_at_switches:
        return _switched(plan, plan.body, options)
    form = PutSignalOptions(pieces=options.pieces, graphs=False, staging=options.staging, name=options.name)
    program = verified_put_signal(plan, form, on_stage=on_stage)
    if program.num_operations > _MOST_ROWS:
        raise InputError(
            f"expected at most {_MOST_ROWS:,} operations of all ranks in a kernel, found {program.num_operations:,}: "
            "use fewer `pieces`, or a plan with fewer trees."
        )
    on_stage("writing the kernel")
    rows = [list(_rows(program, rank)) for rank in range(program.num_ranks)]
    block = program.num_chunks // program.num_ranks
    text = _text(
        plan,
        rows,
        name=program.name,
        chunks=program.num_chunks,
        slots=all_sizes(program).max(axis=1).tolist(),
        shift=[each * block for each in (*_IN_BLOCKS.get(program.collective, (0, 0)), 0)],
        in_place=program.in_place and _shares(program),
    )
    operations = plural(sum(map(len, rows)), "operation")
    share = Fraction(int(program.staging.max(initial=0)), program.num_chunks)
    return Exported(
        text=text,
        notes=(
            "for NCCL 2.29 or later, built anew for every release: `nvcc -std=c++17 -arch=sm_90 -c FILE`.",
            f"{operations} of all ranks; staging memory is {percent_text(share)} of the message.",
        ),
        suffix=".cu",
    )


def _switched(plan: Plan, forest: Forest, options: PutSignalKernelOptions) -> Exported:
    """The kernel of a plan in which switches add and copy."""
    if options.pieces != 1 or options.staging is not None:
        raise InputError(
            "`pieces` and `staging` are for transfers between ranks, and switches need neither: leave them out."
        )
    check_stars(forest)
    ranks = forest.topology.num_ranks
    text = _text(
        plan,
        [list(multimem_rows(ranks, rank)) for rank in range(ranks)],
        name=options.name or f"{forest.collective}-{plan.topology.name}",
        chunks=ranks,
        slots=[ranks, ranks, 0],
        shift=[0, 0, 0],
        in_place=True,
        multimem=True,
    )
    return Exported(
        text=text,
        notes=(
            "for NCCL 2.29 or later, built anew for every release: `nvcc -std=c++17 -arch=sm_90 -c FILE`.",
            "switches add and copy (multimem): for GPUs of sm_90 and later in one NVLink domain.",
        ),
        suffix=".cu",
    )


def _text(
    plan: Plan,
    rows: list[list[str]],
    *,
    name: str,
    chunks: int,
    slots: list[int],
    shift: list[int],
    in_place: bool,
    multimem: bool = False,
) -> str:
    """The file, with the operations of all ranks."""
    begin = np.cumsum([0, *map(len, rows)]).tolist()
    lines = [
        line for rank, found in enumerate(rows) for line in (f"// rank {rank}", *(f"{row}," for row in found))
    ]
    provenance = provenance_of(plan)
    label = re.sub(r"[^\x20-\x7e]|\\", "?", name)
    words = {
        "name": label,
        "namespace": "coppice_" + re.sub(r"\W", "_", label, flags=re.ASCII),
        "collective": str(plan.problem.collective),
        "ranks": str(len(rows)),
        "chunks": str(chunks),
        "version": provenance["coppice"],
        "planner": provenance["planner"],
        "topology": re.sub(r"[^\x20-\x7e]|\\", "?", provenance["topology"]),
        "slots": ", ".join(map(str, slots)),
        "in_place": "true" if in_place else "false",
        "shift": ", ".join(map(str, shift)),
        "program": "".join(f"  {line}\n" for line in lines),
        "begin": ", ".join(map(str, begin)),
        "multimem": str(int(multimem)),
        "switches": _SWITCHES if multimem else "",
    }
    template = resources.files("coppice.export.put_signal").joinpath("kernel.cu").read_text()
    return re.sub(r"@(\w+)@", lambda found: words[found[1]], template)


def _shares(program: PutSignalProgram) -> bool:
    """Whether input and output of all ranks begin alike in place; at the root of a gather they do not."""
    return program.collective not in (Collective.GATHER, Collective.SCATTER)


def _rows(program: PutSignalProgram, rank: int) -> Iterator[str]:
    """The operations of a rank.

    What the network card puts is flushed before anything may overwrite it: the rank itself, or who learns from a later
    message that it may.
    """
    kind, unflushed = program.call_kind, False
    for call in range(int(program.rank_start[rank]), int(program.rank_start[rank + 1])):
        if unflushed and kind[call] != PutSignalCall.WAIT:
            yield "flush()"
            unflushed = False
        rows = np.arange(program.call_start[call], program.call_start[call + 1])
        yield from (_row(program, op) for op in rows.tolist())
        unflushed |= bool((program.act[rows] == PutSignalAct.PUT).any())
    if unflushed:
        yield "flush()"


def _row(program: PutSignalProgram, op: int) -> str:
    """An operation as a call of the kernel's own."""
    peer, count = int(program.peer[op]), int(program.count[op])

    def place(which: str) -> str:
        buffer = _BUFFERS[int(getattr(program, f"{which}_buffer")[op])]
        return f"{buffer}, {int(getattr(program, which)[op])}"

    match program.act[op]:
        case PutSignalAct.PUT:
            return f"put({peer}, {place('source')}, {place('target')}, {count})"
        case PutSignalAct.SIGNAL:
            return f"signal({peer})"
        case PutSignalAct.WAIT:
            return f"wait({peer}, {count})"
        case PutSignalAct.COPY:
            return f"copy({place('source')}, {place('target')}, {count})"
        case _:
            return f"sum({place('source')}, {place('addend')}, {place('target')}, {count})"
