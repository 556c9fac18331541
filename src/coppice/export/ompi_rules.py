"""Rules files by which the component coll/tuned of Open MPI picks an algorithm, by ranks and size.

    classic    numbers in a fixed order, read by all versions
    json       Open MPI 6.0 and later

A rule of the classic form holds from its size to the next one, and a list of rules from its number of ranks to the next
one; the first list holds for all smaller numbers, too. Rules for P ranks therefore stand between lists for 0 and P + 1
ranks that leave the choice to Open MPI (number 0).
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import isqrt

from coppice import __version__
from coppice.collectives import Collective
from coppice.errors import InputError
from coppice.export.exported import Exported
from coppice.export.ompi_choices import COLLECTIVES, FUNCTIONS, Choice, choices_of, compared
from coppice.topology.model import Topology

__all__ = ["FORMS", "Rule", "export_ompi_rules", "rules_file", "rules_of"]

FORMS = ("classic", "json")

DEFAULT_SIZES = tuple(1 << power for power in range(6, 28, 3))


@dataclass(frozen=True, kw_only=True)
class Rule:
    """From one size to the next rule's: which algorithm.

    Attributes:
        first_bytes: Least M.
        id: Number of the algorithm, 0 leaves the choice to Open MPI.
        fanout: Number of chains, 0 where it has none.
        segment_bytes: Size of a segment, 0 for whole messages.
    """

    first_bytes: int
    id: int
    fanout: int = 0
    segment_bytes: int = 0


def export_ompi_rules(
    topology: Topology,
    *,
    collectives: Sequence[str] = tuple(map(str, COLLECTIVES)),
    sizes: Sequence[int] = DEFAULT_SIZES,
    form: str = "classic",
    jobs: int | None = None,
) -> Exported:
    """A rules file for communicators of all ranks, from simulated times of Open MPI's algorithms.

    Args:
        topology: Where it runs, one process on each GPU, ranks as numbered.
        collectives: Names of collectives.
        sizes: Sizes M at which they are compared.
        form: One of :data:`FORMS`.
        jobs: Number of processes that compare.

    Raises:
        InputError: If a name is unknown, or Open MPI has no rules for a collective.
    """
    chosen = []
    for name in dict.fromkeys(collectives):
        if name not in list(Collective) or Collective(name) not in FUNCTIONS:
            msg = f"expected collectives out of {', '.join(FUNCTIONS)}, found {name!r}."
            raise InputError(msg)
        chosen.append(Collective(name))
    if topology.num_ranks < 2 or not chosen or not sizes:
        msg = "expected 2 ranks, a collective and a size at least: there is nothing to choose otherwise."
        raise InputError(msg)
    found = {
        collective: choices_of(compared(topology, collective, sizes, jobs=jobs)) for collective in chosen
    }
    rules = {collective: rules_of(choices) for collective, choices in found.items()}
    notes = [_words(collective, choices) for collective, choices in found.items()]
    return Exported(
        text=rules_file(
            rules,
            topology.num_ranks,
            form=form,
            comment=f"coppice {__version__}, simulated on {topology.name} {topology.sha256[:16]}",
        ),
        notes=(
            *notes,
            "times are simulated: measure before you rely on them",
            "mpirun --mca coll ^han --mca coll_tuned_use_dynamic_rules 1 --mca coll_tuned_dynamic_rules_filename FILE",
        ),
        suffix=".json" if form == "json" else ".conf",
    )


def rules_of(choices: Sequence[Choice]) -> tuple[Rule, ...]:
    """Rules from choices at ascending sizes: equal neighbours become one, ranges meet at the geometric mean.

    Examples:
        >>> rules_of([Choice(size_bytes=4, id=3), Choice(size_bytes=16, id=3), Choice(size_bytes=64, id=4)])
        (Rule(first_bytes=0, id=3, fanout=0, segment_bytes=0), Rule(first_bytes=33, id=4, fanout=0, segment_bytes=0))
    """
    found: list[Rule] = []
    for at, choice in enumerate(choices):
        first = isqrt(choices[at - 1].size_bytes * choice.size_bytes) + 1 if at else 0
        rule = Rule(first_bytes=first, id=choice.id, fanout=choice.fanout, segment_bytes=choice.segment_bytes)
        last = found[-1] if found else None
        if last is None or (last.id, last.fanout, last.segment_bytes) != (
            rule.id,
            rule.fanout,
            rule.segment_bytes,
        ):
            found.append(rule)
    return tuple(found)


def rules_file(
    rules: Mapping[Collective, Sequence[Rule]], ranks: int, *, form: str = "classic", comment: str = ""
) -> str:
    """The text of a rules file for communicators of exactly ``ranks`` ranks.

    Args:
        rules: Rules of each collective, the first one from 0 bytes.
        ranks: Number of ranks.
        form: One of :data:`FORMS`.
        comment: A line for the head of the classic form.

    Raises:
        InputError: If the form is unknown, or rules do not begin at 0 bytes and ascend.
    """
    if form not in FORMS:
        msg = f"expected a form that is one of {', '.join(FORMS)}, found {form!r}."
        raise InputError(msg)
    for collective, listed in rules.items():
        starts = [rule.first_bytes for rule in listed]
        if not starts or starts[0] != 0 or starts != sorted(set(starts)):
            msg = f"expected rules of {collective} from 0 bytes upwards, found sizes {starts[:8]}."
            raise InputError(msg)
    return _json(rules, ranks) if form == "json" else _classic(rules, ranks, comment)


def _classic(rules: Mapping[Collective, Sequence[Rule]], ranks: int, comment: str) -> str:
    lines = [f"# {' '.join(comment.split())}"] if comment else []
    lines.append(f"{len(rules)} # collectives")
    for collective in sorted(rules, key=lambda each: FUNCTIONS[each][1]):
        name, number = FUNCTIONS[collective]
        lines += [f"{number} # {name}", "3 # numbers of ranks"]
        lines += ["0 # ranks and more", "1 # rule: as Open MPI decides", "0 0 0 0", f"{ranks} # ranks"]
        lines.append(f"{len(rules[collective])} # rules: bytes, algorithm, fan-out, segment bytes")
        lines += [
            f"{rule.first_bytes} {rule.id} {rule.fanout} {rule.segment_bytes}" for rule in rules[collective]
        ]
        lines += [f"{ranks + 1} # ranks and more", "1 # rule: as Open MPI decides", "0 0 0 0"]
    return "".join(f"{line}\n" for line in lines)


def _json(rules: Mapping[Collective, Sequence[Rule]], ranks: int) -> str:
    collectives = {}
    for collective, listed in rules.items():
        ends: list[int | str] = [rule.first_bytes - 1 for rule in listed[1:]]
        collectives[FUNCTIONS[collective][0]] = [
            {
                "comm_size_min": ranks,
                "comm_size_max": ranks,
                "rules": [
                    {
                        "msg_size_min": rule.first_bytes,
                        "msg_size_max": end,
                        "alg": rule.id,
                        "faninout": rule.fanout,
                        "seg_size": rule.segment_bytes,
                        "reqs": 0,
                    }
                    for rule, end in zip(listed, [*ends, "inf"], strict=True)
                ],
            }
        ]
    document = {"rule_file_version": 3, "module": "tuned", "collectives": collectives}
    return json.dumps(document, indent=2) + "\n"


def _words(collective: Collective, choices: Sequence[Choice]) -> str:
    gains = [choice.default_us / choice.time_us for choice in choices if choice.id and choice.default_us]
    changed = sum(1 for choice in choices if choice.id)
    words = f"{collective}: another algorithm than Open MPI's own at {changed} of {len(choices)} sizes"
    return words + (f", up to {max(gains):.3g} times as fast" if gains else "")
