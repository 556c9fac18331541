"""Results of verification: a verdict, and one sentence for each violation."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from typing import ClassVar

from coppice.errors import CheckError
from coppice.schedule.verification.sums import SumOrder
from coppice.text import percent_text, plural, shortened

_EXAMPLES = 5


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """Common part of all verification results."""

    subject: ClassVar[str]  # What is judged, as failures name it

    ok: bool  # Everything holds
    failures: tuple[str, ...] = ()  # One sentence for each violated statement, with names and numbers
    checked: dict[str, int] = field(default_factory=dict)  # How many things were checked, by name

    def require_ok(self) -> None:
        """Raise unless the verification passed."""
        if not self.ok:
            more = f" ({len(self.failures) - 1} more.)" if len(self.failures) > 1 else ""
            raise CheckError(f"the {self.subject} does not verify: {self.failures[0]}{more}")


@dataclass(frozen=True, kw_only=True)
class Report(Verdict):
    """Result of the verification of a plan: a :class:`Verdict` with its cost."""

    subject: ClassVar[str] = "plan"

    # Time per shard that the busiest link needs, 1 / (GB/s), exact; None where loads could not be counted
    inv_rate: Fraction | None = None
    claimed: Fraction | None = None  # Time per shard that the plan claims, or None
    worst_link: int = -1  # Id of the busiest link, -1 where none carries data
    # Share of its capacity that the busiest link uses in the claimed time, 1 at most if the claim holds;
    # against `inv_rate` itself where nothing was claimed. None where loads could not be counted.
    max_link_load: Fraction | None = None
    redundant: Fraction = Fraction(0)  # Share of all bytes received that their receiver held already
    # The plan's cut or witness proves its bound by counting; None where there is no bound, or no witness
    # though more than one cut is needed (all-reduce, all-to-all), as in files of older versions
    bound_proved: bool | None = None
    # Time per shard that is proved to be necessary, 1 / (GB/s); None where nothing is
    proved_inv_rate: Fraction | None = None
    slower: str = ""  # What is proved to take that time or more, in words; empty where nothing is proved
    # Trees per unit of weight that the plan's forest has, where a bound on such forests is proved
    whole_trees: int | None = None
    # That bound, time per shard in 1 / (GB/s); of two phases the sum of theirs
    whole_trees_inv_rate: Fraction | None = None
    whole_phases: int = 1  # Phases, one after the other, of which that bound is
    # Time per shard that any smaller number of trees is proved to take; None where nothing is
    fewer_trees_inv_rate: Fraction | None = None
    # What the plan's bound says about plans of another kind than this one, in words; empty where it says
    # nothing of that sort
    beside: str = ""
    max_height: int | None = (
        None  # Most hops of trees, as their shape counts them; None where that was not counted
    )
    fewest_open: bool = False  # The fewest trees were asked for, and that fewer will not do is not proved
    optimal: bool = False  # The plan takes the time that is proved to be necessary
    # The schedule claims that reductions join neighbouring intervals of ranks, and they do
    ordered: bool = False
    # With buffers of any finite size no transfers wait for each other in a circle
    # (:mod:`coppice.schedule.verification.transfers`); None where that was not asked: for forests
    deadlock_free: bool | None = None
    # In which order the plan adds; None where it adds nothing, a switch adds, or that was not asked
    sums: SumOrder | None = None

    @property
    def gap(self) -> Fraction | None:
        """Upper bound on the relative gap to the proved bound; None where nothing is proved or counted."""
        if self.proved_inv_rate is None or not self.inv_rate:
            return None
        return 1 - self.proved_inv_rate / self.inv_rate

    @property
    def proof_in_words(self) -> str:
        """Describe what is proved about the plan's time.

        >>> half, third = Fraction(1, 2), Fraction(1, 3)
        >>> proved = Report(ok=True, inv_rate=half, proved_inv_rate=third, slower="schedule", bound_proved=True)
        >>> proved.proof_in_words
        'within 33.3% of optimal, proved'
        >>> Report(ok=True, inv_rate=half).proof_in_words
        'not proved: there is no witness of the bound; plan again to have one'
        """
        if not self.ok:
            return "not proved"
        if self.optimal:
            return f"optimal, proved: no {self.slower} is faster{self._fewer_in_words()}"
        if not self.bound_proved or self.gap is None:
            words = "not proved: there is no witness of the bound; plan again to have one"
        elif self.gap < 0:
            words = f"faster than any {self.slower}, proved"
        else:
            words = f"within {percent_text(self.gap)} of optimal, proved"
        if self.whole_trees is None or self.whole_trees_inv_rate is None or not self.inv_rate:
            return f"{words}{self._fewer_in_words()}"
        loss = 1 - self.whole_trees_inv_rate / self.inv_rate
        near = f"within {percent_text(loss)} of optimal" if loss > 0 else "optimal"
        near = near if loss >= 0 else "faster than any"
        phases = " in two phases" if self.whole_phases > 1 else ""
        number = plural(self.whole_trees, "tree")
        return f"{words}; {near} with {number} per root{phases}, proved{self._fewer_in_words()}"

    def _fewer_in_words(self) -> str:
        """What is proved about smaller numbers of trees."""
        if self.beside:
            return f"; {self.beside}"
        if self.fewest_open:
            return "; that fewer trees will not do is not proved"
        if self.fewer_trees_inv_rate is None or not self.proved_inv_rate:
            return ""
        longer = self.fewer_trees_inv_rate / self.proved_inv_rate - 1
        return f"; fewer trees take at least {percent_text(longer)} longer than the bound, proved"

    def __repr__(self) -> str:
        """Short text of the verdict.

        >>> Report(ok=True, inv_rate=Fraction(1, 50), checked={"trees": 8}), Report(ok=False, failures=("a.", "b."))
        (Report(ok, 0.02 s/GB of shard; checked: 8 trees), Report(2 failures: a.))
        """
        if not self.ok:
            return f"Report({plural(len(self.failures), 'failure')}: {''.join(self.failures[:1])[:200]})"
        rate = "" if self.inv_rate is None else f", {float(self.inv_rate):.4g} s/GB of shard"
        optimal = ", optimal" if self.optimal else ""
        counts = shortened([f"{count} {name}" for name, count in self.checked.items()], 4)
        return f"Report(ok{rate}{optimal}{'; checked: ' if counts else ''}{counts})"


@dataclass
class Findings:
    """Collect violations during verification; each kind keeps its first few examples."""

    failures: list[str] = field(default_factory=list)

    def add(self, sentence: str) -> None:
        """Add one violation."""
        self.failures.append(sentence)

    def add_examples(self, sentences: Sequence[str], total: int, what: str) -> None:
        """Add a few violations of one kind, and their total number."""
        self.failures.extend(sentences[:_EXAMPLES])
        if total > _EXAMPLES:
            self.failures.append(f"{total - _EXAMPLES} more of the {total} {what} fail likewise.")
