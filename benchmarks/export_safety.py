"""Exports that hang: every preset, collective and target, at every size from 1 KiB to 4 GiB.

    python benchmarks/export_safety.py [--quick] [--only PATTERN] [--write]

Each plan is exported with default options (without the race for the range of sizes, which only makes the range
smaller). A file *hangs* at a size if its thread blocks wait for each other for ever where the runtime cuts steps into
messages as its buffers need, or if proxies are told of too few steps. It is carried out with the messages of the
smallest and of the largest size, in the buffers of the target: between them, none hangs that does not at the largest
(proved in ``coppice.program.two_sided.cutting``, and tried size by size in the tests). Nothing is timed.
"""

from __future__ import annotations

import argparse
import fnmatch
from collections import Counter
from collections.abc import Iterator
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
from coppice.program.deadlock import Deadlock
from coppice.program.two_sided.channels import ChannelLimits
from coppice.program.two_sided.cutting import fifo_depth, misled_proxies, most_in_passes
from coppice.program.two_sided.lower import emit, prepare
from coppice.program.two_sided.order import check_in_parts
from coppice.program.two_sided.program import Program
from coppice.program.two_sided.structure import check_structure
from coppice.schedule.plan import Plan
from coppice.schedule.verification.report import Findings
from coppice.topology.model import Topology
from coppice.topology.presets import PRESETS, preset
from tables import Table, replace_generated

HERE = Path(__file__).resolve().parent
SMALLEST, LARGEST = 2**10, 2**32
QUICK_RANKS, MOST_RANKS = 16, 128
COLLECTIVES = tuple(each for each in Collective if each is not Collective.BARRIER)
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


def hangs(program: Program, target: MscclTarget, topology: Topology, low: int, high: int) -> bool:
    """Whether a program stands still at some size from ``low`` to ``high`` bytes."""
    messages = check_structure(program, Findings())
    assert messages is not None
    hosts = topology.host[topology.rank_nodes]
    senders = program.block_send >= 0
    between = (hosts[program.block_rank] != hosts[program.block_send])[senders].any()
    if misled_proxies(program.protocol, program.collective) and between:
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


def verdicts(topology: Topology) -> Iterator[tuple[Collective, str, Verdict]]:
    """All collectives and targets on a topology."""
    for collective in COLLECTIVES:
        root = 0 if collective.rooted else None
        try:
            made = plan(Problem(topology=topology, collective=collective, root=root)).plan
        except CoppiceError as error:
            yield collective, "-", Verdict(REFUSED, told=str(error))
            continue
        for target, runtime in TARGETS.items():
            if collective in runtime.collectives:
                yield collective, target, verdict(made, target)


def main() -> None:
    """Judge all exports and print the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help=f"up to {QUICK_RANKS} ranks only")
    parser.add_argument("--only", default="*", help="topologies that match this pattern, such as 'dgx-a100*'")
    parser.add_argument("--ranks", type=int, default=MOST_RANKS, help="most ranks of a topology")
    parser.add_argument("--write", action="store_true", help="rewrite the table in export_safety.md")
    options = parser.parse_args()
    header = ("topology", "ranks", "exports", SAFE, LIMITED, HANGS, "sending first would hang", REFUSED)
    table = Table(title="Exports by what happens from 1 KiB to 4 GiB", header=header)
    reasons: Counter[str] = Counter()
    totals: Counter[str] = Counter()
    first = 0
    for label, topology in topologies(QUICK_RANKS if options.quick else options.ranks, options.only):
        found = list(verdicts(topology))
        words = Counter(each.word for _, _, each in found)
        sending = sum(each.sends_first for _, _, each in found)
        totals += words
        first += sending
        reasons.update(
            f"{collective} on {label}{'' if target == '-' else f' for {target}'}: {each.told}"
            for collective, target, each in found
            if each.told
        )
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
    table.notes += [f"{sentence}" for sentence in sorted(reasons)]
    table.show(Console())
    if options.write:
        replace_generated(HERE / "export_safety.md", "export_safety.py", table.markdown())


if __name__ == "__main__":
    main()
