"""Passes of stages as rows of tasks: what each pass of each stage consists of, whole or block by block."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from coppice.iteration.pipeline.order import Work
from coppice.iteration.step.block import BACKWARD, FORWARD, RECOMPUTE, GroupExchange, LayerBlock, Step
from coppice.iteration.step.overlap import Overlap
from coppice.iteration.step.palette import Kind, Palette

KIND_OF_WORK = {
    Work.FORWARD: Kind("compute", "forward"),
    Work.BACKWARD: Kind("compute", "backward"),
    Work.INPUT: Kind("compute", "input gradient"),
    Work.WEIGHT: Kind("compute", "weight gradient"),
}
_PHASES = {
    Work.FORWARD: (FORWARD,),
    Work.BACKWARD: (RECOMPUTE, BACKWARD),
    Work.INPUT: (RECOMPUTE, BACKWARD),
    Work.WEIGHT: (),
}


def exchange_kind(part: str, each: GroupExchange) -> Kind:
    """What an exchange is as a task."""
    return Kind(part, each.collective, each.group, each.link)


@dataclass
class Row:
    """The tasks of a pass, one after the other."""

    forms: list[int] = field(default_factory=list)  # TaskForm of each
    begins: dict[int, int] = field(default_factory=dict)  # First task of each block, where blocks are apart
    ends: dict[int, int] = field(default_factory=dict)  # Last task of each block
    # First task of a block, and the form of the gather that it waits for
    gathers: list[tuple[int, int]] = field(default_factory=list)
    # Last task of a block, and the form of the scatter that follows
    scatters: list[tuple[int, int]] = field(default_factory=list)


@dataclass(frozen=True)
class Rows:
    """Makes rows of tasks."""

    step: Step  # The step
    overlap: Overlap  # What runs beside computation
    palette: Palette  # Where forms are numbered
    one_stream: bool  # What blocks a device runs on its own stream, so that a bound counts it
    contention: float  # Share of a device that exchanges beside computation take from it

    def whole(self, stage: int, work: Work, device: int) -> Row:
        """A pass in one piece: its computation, then its exchanges of each kind."""
        row = Row()
        blocks = self.step.stages[stage]
        row.forms.append(self._compute(work, device, sum(self._seconds(block, work) for block in blocks)))
        row.forms += self._exchanges(self._inside(blocks, work), device)
        return row

    def by_block(self, stage: int, work: Work, device: int, *, starts: Iterable[int], last: bool) -> Row:
        """A pass block by block.

        Args:
            starts: Blocks before which a task stands that takes no time.
            last: It is the last of its kind, whose order the overlap may choose.
        """
        row = Row()
        blocks, marked = self.step.stages[stage], set(starts)
        numbers = range(len(blocks))
        turns = [(work, number) for number in (numbers if work is Work.FORWARD else reversed(numbers))]
        if work is Work.BACKWARD and last:
            turns = list(self.overlap.backward.get(stage, turns))
        for part, number in turns:
            block = blocks[number]
            first = row.begins[number] = len(row.forms)
            if number in marked:
                row.forms.append(self.palette.add("", Kind("barrier", "start"), device, 0.0))
            row.forms.append(self._compute(part, device, self._seconds(block, part)))
            row.forms += self._exchanges(self._inside([block], part), device)
            row.ends[number] = len(row.forms) - 1
            if self.overlap.gathers_ahead:
                self._ahead(row, block, part, device, first)
        return row

    def updates(self, stage: int, device: int) -> dict[int, int]:
        """The forms of the optimizer's step over each block of a stage."""
        blocks = self.step.stages[stage]
        every = sum(block.parameters for block in blocks)
        if not every or not self.step.optimizer:
            return {}
        return {
            number: self.palette.add(
                f"device {device}",
                Kind("optimizer", "optimizer"),
                device,
                self.step.optimizer[stage] * block.parameters / every,
            )
            for number, block in enumerate(blocks)
            if block.parameters
        }

    def send(self, device: int, target: int) -> int:
        """The form of what a device sends to another."""
        each = self.step.send or GroupExchange(group="pp", collective="send", size_bytes=0.0, seconds=0.0)
        stream = f"device {device}" if self._blocks_here else f"link {device} to {target}"
        return self.palette.add(stream, exchange_kind("send", each), device, each.seconds, each.loads)

    @property
    def _blocks_here(self) -> bool:
        return self.one_stream and self.overlap.sends_block

    def beside(self, stream: str, each: GroupExchange, device: int, priority: int = 0) -> int:
        """The form of an exchange beside computation."""
        loads = {**each.loads, "SMs": self.contention} if self.contention else each.loads
        return self.palette.add(
            f"{stream} {device}", exchange_kind("message", each), device, each.seconds, loads, priority
        )

    def _ahead(self, row: Row, block: LayerBlock, work: Work, device: int, first: int) -> None:
        """What replicas exchange about a block outside of the pass."""
        for each in block.exchanges:
            if each.group != "dp" or not each.seconds:
                continue
            gathers = each.collective == "all_gather"
            if gathers and each.when in _PHASES[work]:
                row.gathers.append((first, self.beside("gathers", each, device)))
            if not gathers and work in (Work.BACKWARD, Work.WEIGHT):
                row.scatters.append((len(row.forms) - 1, self.beside("network", each, device)))

    def _seconds(self, block: LayerBlock, work: Work) -> float:
        """Computation of a pass over a block."""
        if work is Work.FORWARD:
            return block.forward
        inputs, weights = block.recompute + block.input_gradient, block.weight_gradient
        return {Work.BACKWARD: inputs + weights, Work.INPUT: inputs, Work.WEIGHT: weights}[work]

    def _compute(self, work: Work, device: int, seconds: float) -> int:
        loads = {"SMs": 1.0} if self.contention else None
        return self.palette.add(f"device {device}", KIND_OF_WORK[work], device, seconds, loads)

    def _inside(self, blocks: Sequence[LayerBlock], work: Work) -> Iterator[GroupExchange]:
        """Exchanges inside a pass that hold it up."""
        for block in blocks:
            for each in block.exchanges:
                scatters = each.group == "dp" and each.collective == "reduce_scatter"
                if self.overlap.gathers_ahead and each.group == "dp":
                    continue
                if scatters:  # with the gradients of weights
                    if work in (Work.BACKWARD, Work.WEIGHT):
                        yield each
                elif each.when in _PHASES[work]:
                    yield each

    def _exchanges(self, exchanges: Iterable[GroupExchange], device: int) -> list[int]:
        """Their forms, those of a kind together."""
        seconds: dict[Kind, float] = {}
        taken: dict[Kind, dict[str, float]] = {}
        for each in exchanges:
            if each.seconds:
                kind = exchange_kind("exchange", each)
                seconds[kind] = seconds.get(kind, 0.0) + each.seconds
                links = taken.setdefault(kind, {})
                for link, share in each.loads.items():
                    links[link] = links.get(link, 0.0) + share * each.seconds
        stream = f"device {device}" if self.one_stream else f"exchanges {device}"
        return [
            self.palette.add(
                stream, kind, device, total, {link: busy / total for link, busy in taken[kind].items()}
            )
            for kind, total in seconds.items()
        ]
