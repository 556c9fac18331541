"""`coppice claims`: published claims next to what is measured here, with a verdict on each."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from coppice.cli.options.declaring import with_options
from coppice.cli.output import print_json, print_lines, progress_bar
from coppice.errors import CheckError
from coppice.options import argument
from coppice.options.shared import JsonOption
from coppice.text import number, plural

if TYPE_CHECKING:
    from coppice.published.measuring import JudgedClaim


@with_options()
def claims(
    system: Annotated[
        str | None,
        argument(
            "Only claims of this system, such as ForestColl or SCCL [default: of all].", metavar="[SYSTEM]"
        ),
    ] = None,
    *,
    as_json: JsonOption = False,
) -> None:
    """Measure what was published about a system, or about all, and judge each claim.

    Each claim has a command of this program, which is run now: all of them take minutes. What takes longer still was
    measured by a benchmark, which is named with its date.

    \b
    Examples:
      coppice claims SCCL
      coppice claims --json
    """  # noqa: D301 (\b is for the help formatter)
    from coppice.published.measuring import judged_claims
    from coppice.published.records import claims_of

    asked = claims_of(system)
    found: list[JudgedClaim] = []
    with progress_bar("measuring claims") as on_progress:
        for finding in judged_claims(asked):
            found.append(finding)
            if on_progress is not None:
                on_progress(len(found), len(asked), finding.claim.system)
    if as_json:
        print_json("claims", {"rows": [finding.record() for finding in found]})
    else:
        _print_found(found)
    failed = [finding for finding in found if finding.fault]
    if failed:
        raise CheckError(
            f"expected a figure for each claim, found none for {plural(len(failed), 'claim')}; "
            f"of {failed[0].claim.system}: {failed[0].fault}"
        )


def _print_found(found: list[JudgedClaim]) -> None:
    from coppice.published.measuring import commands_of
    from coppice.published.verdicts import VERDICTS

    width = max(len(verdict) for verdict in VERDICTS)
    lines: list[str] = []
    for system in dict.fromkeys(each.claim.system for each in found):
        lines.append(system)
        for each in found:
            if each.claim.system == system:
                lines += [f"  {each.verdict:<{width}}  {each.claim.claim} ({each.claim.source})"]
                details = [_figures(each), *commands_of(each.claim), each.why]
                lines += [f"  {'':<{width}}  {detail}" for detail in details if detail]
    counts = [f"{sum(each.verdict == verdict for each in found)} {verdict}" for verdict in VERDICTS]
    print_lines([*lines, "", f"{plural(len(found), 'claim')}: {', '.join(counts)}"])


def _figures(finding: JudgedClaim) -> str:
    claim = finding.claim
    if claim.published is None:
        return ""
    published = f"published {_figure(claim.published)} {claim.unit}".rstrip()
    if finding.measured is None:
        return published
    when = (
        "" if claim.recorded is None else f" on {claim.recorded.date}, benchmarks/{claim.recorded.benchmark}"
    )
    return f"{published}, measured {_figure(finding.measured)}{when}"


def _figure(value: float) -> str:
    """A figure with the digits that it needs.

    >>> _figure(5.0), _figure(346.6666), _figure(0.58333)
    ('5', '346.67', '0.583')
    """
    return f"{value:.0f}" if value == round(value) else number(value)
