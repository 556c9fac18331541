"""What a verification says."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from fractions import Fraction

from coppice.errors import CheckError
from coppice.text import plural, shortened

__all__ = ["Findings", "Report"]

_EXAMPLES = 5


@dataclass(frozen=True, kw_only=True)
class Report:
    """Result of a verification.

    Attributes:
        ok: Everything holds.
        failures: One sentence for each violated statement, with names and numbers.
        inv_rate: Time per shard that the busiest link needs, 1 / (GB/s), exact; None where loads could not be
            counted.
        claimed: Time per shard that the plan claims, or None.
        worst_link: Id of the busiest link, -1 where none carries data.
        max_link_load: Share of its capacity that the busiest link uses in the claimed time, 1 at most if the
            claim holds; against ``inv_rate`` itself where nothing was claimed. None where loads could not be
            counted.
        redundant: Share of all bytes received that their receiver held already.
        bound_proved: The plan's cut proves its bound by counting; None where there is no bound, or where a
            single cut cannot prove it (all-reduce and all-to-all may need more than one cut).
        optimal: The bound is proved and the plan reaches it.
        ordered: The schedule claims that reductions join neighbouring intervals of ranks, and they do.
        deadlock_free: With buffers of any finite size no transfers wait for each other in a circle
            (:mod:`coppice.schedule.verification.deadlock`); None where that was not asked: for forests.
        checked: How many things were checked, by name.
    """

    ok: bool
    failures: tuple[str, ...] = ()
    inv_rate: Fraction | None = None
    claimed: Fraction | None = None
    worst_link: int = -1
    max_link_load: Fraction | None = None
    redundant: Fraction = Fraction(0)
    bound_proved: bool | None = None
    optimal: bool = False
    ordered: bool = False
    deadlock_free: bool | None = None
    checked: dict[str, int] = field(default_factory=dict)

    def __repr__(self) -> str:
        """In short what it says.

        >>> Report(ok=True, inv_rate=Fraction(1, 50), checked={"trees": 8}), Report(ok=False, failures=("a.", "b."))
        (Report(ok, 0.02 s/GB of shard; checked: 8 trees), Report(2 failures: a.))
        """
        if not self.ok:
            return f"Report({plural(len(self.failures), 'failure')}: {''.join(self.failures[:1])[:200]})"
        rate = "" if self.inv_rate is None else f", {float(self.inv_rate):.4g} s/GB of shard"
        optimal = ", optimal" if self.optimal else ""
        counts = shortened([f"{count} {name}" for name, count in self.checked.items()], 4)
        return f"Report(ok{rate}{optimal}{'; checked: ' if counts else ''}{counts})"

    def require_ok(self) -> None:
        """Do nothing if the plan holds.

        Raises:
            CheckError: With the first violated statement.
        """
        if not self.ok:
            more = f" ({len(self.failures) - 1} more.)" if len(self.failures) > 1 else ""
            msg = f"the plan does not verify: {self.failures[0]}{more}"
            raise CheckError(msg)


@dataclass
class Findings:
    """Collects failures while a plan is verified; a kind of failure shows its first few examples."""

    failures: list[str] = field(default_factory=list)

    def add(self, sentence: str) -> None:
        """Record one failure."""
        self.failures.append(sentence)

    def add_examples(self, sentences: Sequence[str], total: int, what: str) -> None:
        """Record up to a few failures of one kind, and how many more there are."""
        self.failures.extend(sentences[:_EXAMPLES])
        if total > _EXAMPLES:
            self.failures.append(f"{total - _EXAMPLES} more of the {total} {what} fail likewise.")
