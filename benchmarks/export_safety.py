"""Exports that hang: every preset, collective and target, at every size from 1 KiB to 4 GiB.

    python benchmarks/export_safety.py [--quick | --large] [--only PATTERN] [--write]

Each plan is exported with default options (without the race for the range of sizes, which only makes the range
smaller). A file *hangs* at a size if its thread blocks wait for each other for ever where the runtime cuts steps into
messages as its buffers need, or if proxies are told of too few steps. It is carried out with the messages of the
smallest and of the largest size, in the buffers of the target: between them, none hangs that does not at the largest
(proved in ``thread_blocks.cutting``, and tried size by size in the tests). Nothing is timed. ``--large``
judges 128 and 256 ranks, in one process that gets at most 4 GiB of memory.
"""

from __future__ import annotations

import argparse
import fnmatch
import resource
from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console

from coppice.bounds.problem import Problem
from coppice.collectives import Collective
from coppice.errors import CoppiceError, InputError
from coppice.export.msccl.document import parse_document
from coppice.export.msccl.export import USUAL_SIZES
from coppice.export.msccl.program import MscclOptions, rough_program
from coppice.export.msccl.reader import program_of
from coppice.export.msccl.targets import TARGETS, MscclTarget, target_named
from coppice.export.msccl.writer import msccl_xml
from coppice.fitting.trees import fit_trees
from coppice.planners.planning import plan
from coppice.program.dialects.thread_blocks.channels import ChannelLimits
from coppice.program.dialects.thread_blocks.cutting import fifo_depth, most_in_passes, proxy_step_deadlock
from coppice.program.dialects.thread_blocks.lower import emit, prepare
from coppice.program.dialects.thread_blocks.order import check_in_parts
from coppice.program.dialects.thread_blocks.program import Program
from coppice.program.dialects.thread_blocks.structure import check_structure
from coppice.program.order import Deadlock
from coppice.schedule.plan import Plan
from coppice.schedule.verification.report import Findings
from coppice.topology.model import Topology
from coppice.topology.presets import PRESETS, preset
from tables import Table, replace_generated

HERE = Path(__file__).resolve().parent
SMALLEST, LARGEST = 2**10, 2**32
QUICK_RANKS, MOST_RANKS = 16, 128
COLLECTIVES = tuple(each for each in Collective if each is not Collective.BARRIER)
MOST_MEMORY = 4 * 2**30
"""Address space of the process that judges large clusters, in bytes."""
LARGE: Mapping[str, Mapping[str, int | tuple[int, ...]]] = {
    "dgx-1v x 16": {"boxes": 16},
    "dgx-1v x 32": {"boxes": 32},
    "dgx-a100 x 16": {"boxes": 16},
    "dgx-a100 x 32": {"boxes": 32},
    "dgx-a100-pcie x 16": {"boxes": 16},
    "dgx-h100 x 16": {"boxes": 16},
    "dgx-h100 x 32": {"boxes": 32},
    "dgx-b200 x 32": {"boxes": 32},
    "mi250 x 8": {"boxes": 8},
    "mi250 x 16": {"boxes": 16},
    "mi300x x 16": {"boxes": 16},
    "mi300x x 32": {"boxes": 32},
    "fat-tree of 8 leaves": {"leaves": 8, "gpus_per_leaf": 16},
    "fat-tree of 16 leaves": {"leaves": 16, "gpus_per_leaf": 16},
    "torus of 8 x 16": {"dims": (8, 16)},
    "torus of 16 x 16": {"dims": (16, 16)},
    "hypercube of 7 dimensions": {"dimension": 7},
}
"""Clusters of 128 and 256 ranks: presets by the first word, with their parameters."""
SAFE, LIMITED, HANGS, REFUSED = "safe at every size", "limited by maxBytes", "HANGS", "refused"


@dataclass(frozen=True)
class Verdict:
    """What became of one export.

    Attributes:
        word: One of the four words above.
        sends_first: It would hang at some size if all thread blocks sent before they receive.
        told: Why it is refused, or the largest size that it takes.
    """

    word: str
    sends_first: bool = False
    told: str = ""


def topologies(most_ranks: int, only: str) -> Iterator[tuple[str, Topology]]:
    """Every preset in 1, 2 and 4 boxes, as far as it has boxes and no more ranks than that."""
    for name in PRESETS:
        for boxes in (1, 2, 4):
            label = name if boxes == 1 else f"{name} x {boxes}"
            if not fnmatch.fnmatch(label, only):
                continue
            try:
                topology = preset(name) if boxes == 1 else preset(name, boxes=boxes)
            except InputError:
                continue
            if topology.num_ranks <= most_ranks:
                yield label, topology


def large_topologies(only: str) -> Iterator[tuple[str, Topology]]:
    """The clusters of :data:`LARGE`."""
    for label, parameters in LARGE.items():
        if fnmatch.fnmatch(label, only):
            yield label, preset(label.split()[0], **parameters)


def judged_collectives(label: str) -> Collection[Collective]:
    """Collectives that are judged on a cluster: all, but no all-to-all of more than 64 ranks on direct links.

    Its flow takes minutes to find.
    """
    direct = label in LARGE and label.startswith(("torus", "hypercube"))
    return [each for each in COLLECTIVES if not (direct and each is Collective.ALL_TO_ALL)]


def hangs(program: Program, target: MscclTarget, topology: Topology, low: int, high: int) -> bool:
    """Whether a program deadlocks at some size from ``low`` to ``high`` bytes."""
    messages = check_structure(program, Findings())
    assert messages is not None
    hosts = topology.host[topology.rank_nodes]
    senders = program.block_send >= 0
    between = (hosts[program.block_rank] != hosts[program.block_send])[senders].any()
    if proxy_step_deadlock(program.protocol, program.collective) and between:
        return True
    passes = most_in_passes(program, target.buffers)
    if passes is not None and high > passes:
        return True
    whole = program.num_chunks
    slots = [max(size // whole, 1) for size in (low, high)]
    try:
        for together in {
            target.buffers.together(program.protocol, program.collective, slot) for slot in slots
        }:
            check_in_parts(program, messages, depth=fifo_depth(program.protocol), together=together)
    except Deadlock:
        return True
    return False


def export_of(made: Plan, target: str) -> tuple[Plan, Program]:
    """The program of a plan with default options, as its file says it, and the plan that it is of."""
    found = fit_trees(
        made, lambda body: rough_program(body, target, MscclOptions()), instances=1, sizes=USUAL_SIZES
    )
    text = msccl_xml(found.program, target=target)
    return found.plan, program_of(parse_document(text.encode(), file="export.xml")).program


def verdict(made: Plan, target: str) -> Verdict:
    """What becomes of the export of a plan."""
    runtime = target_named(target)
    try:
        fitted, program = export_of(made, target)
    except CoppiceError as error:
        return Verdict(REFUSED, told=str(error))
    topology = fitted.topology
    high = LARGEST if program.max_bytes is None else min(program.max_bytes, LARGEST)
    prepared = prepare(
        fitted.body,
        in_place=program.in_place and not program.out_of_place,
        by_nic=runtime.by_nic,
        max_count=runtime.max_count - 1,
    )
    limits = ChannelLimits(channels=max(program.num_channels, 1), peers=runtime.max_peers)
    plain = emit(prepared, limits, fused=not runtime.refused_types, any_size=False, protocol=program.protocol)
    sends_first = hangs(plain, runtime, topology, SMALLEST, LARGEST)
    if hangs(program, runtime, topology, SMALLEST, high):
        return Verdict(HANGS, sends_first)
    if high < LARGEST:
        return Verdict(LIMITED, sends_first, told=f"{high:,} bytes")
    return Verdict(SAFE, sends_first)


def verdicts(
    topology: Topology,
    collectives: Collection[Collective] = COLLECTIVES,
    targets: Collection[str] = tuple(TARGETS),
) -> Iterator[tuple[Collective, str, Verdict]]:
    """Collectives and targets on a topology."""
    for collective in collectives:
        root = 0 if collective.rooted else None
        try:
            made = plan(Problem(topology=topology, collective=collective, root=root)).plan
        except CoppiceError as error:
            yield collective, "-", Verdict(REFUSED, told=str(error))
            continue
        for target in targets:
            if collective in TARGETS[target].collectives:
                yield collective, target, verdict(made, target)


def main() -> None:
    """Judge all exports and print the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help=f"up to {QUICK_RANKS} ranks only")
    parser.add_argument("--large", action="store_true", help="clusters of 128 and 256 ranks only")
    parser.add_argument("--only", default="*", help="topologies that match this pattern, such as 'dgx-a100*'")
    parser.add_argument("--ranks", type=int, default=MOST_RANKS, help="most ranks of a topology")
    parser.add_argument("--write", action="store_true", help="rewrite the table in export_safety.md")
    options = parser.parse_args()
    header = ("topology", "ranks", "exports", SAFE, LIMITED, HANGS, "sending first would hang", REFUSED)
    size = " on 128 and 256 ranks" if options.large else ""
    table = Table(title=f"Exports by what happens from 1 KiB to 4 GiB{size}", header=header)
    reasons: list[str] = []
    told: dict[str, Counter[str]] = {LIMITED: Counter(), REFUSED: Counter()}
    totals: Counter[str] = Counter()
    first = 0
    chosen = topologies(QUICK_RANKS if options.quick else options.ranks, options.only)
    if options.large:
        resource.setrlimit(resource.RLIMIT_AS, (MOST_MEMORY, MOST_MEMORY))
        chosen = large_topologies(options.only)
    for label, topology in chosen:
        found = list(verdicts(topology, judged_collectives(label)))
        words = Counter(each.word for _, _, each in found)
        sending = sum(each.sends_first for _, _, each in found)
        totals += words
        first += sending
        for collective, target, each in found:
            if each.told:
                told[each.word][f"{collective}{'' if target == '-' else f' for {target}'}"] += 1
                reasons.append(f"{collective} on {label} for {target}: {each.told}")
        counts = [words[word] for word in (SAFE, LIMITED, HANGS)]
        table.rows.append(
            (
                label,
                str(topology.num_ranks),
                str(sum(counts)),
                *map(str, counts),
                str(sending),
                str(words[REFUSED]),
            )
        )
        print(*table.rows[-1], sep="  ", flush=True)
    counts = [totals[word] for word in (SAFE, LIMITED, HANGS)]
    table.rows.append(("all", "", str(sum(counts)), *map(str, counts), str(first), str(totals[REFUSED])))
    for word, which in told.items():
        if which:
            names = ", ".join(f"{name} ({count})" for name, count in sorted(which.items()))
            table.notes.append(f"{word[0].upper()}{word[1:]}: {names}.")
    table.show(Console())
    print(*sorted(reasons), sep="\n")
    if options.large:
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
        print(f"{peak} MiB of memory at most")
    if options.write:
        script = "export_safety.py --large" if options.large else "export_safety.py"
        replace_generated(HERE / "export_safety.md", script, table.markdown())


if __name__ == "__main__":
    main()
