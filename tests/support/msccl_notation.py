"""Short notation for small MSCCL XML files.

A thread block is ``(send, recv, channel, "step; step; ...")``; a step is its type, the slots that it reads and writes,
how many, and what it waits for: ``rrc i2>o2 x2 @1.0`` reduces slots 2 and 3 of the input with a message into slots 2
and 3 of the output once step 0 of thread block 1 is done.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

Block = tuple[int, int, int, str]

_STEP = re.compile(
    r"(?P<type>[a-z]+)( (?P<src>[ios]-?\d+))?(>(?P<dst>[ios]-?\d+))?( x(?P<cnt>\d+))?( @(?P<tb>\d+)\.(?P<step>\d+))?"
)
_WRITES_ONLY = ("r", "rcs")


@dataclass(frozen=True)
class File:
    """A file and what is true of it.

    Attributes:
        text: The file.
        depth: Least depth of connections with which it is right, or 0 where it never is.
        fault: Regular expression of the failure if it is wrong at depth 2.
        warning: Regular expression of a warning, or "".
    """

    text: str
    depth: int = 1
    fault: str = ""
    warning: str = ""


def pair(first: list[Block], second: list[Block]) -> list[list[Block]]:
    """Thread blocks of two GPUs."""
    return [first, second]


def file_text(
    coll: str,
    chunks: int,
    gpus: Sequence[Sequence[Block]],
    *,
    slots: tuple[int, int, int] | Sequence[tuple[int, int, int]],
    proto: str = "Simple",
    inplace: int = 1,
    outofplace: int = 0,
    root: int | None = None,
    most: int = 0,
) -> str:
    """The text of a file.

    Args:
        coll: As in the file.
        chunks: ``nchunksperloop``.
        gpus: Thread blocks of each GPU.
        slots: Slots of input, output and scratch, of every GPU or of each.
        proto: Protocol.
        inplace: As in the file.
        outofplace: As in the file.
        root: Attribute ``root``, if any.
        most: Largest size in bytes, 0 for no limit.
    """
    channels = 1 + max(channel for blocks in gpus for *_, channel, _ in blocks)
    attributes = (
        f'name="sample" proto="{proto}" nchannels="{channels}" nchunksperloop="{chunks}" ngpus="{len(gpus)}" '
    )
    attributes += (
        f'coll="{coll}" inplace="{inplace}" outofplace="{outofplace}" minBytes="0" maxBytes="{most}"'
    )
    if root is not None:
        attributes += f' root="{root}"'
    lines = [f"<algo {attributes}>"]
    for rank, blocks in enumerate(gpus):
        one = slots if isinstance(slots[0], int) else slots[rank]
        lines.append(f'  <gpu id="{rank}" i_chunks="{one[0]}" o_chunks="{one[1]}" s_chunks="{one[2]}">')
        steps = [
            [_STEP.fullmatch(each.strip()) for each in text.split(";") if each.strip()] for *_, text in blocks
        ]
        awaited = {
            (int(each["tb"]), int(each["step"])) for block in steps for each in block if each and each["tb"]
        }
        for place, (send, recv, channel, _) in enumerate(blocks):
            lines.append(f'    <tb id="{place}" send="{send}" recv="{recv}" chan="{channel}">')
            for number, step in enumerate(steps[place]):
                assert step, blocks[place]
                lines.append(f"      {_step_text(step, number, (place, number) in awaited)}")
            lines.append("    </tb>")
        lines.append("  </gpu>")
    return "\n".join([*lines, "</algo>", ""])


def _step_text(step: re.Match[str], number: int, is_awaited: bool) -> str:
    first, second = step["src"], step["dst"]
    if step["type"] in _WRITES_ONLY:
        first, second = second, first
    source, target = first or "i-1", second or "i-1"
    count = step["cnt"] or ("0" if step["type"] == "nop" else "1")
    return (
        f'<step s="{number}" type="{step["type"]}" srcbuf="{source[0]}" srcoff="{source[1:]}" dstbuf="{target[0]}" '
        f'dstoff="{target[1:]}" cnt="{count}" depid="{step["tb"] or -1}" deps="{step["step"] or -1}" '
        f'hasdep="{int(is_awaited)}"/>'
    )
