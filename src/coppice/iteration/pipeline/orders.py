"""Published pipeline orders.

Stage c * p + d is chunk c of device d of p. With forward and backward times f and b of a device for a micro-batch, m
micro-batches and v chunks an iteration takes m (f + b) + (p - 1) (f + b) / v without communication.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence

from coppice.errors import InputError
from coppice.iteration.pipeline.order import PipelineOrder, StagePass, Work
from coppice.iteration.pipeline.stages import StageTimes, weights_last


def _check(devices: int, micro_batches: int, chunks: int = 1) -> None:
    for what, value in (("devices", devices), ("micro-batches", micro_batches), ("chunks", chunks)):
        if value < 1:
            raise InputError(f"expected 1 or more {what} of a pipeline, found {value}.")


def gpipe(devices: int, micro_batches: int) -> PipelineOrder:
    """All forward passes, then all backward passes (GPipe; Huang et al., NeurIPS 2019)."""
    return breadth_first(devices, micro_batches, 1)


def breadth_first(
    devices: int, micro_batches: int, chunks: int = 1, *, stages: int | None = None
) -> PipelineOrder:
    """All micro-batches of a chunk before the next chunk (Lamy-Poirier, MLSys 2023).

    Args:
        stages: Number of stages where some devices have a chunk less than others.

    Examples:
        >>> [str(each) for each in breadth_first(2, 2, 2).devices[0]]
        ['0F0', '0F1', '2F0', '2F1', '2B0', '2B1', '0B0', '0B1']
    """
    _check(devices, micro_batches, chunks)
    stages = devices * chunks if stages is None else stages
    programs = []
    for device in range(devices):
        own = range(device, stages, devices)
        forward = [StagePass(stage, Work.FORWARD, k) for stage in own for k in range(micro_batches)]
        backward = [
            StagePass(stage, Work.BACKWARD, k) for stage in reversed(own) for k in range(micro_batches)
        ]
        programs.append((*forward, *backward))
    return PipelineOrder(devices=tuple(programs), stages=stages, micro_batches=micro_batches)


def one_f_one_b(devices: int, micro_batches: int) -> PipelineOrder:
    """1F1B (PipeDream-Flush; Narayanan et al., ICML 2021).

    Device d begins with p - 1 - d forward passes, so that it holds the activations of p - d micro-batches at most.
    """
    return interleaved(devices, micro_batches, 1)


def interleaved(devices: int, micro_batches: int, chunks: int) -> PipelineOrder:
    """Interleaved 1F1B: chunks alternate, p micro-batches of each.

    Source: Megatron-LM (Narayanan et al., SC 2021, section 2.2).

    Examples:
        >>> [str(each) for each in interleaved(2, 2, 2).devices[1]]
        ['1F0', '1F1', '3F0', '3F1', '3B0', '3B1', '1B0', '1B1']
    """
    _check(devices, micro_batches, chunks)
    if chunks > 1 and micro_batches % devices:
        raise InputError(
            f"expected micro-batches that are a multiple of {devices} devices for interleaved chunks, found "
            f"{micro_batches}: take {micro_batches + devices - micro_batches % devices}, or one chunk."
        )
    total = micro_batches * chunks
    programs = []
    for device in range(devices):

        def turn(k: int, *, work: Work, device: int = device) -> StagePass:
            group, inside = divmod(k, devices * chunks)
            chunk, k = divmod(inside, devices) if chunks > 1 else (0, inside)
            if work is Work.BACKWARD:
                chunk = chunks - 1 - chunk
            return StagePass(chunk * devices + device, work, group * devices + k)

        ahead = devices - 1 - device
        if chunks > 1:
            ahead = total if micro_batches == devices else 2 * ahead + (chunks - 1) * devices
        ahead = min(ahead, total)
        forward = [turn(k, work=Work.FORWARD) for k in range(total)]
        backward = [turn(k, work=Work.BACKWARD) for k in range(total)]
        program = forward[:ahead]
        for k in range(ahead, total):
            program += [forward[k], backward[k - ahead]]
        programs.append((*program, *backward[total - ahead :]))
    return PipelineOrder(devices=tuple(programs), stages=devices * chunks, micro_batches=micro_batches)


def zero_bubble(devices: int, micro_batches: int) -> PipelineOrder:
    """Backward passes in two parts; those of weights fill what would be bubbles (ZB-H1; Qi et al., ICLR 2024).

    Made by running it with passes of equal time. Device d of p, when it is free, takes a forward pass that has come
    while it is fewer than p - d ahead of its gradients of inputs and holds fewer than p micro-batches; else gradients
    of inputs that have come; else gradients of weights. With forward time f and times i and w of the two
    parts, all alike, the bubble is (p - 1) (f + i - w).
    """
    _check(devices, micro_batches)
    arrives: dict[StagePass, int] = {StagePass(0, Work.FORWARD, k): 0 for k in range(micro_batches)}
    programs: list[list[StagePass]] = [[] for _ in range(devices)]
    count = [dict.fromkeys(Work, 0) for _ in range(devices)]
    time = 0
    while any(each[Work.WEIGHT] < micro_batches for each in count):
        for device in range(devices):
            own = count[device]
            taken = _next_pass(device, own, arrives, time, most=devices)
            if taken is None:
                continue
            own[taken.work] += 1
            programs[device].append(taken)
            for after in _enables(taken, devices):
                arrives[after] = time + 1
        time += 1
    return PipelineOrder(devices=tuple(map(tuple, programs)), stages=devices, micro_batches=micro_batches)


def dual_pipe_v(devices: int, micro_batches: int) -> PipelineOrder:
    """DualPipeV: a V-shaped pipeline in which forward and backward of both directions are co-scheduled.

    DualPipeV (DeepSeek-AI, 2025: the bidirectional DualPipe of DeepSeek-V3, arXiv 2412.19437, section 3.2.1, cut in
    half). Device d of p has stages d and 2 p - 1 - d. In the long middle part forward passes of one run at once with
    backward passes of the other, so that exchanges of one hide behind computation of the other. Gradients of weights
    fill bubbles at both ends. With times f = i >= w of a stage and c of a forward and a backward pass that run at once,
    both of which give when both are done, the bubble is (p - 1) (c + i - 2 w): of f + i + w what it is where nothing
    hides.

    Examples:
        >>> print(" ".join(map(str, dual_pipe_v(2, 4).devices[1])))
        1F0 2F0 1F1 2F1 1F2 2B0 2F2 1B0 1F3 2B1 2F3 1B1 2B2 1B2 2I3 1I3 2W3 1W3
    """
    _check(devices, micro_batches)
    if micro_batches < 2 * devices:
        raise InputError(
            f"expected 2 micro-batches or more for each of {devices} devices that passes of both directions meet on, "
            f"found {micro_batches}: take {2 * devices}."
        )
    programs, pairs = [], set()
    for device in range(devices):
        program = _DualProgram((device, 2 * devices - 1 - device))
        ahead = devices - 1 - device
        program.forward(0, times=2 * ahead)
        for _ in range(device + 1):
            program.forward(0)
            program.forward(1)
        for _ in range(ahead):
            program.backward(1, splits=True)
            program.weight()
            program.forward(1)
        for turn in range(micro_batches - 2 * devices + device + 1):
            program.forward(0)
            # On the last device the first micro-batch has just come: nothing of it runs at once.
            program.backward(1, co_scheduled=bool(turn) or device < devices - 1)
            program.forward(1)
            program.backward(0, co_scheduled=True)
        for _ in range(ahead):
            program.backward(1)
            program.forward(1)
            program.backward(0, co_scheduled=True)
        splits = False
        for turn in range(device + 1):
            splits = splits or (turn == (device + 1) // 2 and device % 2 == 1)
            program.backward(1, splits=splits)
            splits = splits or (turn == (device + 1) // 2 and device % 2 == 0)
            program.backward(0, splits=splits)
        for _ in range(ahead):
            program.weight()
            program.backward(0, splits=True)
        while program.late:
            program.weight()
        programs.append(tuple(program.passes))
        pairs |= program.pairs
    return PipelineOrder(
        devices=tuple(programs),
        stages=2 * devices,
        micro_batches=micro_batches,
        co_scheduled=frozenset(pairs),
    )


class _DualProgram:
    """Program of a device with one stage per direction; deferred weight gradients wait in a queue."""

    def __init__(self, stages: tuple[int, int]) -> None:
        self.passes: list[StagePass] = []
        self.pairs: set[tuple[StagePass, StagePass]] = set()
        self.late: deque[StagePass] = deque()
        self._stages = stages
        self._next = {work: [0, 0] for work in (Work.FORWARD, Work.BACKWARD)}

    def forward(self, direction: int, times: int = 1) -> None:
        """Append the next forward pass of a direction."""
        for _ in range(times):
            self._add(direction, Work.FORWARD, Work.FORWARD)

    def backward(self, direction: int, *, splits: bool = False, co_scheduled: bool = False) -> None:
        """Append the next backward pass of a direction, weight gradients deferred or co-scheduled."""
        made = self._add(direction, Work.BACKWARD, Work.INPUT if splits else Work.BACKWARD)
        if splits:
            self.late.append(made._replace(work=Work.WEIGHT))
        if co_scheduled:
            self.pairs.add((self.passes[-2], made))

    def weight(self) -> None:
        """Append the longest deferred weight gradients."""
        self.passes.append(self.late.popleft())

    def _add(self, direction: int, counted: Work, work: Work) -> StagePass:
        number = self._next[counted]
        made = StagePass(self._stages[direction], work, number[direction])
        number[direction] += 1
        self.passes.append(made)
        return made


def _next_pass(
    device: int, done: dict[Work, int], arrives: dict[StagePass, int], time: int, *, most: int
) -> StagePass | None:
    """Next pass of an idle device."""
    never = time + 1
    forward = StagePass(device, Work.FORWARD, done[Work.FORWARD])
    ahead = done[Work.FORWARD] - done[Work.INPUT] < most - device
    room = done[Work.FORWARD] - done[Work.WEIGHT] < most
    if ahead and room and arrives.get(forward, never) <= time:
        return forward
    for work in (Work.INPUT, Work.WEIGHT):
        gradient = StagePass(device, work, done[work])
        if arrives.get(gradient, never) <= time:
            return gradient
    return None


def _enables(done: StagePass, stages: int) -> Sequence[StagePass]:
    """Passes that become ready after a pass."""
    stage, work, _ = done
    if work is Work.FORWARD:
        last = stage == stages - 1
        return [done._replace(work=Work.INPUT) if last else done._replace(stage=stage + 1)]
    if work is Work.INPUT:
        weight = done._replace(work=Work.WEIGHT)
        return [weight, done._replace(stage=stage - 1)] if stage else [weight]
    return []


def fast_forward(devices: int, micro_batches: int, chunks: int = 1) -> PipelineOrder:
    """All micro-batches of a chunk before the next, input gradients before weight gradients (EuroSys 2022).

    Made for forward passes, gradients of inputs and gradients of weights of equal times, with which gradients of
    weights come last; :func:`~coppice.iteration.pipeline.stages.weights_last` makes one for any times.
    """
    plain = breadth_first(devices, micro_batches, chunks)
    alike = StageTimes(forward=(1,) * plain.stages, backward=(2,) * plain.stages)
    return weights_last(plain, alike)


ORDERS: dict[str, Callable[[int, int, int], PipelineOrder]] = {
    "gpipe": lambda devices, micro_batches, _: gpipe(devices, micro_batches),
    "1f1b": lambda devices, micro_batches, _: one_f_one_b(devices, micro_batches),
    "interleaved": interleaved,
    "breadth-first": breadth_first,
    "zero-bubble": lambda devices, micro_batches, _: zero_bubble(devices, micro_batches),
    "dualpipe-v": lambda devices, micro_batches, _: dual_pipe_v(devices, micro_batches),
    "fast-forward": fast_forward,
}
"""Orders by name, of devices, micro-batches and chunks of a device."""
