"""Doctor rules for RCCL rings and trees (``NCCL_RINGS``, ``RCCL_TREES``): which are dropped, and what fails."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator

from coppice.doctor.framework import ERROR, WARNING, Complaint, Rulebook
from coppice.doctor.job_facts import SHAPES, TuningFile
from coppice.errors import InputError

_MOST_RINGS = 64
"""Half of the channels that RCCL has: they are doubled."""

_MOST_CHILDREN = 3
_MOST_TREES = 63
_MOST_CHARACTERS = 255
_SETTING = re.compile(r"\s*(?:export\s+)?(\w+)=(?P<quote>[\"']?)(.*?)(?P=quote)\s*$")
_NUMBERS = re.compile(r"(N?)([0-9]+)")


class RcclVariables(TuningFile):
    """A file with ``NCCL_RINGS`` or ``RCCL_TREES``, or the bare value."""

    def value(self, name: str) -> tuple[int, str]:
        """Line and text of a variable; a file without assignments is the value itself."""
        alone: tuple[int, str] | None = None
        for number, line in enumerate(self.text.splitlines(), start=1):
            if not line.strip() or line.lstrip().startswith("#"):
                continue
            match = _SETTING.fullmatch(line)
            if match and match[1] == name:
                return number, match[3]
            if match is None and alone is None and re.fullmatch(r"[0-9N|() ]+", line.strip()):
                alone = (number, line.strip())
        if alone is None:
            raise InputError(f"{self.file} does not set {name}: give a file with the line {name}=...")
        return alone


RING_RULES = Rulebook[RcclVariables]()
"""Rules about rings."""

TREE_RULES = Rulebook[RcclVariables]()
"""Rules about trees."""


@RING_RULES.rule("R01", ERROR, "rings that RCCL keeps", "others are dropped without a word")
def _rings(file: RcclVariables) -> Iterator[Complaint]:
    line, value = file.value("NCCL_RINGS")
    if re.search(r"^\s*(?:export\s+)?RCCL_TREES=\S", file.text, re.MULTILINE):
        yield ERROR, line, "RCCL_TREES is set as well: the rings are not looked at", "set one of the two"
    rings = [
        [(match[1], int(match[2][:9])) for match in _NUMBERS.finditer(ring)] for ring in value.split("|")
    ]
    lengths = Counter(sum(1 for kind, _ in ring if not kind) for ring in rings)
    count = file.facts.gpus_of_host
    sizes = {ranks // nodes for nodes, ranks in file.facts.shapes if ranks % nodes == 0}
    wanted = sizes or ({count} if count is not None else {lengths.most_common(1)[0][0]})
    kept = 0
    for at, ring in enumerate(rings):
        gpus = [number for kind, number in ring if not kind]
        nics = len(ring) - len(gpus)
        twice = sorted(gpu for gpu, times in Counter(gpus).items() if times > 1)
        out = sorted(gpu for gpu in gpus if gpu >= len(gpus))
        reason = None
        if len(gpus) not in wanted:
            reason = (
                f"it has {len(gpus)} GPUs, communicators have {', '.join(map(str, sorted(wanted)))} on a host"
            )
        elif twice:
            reason = f"GPU {twice[0]} stands in it twice"
        elif out:
            reason = f"GPU {out[0]} is none of 0 .. {len(gpus) - 1}"
        elif nics % 2:
            reason = f"it names {nics} NICs, which is odd"
        if reason is None:
            kept += 1
        else:
            text = f"ring {at + 1} is dropped without a word: {reason}"
            yield WARNING, line, text, "mend it or leave it out"
    if not kept:
        yield ERROR, line, "no ring is left: RCCL searches its own", "mend the rings"
    if kept > _MOST_RINGS:
        text = f"{kept} rings, which are doubled past the channels that exist"
        yield ERROR, line, text, f"keep {_MOST_RINGS} at most"


def _trees(file: RcclVariables) -> tuple[int, list[tuple[str, dict[int, int], str | None]]]:
    """Line of the variable, and of each tree: text, parent of each GPU (-1 for the root), and what is wrong with it."""
    line, value = file.value("RCCL_TREES")
    found = []
    for text in value.split("|"):
        parent: dict[int, int] = {}
        stack: list[int] = []
        problem: str | None = None
        opened = 0
        for token in re.findall(r"[0-9]+|.", text):
            if token == "(":
                opened += 1
            elif token == ")":
                opened -= 1
                if stack:
                    stack.pop()
            elif token.isdigit() and opened == len(stack) + 1:
                gpu = int(token[:9])
                if gpu in parent:
                    problem = problem or f"GPU {gpu} stands in it twice"
                if not stack and parent:
                    problem = problem or "it has two roots"
                parent.setdefault(gpu, stack[-1] if stack else -1)
                stack.append(gpu)
            else:
                problem = problem or f"{token[:20]!r} is out of place"
        if opened or not parent:
            problem = problem or "its parentheses do not match"
        found.append((text, parent, problem))
    return line, found


@TREE_RULES.rule(
    "R02", ERROR, "one node", "numbers are looked up as devices and compared with ranks", needs=SHAPES
)
def _many_nodes(file: RcclVariables) -> Iterator[Complaint]:
    line, _ = _trees(file)
    for nodes, ranks in sorted(file.facts.known_shapes):
        if nodes > 1:
            text = f"a communicator has {ranks} ranks on {nodes} nodes: trees are for one node"
            yield line, text, "set the variable for jobs of one node only"


@TREE_RULES.rule("R03", ERROR, "three children, and texts that fit", "RCCL reads past the end of its tables")
def _wide(file: RcclVariables) -> Iterator[Complaint]:
    line, trees = _trees(file)
    if len(trees) > _MOST_TREES:
        yield line, f"{len(trees)} trees, RCCL reads {_MOST_TREES}", "keep fewer"
    for at, (text, parent, problem) in enumerate(trees, start=1):
        if problem is not None:
            yield (line, f"tree {at} cannot be read: {problem}", "write node(child)(child) in parentheses")
        if len(text) > _MOST_CHARACTERS:
            yield (line, f"tree {at} has {len(text)} characters, RCCL reads {_MOST_CHARACTERS}", "shorten it")
        children = Counter(above for above in parent.values() if above >= 0)
        for gpu, count in children.items():
            if count > _MOST_CHILDREN:
                text = f"GPU {gpu} has {count} children in tree {at}, RCCL takes {_MOST_CHILDREN}"
                yield line, text, "move children to other GPUs"


@TREE_RULES.rule("R04", ERROR, "all GPUs of the box", "init fails in communicators that lack one")
def _subgroups(file: RcclVariables) -> Iterator[Complaint]:
    line, trees = _trees(file)
    everyone = {gpu for _, parent, _ in trees for gpu in parent}
    count = file.facts.gpus_of_host
    expected = set(range(count)) if count is not None else everyone
    for at, (_, parent, problem) in enumerate(trees, start=1):
        if problem is None and set(parent) != expected:
            odd = sorted(set(parent) ^ expected)[0]
            words = f"lacks GPU {odd}" if odd in expected else f"names GPU {odd}, which the box does not have"
            yield line, f"tree {at} {words}", "name every GPU of the box once"
    for nodes, ranks in sorted(file.facts.known_shapes):
        if nodes == 1 and ranks < len(expected):
            text = f"a communicator has {ranks} of the {len(expected)} GPUs of the trees: its init fails"
            yield (line, text, "set the variable around the creation of the whole box's communicator only")
