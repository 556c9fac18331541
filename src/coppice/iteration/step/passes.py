"""Passes of stages as rows of tasks: what each pass of each stage consists of, whole or block by block."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from coppice.iteration.pipeline.order import Work
from coppice.iteration.step.block import BACKWARD, FORWARD, RECOMPUTE, GroupExchange, LayerBlock, Step
from coppice.iteration.step.overlap import Overlap
from coppice.iteration.step.palette import Kind, Palette

__all__ = ["KIND_OF_WORK", "Row", "Rows", "exchange_kind"]

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
    """The tasks of a pass, one after the other.

    Attributes:
        forms: TaskForm of each.
        begins: First task of each block, where blocks are apart.
        ends: Last task of each block.
        gathers: First task of a block, and the form of the gather that it waits for.
        scatters: Last task of a block, and the form of the scatter that follows.
    """

    forms: list[int] = field(default_factory=list)
    begins: dict[int, int] = field(default_factory=dict)
    ends: dict[int, int] = field(default_factory=dict)
    gathers: list[tuple[int, int]] = field(default_factory=list)
    scatters: list[tuple[int, int]] = field(default_factory=list)


@dataclass(frozen=True)
class Rows:
    """Makes rows of tasks.

    Attributes:
        step: The step.
        overlap: What runs beside computation.
        palette: Where forms are numbered.
        one_stream: What blocks a device runs on its own stream, so that a bound counts it.
        contention: Share of a device that exchanges beside computation take from it.
    """

    step: Step
    overlap: Overlap
    palette: Palette
    one_stream: bool
    contention: float

    def whole(self, stage: int, work: Work, device: int) -> Row:
        """A pass in one piece: its computation, then its exchanges of each kind."""
        row = Row()
        blocks = self.step.stages[stage]
        row.forms.append(self._compute(work, device, sum(self._seconds(block, work) for block in blocks)))
        row.forms += self._exchanges(self._inside(blocks, work), device)
        return row

    def by_block(self, stage: int, work: Work, device: int, *, updates: bool, starts: Iterable[int]) -> Row:
        """A pass block by block.

        Args:
            stage: The stage.
            work: The pass.
            device: Its device.
            updates: The optimizer steps before each block.
            starts: Blocks before which a task stands that takes no time.
        """
        row = Row()
        blocks, marked = self.step.stages[stage], set(starts)
        every = sum(block.parameters for block in blocks)
        numbers = range(len(blocks))
        for number in numbers if work is Work.FORWARD else reversed(numbers):
            block = blocks[number]
            first = row.begins[number] = len(row.forms)
            if number in marked:
                row.forms.append(self.palette.add("", Kind("barrier", "start"), device, 0.0))
            if updates and every and self.step.optimizer:
                seconds = self.step.optimizer[stage] * block.parameters / every
                if seconds:
                    row.forms.append(
                        self.palette.add(f"device {device}", Kind("optimizer", "optimizer"), device, seconds)
                    )
            row.forms.append(self._compute(work, device, self._seconds(block, work)))
            row.forms += self._exchanges(self._inside([block], work), device)
            row.ends[number] = len(row.forms) - 1
            if self.overlap.gathers_ahead:
                self._ahead(row, block, work, device, first)
        return row

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
