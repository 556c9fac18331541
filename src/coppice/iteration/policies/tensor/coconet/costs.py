"""Cost model of tensor programs, sequential or overlapped chunk by chunk, and the fastest of all rewrites of one.

Theory. A kernel costs its launch. A product takes its operations at the rate of products; elementwise work takes the
bytes that it reads and writes outside of its kernel at the rate of memory; of S bytes over N ranks a reduce-scatter or
an all-gather takes N - 1 hops and (N - 1) / N S at the rate of links, an all-reduce twice that; the norm of slices is
an all-reduce of one number. A send takes what a rank holds at the rate between groups. Inside a collective's kernel
elementwise work reads neither what the collective brings nor writes what it takes away.

A chain of overlapped kernels is launched at once and takes, with k chunks and t seconds each,

    sum of t / k + (k - 1) max t / k.

So an all-reduce and a send of the result, 2 (N - 1) / N S inside a group and S to the next from each rank, become a
reduce-scatter, a send of slices and an all-gather: the same inside, and S / N to the next.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from coppice.errors import InputError
from coppice.iteration.policies.tensor.coconet.program import ELEMENTWISE, OpKind, TensorProgram
from coppice.iteration.policies.tensor.coconet.rewrites import PHASES
from coppice.iteration.tasks import TaskGraph, TaskGraphBuilder

_ROUNDS = {OpKind.ALL_REDUCE: 2, OpKind.REDUCE_SCATTER: 1, OpKind.ALL_GATHER: 1}


def overlapped_seconds(times: Sequence[float], chunks: int) -> float:
    """Time of kernels that run concurrently, pipelined chunk by chunk."""
    return (sum(times) + (chunks - 1) * max(times)) / chunks


@dataclass(frozen=True)
class Volumes:
    """Bytes that a rank sends."""

    inside: float  # Bytes to its group
    between: float  # Bytes to the next group


def volumes(program: TensorProgram, element_bytes: int = 2) -> Volumes:
    """Bytes that a rank sends in a program: rings within its group, and messages to the next group."""
    inside = between = 0.0
    for name, op in program.ops.items():
        tensor = program.tensors[name]
        whole = tensor.elements * element_bytes
        if op.kind in _ROUNDS:
            inside += _ROUNDS[op.kind] * (program.ranks - 1) / program.ranks * whole
        elif op.kind is OpKind.BROADCAST:
            inside += whole
        elif op.kind is OpKind.SEND:
            between += tensor.held(program.ranks) * element_bytes
    return Volumes(inside=inside, between=between)


@dataclass(frozen=True, kw_only=True)
class Machine:
    """Constants of a GPU and its links.

    Raises:
        InputError: If a number is out of range.
    """

    flops: float = 100e12  # Operations a second of products
    memory_rate: float = 800e9  # Bytes a second that elementwise work reads and writes
    link_rate: float = 130e9  # Bytes a second to the neighbour in the ring of the group
    hop: float = 3e-6  # Seconds of a hop of the ring beside its bytes
    between_rate: float = 12.5e9  # Bytes a second of a rank to its counterpart in the next group
    between: float = 10e-6  # Seconds of such a message beside its bytes
    launch: float = 5e-6  # Seconds of a kernel beside its work
    element_bytes: int = 2  # Bytes of an element
    chunks: int = 16  # Chunks of what is overlapped

    def __post_init__(self) -> None:
        rates = (
            self.flops,
            self.memory_rate,
            self.link_rate,
            self.between_rate,
            self.element_bytes,
            self.chunks,
        )
        if min(rates) <= 0 or min(self.hop, self.between, self.launch) < 0:
            raise InputError(f"expected rates and counts above 0 and seconds of 0 or more, found {self}.")

    def kernel(self, program: TensorProgram, kernel: Sequence[str]) -> float:
        """Time of a kernel without its launch."""
        return self.communication(program, kernel) + self.computation(program, kernel)

    def communication(self, program: TensorProgram, kernel: Sequence[str]) -> float:
        """Time of a kernel's communication."""
        ranks, total = program.ranks, 0.0
        for name in kernel:
            op, tensor = program.ops[name], program.tensors[name]
            size = tensor.elements * self.element_bytes
            if op.kind in _ROUNDS:
                total += _ROUNDS[op.kind] * (ranks - 1) * (self.hop + size / ranks / self.link_rate)
            elif op.kind is OpKind.BROADCAST:
                total += (ranks - 1) * self.hop + size / self.link_rate
            elif op.kind is OpKind.SEND:
                total += self.between + tensor.held(ranks) * self.element_bytes / self.between_rate
            elif op.kind is OpKind.NORM and program.tensors[op.operands[0]].layout >= 0:
                total += 2 * (ranks - 1) * self.hop
        return total

    def computation(self, program: TensorProgram, kernel: Sequence[str]) -> float:
        """Time of a kernel's computation and memory traffic."""
        ranks, total = program.ranks, 0.0
        read: set[str] = set()
        written: set[str] = set()
        wanted = set(program.outputs.values())
        for name in kernel:
            op = program.ops[name]
            if op.kind is OpKind.MATMUL:
                left, right = (program.tensors[each] for each in op.operands)
                rows = left.held(ranks) // left.shape[1] if left.layout == 0 else left.shape[0]
                inner = left.shape[1] // ranks if left.layout == 1 else left.shape[1]
                columns = right.shape[1] // ranks if right.layout == 1 else right.shape[1]
                total += 2.0 * rows * inner * columns / self.flops
            elif op.kind in ELEMENTWISE or op.kind is OpKind.NORM:
                read |= {each for each in op.operands if each not in kernel}
                if name in wanted or any(user not in kernel for user in program.users(name)):
                    written.add(name)
        moved = sum(program.tensors[each].held(ranks) for each in read) + sum(
            program.tensors[each].held(ranks) for each in written
        )
        return total + moved * self.element_bytes / self.memory_rate

    def seconds(self, program: TensorProgram) -> float:
        """Closed-form time of a program."""
        total = 0.0
        for chain in kernel_chains(program):
            times = [self.kernel(program, kernel) for kernel in chain]
            total += self.launch
            total += times[0] if len(times) == 1 else overlapped_seconds(times, self.chunks)
        return total

    def graph(self, program: TensorProgram) -> TaskGraph:
        """Task graph of a program on one rank; all ranks are alike."""
        graph = TaskGraphBuilder()
        before: list[int] = []
        for number, chain in enumerate(kernel_chains(program)):
            launch = graph.add(
                f"launch {number}", "launch", graph.stream("kernels"), self.launch, after=before
            )
            parts = self.chunks if len(chain) > 1 else 1
            came = [launch] * parts
            for place, kernel in enumerate(chain):
                stream = graph.stream("kernels" if not place else f"beside {place}")
                seconds = self.kernel(program, kernel) / parts
                came = [
                    graph.add(f"{' '.join(kernel)} {part}", "kernel", stream, seconds, after=[came[part]])
                    for part in range(parts)
                ]
            before = [came[-1]]
        return graph.build()


def kernel_chains(program: TensorProgram) -> list[list[tuple[str, ...]]]:
    """Kernels in a valid order, overlapped ones together; slices are free and left out."""
    following = {program.kernel(first): program.kernel(second) for first, second in program.overlaps}
    inner = set(following.values())
    kernels = program.in_order() or []
    at = {frozenset(kernel): kernel for kernel in kernels}
    chains = []
    for kernel in kernels:
        if frozenset(kernel) in inner or all(program.ops[name].kind is OpKind.SLICE for name in kernel):
            continue
        chain = [kernel]
        while frozenset(chain[-1]) in following:
            chain.append(at[following[frozenset(chain[-1])]])
        chains.append(chain)
    return chains


@dataclass(frozen=True)
class Tuned:
    """Fastest program with its rewrites."""

    program: TensorProgram  # The quickest program
    seconds: float  # What it takes
    rewrites: tuple[str, ...]  # The transforms that lead to it
    tried: int  # Programs that were compared: all that there are


def variants(
    program: TensorProgram, *, most: int = 200_000, phases: int = 3
) -> Iterator[tuple[tuple[str, ...], TensorProgram]]:
    """Every distinct program reachable by rewrites, with the rewrites applied, breadth first.

    Args:
        phases: Phases of transforms: 1 changes operations only, 2 fuses as well, 3 overlaps as well.
    """
    seen = {program.key()}
    found: list[tuple[tuple[str, ...], TensorProgram]] = [((), program)]
    for phase in PHASES[:phases]:
        front = 0
        while front < len(found):
            done, each = found[front]
            front += 1
            for transform in phase:
                for name, made in transform(each):
                    key = made.key()
                    if key in seen:
                        continue
                    seen.add(key)
                    found.append(((*done, name), made))
                    if len(found) > most:
                        raise InputError(
                            f"expected {most} variants of a program at most, found more: allow more with `most`."
                        )
    yield from found


def autotune(program: TensorProgram, machine: Machine, *, most: int = 200_000) -> Tuned:
    """Fastest variant; ties go to the fewest rewrites, then to the first.

    Examples:
        >>> from coppice.iteration.policies.tensor.coconet.program import pipeline_handoff
        >>> found = autotune(pipeline_handoff(ranks=4, rows=64, columns=1024), Machine())
        >>> found.rewrites[:2]
        ('split sum along 0', 'reorder sent')
    """
    best: Tuned | None = None
    tried = 0
    for rewrites, each in variants(program, most=most):
        seconds = machine.seconds(each)
        tried += 1
        if best is None or seconds < best.seconds:
            best = Tuned(each, seconds, rewrites, 0)
    if best is None:
        raise InputError("expected a program, found none.")
    return Tuned(best.program, best.seconds, best.rewrites, tried)
