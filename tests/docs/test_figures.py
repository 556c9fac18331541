"""Figures that the prose of any page states are among what its commands and measurements print, or follow from that."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable
from importlib import import_module

import pytest

from support.pages import PAGES, coppice, page_name, page_text
from support.paths import ROOT

FIGURE = re.compile(r"(?<![\w.,/-])(\d[\d,]*(?:\.\d+)?)(?=\s?(?:%|x\b|times\b|GB/s|GB\b|us\b|ms\b|s\b))")
MADE = {
    "cli.md",
    "scheduling.md",
    "survey.md",
    "clusters.md",
    "architecture.md",
    "messages.md",
    "api.md",
    "synthesizers.md",
}
"""Pages that programs write, figures included."""

PROSE = [name for name in map(page_name, PAGES) if name not in MADE]

DERIVED = {
    ("tutorials/network-designer.md", "31"): "100 * (5115 / 3904 - 1)",
    ("tutorials/network-designer.md", "45"): "100 * (1 - 28800 / 52000)",
    ("tutorials/new-algorithm.md", "5"): "100 * (33.40 / 31.88 - 1)",
    ("questions/measured-run.md", "387"): "67108864 / 173.333 / 1000",
    ("questions/measured-run.md", "6"): "100 * (912.4 / 864.4 - 1)",
    ("python.md", "0.8"): "100 * 7 / 832",
    ("data-model.md", "25"): "200 / 8",
    ("data-model.md", "300"): "600 / 2",
    ("in-network.md", "92.6"): "100 * 4 * 256 / (4 * 256 + 82)",
}
"""Figures that follow from what stands on their page, and how."""

FILES = {
    ("iteration.md", "2.8"): "exam.md",
    ("iteration.md", "3.9"): "exam.md",
}
"""Figures of files that a program in benchmarks/ wrote, which their page does not link to."""


def _planned(words: str, pattern: str) -> str:
    """What a command prints where a pattern has its group."""
    done = coppice(*shlex.split(words))
    assert done.exit_code == 0, done.output
    found = re.search(pattern, done.output)
    assert found is not None, done.output
    return found[1]


def _without_a_nic(**options: str) -> float:
    import coppice

    lost = coppice.degrade(coppice.load("dgx-a100", boxes=2), nodes={"box0/nic3": 0})
    return float(coppice.plan(lost, "all_reduce", **options, ring=False).algbw_gb_per_s)


def _rings_of_mi250() -> str:
    import coppice

    notes = coppice.export(coppice.plan("mi250", "all_reduce", ring=False), "rccl-rings").notes
    found = re.search(r"([\d.]+)%", " ".join(notes))
    assert found is not None, notes
    return found[1]


def _constant(where: str) -> float:
    """A constant of the program, ``module:name``."""
    module, _, name = where.partition(":")
    return float(getattr(import_module(module), name))


COUNTED: dict[tuple[str, str], Callable[[], float | str]] = {
    ("method.md", "3.6"): lambda: _planned(
        "plan mi250 --boxes 2 -c all_gather --trees 2", r"([\d.]+)% below the optimum"
    ),
    ("method.md", "171.9"): lambda: _without_a_nic(),
    ("method.md", "160"): lambda: _without_a_nic(prefer="low"),
    ("synthesis-search.md", "1.6"): lambda: _planned(
        "synthesize mi250 --boxes 2 -c all_gather --method syccl", r"([\d.]+)% below the optimum"
    ),
    ("stock-libraries.md", "6.7"): _rings_of_mi250,
    ("stock-libraries.md", "3"): lambda: 100 * _constant("coppice.fitting.open_mpi:WORTH"),
    ("jobs.md", "108"): lambda: 100 * import_module("coppice.iteration.memory").TIGHT[1],
    ("torch.md", "0.1"): lambda: _constant("coppice.run.alltoallv.exchange:RELAY_COST_US") / 1000,
    ("lab.md", "85"): lambda: 100 * _constant("coppice.run.probe.network:TOLERANCE"),
    ("questions/slow-host.md", "85"): lambda: 100 * _constant("coppice.run.probe.network:TOLERANCE"),
    ("simulation.md", "0.2"): lambda: 100 * _constant("coppice.simulation.simulator:_WORTH"),
    ("shared-memory.md", "200"): lambda: re.findall(
        r"kSpins = (\d+);", (ROOT / "cpp" / "shared_memory" / "watch.h").read_text()
    )[0],
}
"""Figures that a command prints or the program holds, and how to get them."""

CONSTANT = {
    ("questions/same-bits.md", "32"): "the linear program of tests/reference/ordered_bound.py",
    ("questions/nccl-picks.md", "30"): "stands for any share",
    ("data-model.md", "600"): "NVIDIA's data sheet of the A100",
    ("iteration.md", "18.9"): "arXiv 2507.03114",
    ("method.md", "25"): "the rate of NICs of a DGX A100, as in the sentence that is quoted",
    ("method.md", "1"): "the tolerance in the command of the sentence",
    ("overlap.md", "95"): "the share that the test of tuning on simulated clocks demands",
    ("overlap.md", "0.05"): "the rate of the example's network",
    ("put-signal.md", "30"): "a structure count, and the runs of a capture test: no measurement",
    ("runtimes.md", "24"): "what a thread block copies on an A100, by MSCCL's authors",
    ("selection.md", "15"): "1 - 0.85, a constant of NCCL's tuning.cc",
    ("stock-libraries.md", "24"): "links across the middle of an MI250 box",
    ("stock-libraries.md", "50"): "the rate of xGMI in the preset mi250",
    ("synthesis-milp.md", "43"): "stored in TE-CCL's repository",
    ("synthesis-milp.md", "2,700"): "stored in TE-CCL's repository",
    ("topology-formats.md", "15"): "a range over machines that differ",
}
"""Figures that no command prints, and where they are from."""


def stated(page: str) -> list[str]:
    """The figures of a page's prose, without code."""
    prose = re.sub(
        r"^```.*?^```$|^    [^\n]*$|`[^`]*`|^\|[^\n]*$", "", page_text(page), flags=re.DOTALL | re.MULTILINE
    )
    return FIGURE.findall(prose)


def numbers(text: str) -> set[str]:
    return {each.replace(",", "").rstrip(".") for each in re.findall(r"\d[\d,]*(?:\.\d+)?", text)}


def printed(page: str) -> set[str]:
    """The figures in the blocks and tables of a page, and in the files of benchmarks that it links to."""
    text = page_text(page)
    shown = re.findall(r"^```.*?^```$|^\|[^\n]*$", text, flags=re.DOTALL | re.MULTILINE)
    files = [ROOT / "benchmarks" / name for name in re.findall(r"\(\S*?benchmarks/([\w.-]+\.md)", text)]
    return numbers("\n".join([*shown, *(each.read_text() for each in files)]))


@pytest.mark.parametrize("page", PROSE)
def test_figures_of_prose_are_printed(page: str) -> None:
    exact = printed(page)
    rounded = {f"{float(each):.0f}" for each in exact if "." in each}
    known = {*DERIVED, *FILES, *COUNTED, *CONSTANT}
    for figure in stated(page):
        assert (page, figure) in known or figure.replace(",", "") in exact | rounded, f"{page}: {figure}"


@pytest.mark.parametrize(("page", "figure"), DERIVED)
def test_derived_figures_follow_from_what_stands_there(page: str, figure: str) -> None:
    formula = DERIVED[page, figure]
    assert figure in stated(page)
    assert f"{eval(formula):.{decimals(figure)}f}" == figure
    for number in re.findall(r"\d[\d.]*", formula):
        assert number in numbers(page_text(page)) or number in ("1", "2", "4", "8", "100", "1000"), number


@pytest.mark.parametrize(("page", "figure"), COUNTED)
def test_figures_are_what_is_counted(page: str, figure: str) -> None:
    assert figure in stated(page)
    assert f"{float(COUNTED[page, figure]()):.{decimals(figure)}f}" == figure


@pytest.mark.parametrize(("page", "figure"), FILES)
def test_figures_stand_in_the_file_that_has_them(page: str, figure: str) -> None:
    assert figure in stated(page)
    assert figure in numbers((ROOT / "benchmarks" / FILES[page, figure]).read_text())


def decimals(figure: str) -> int:
    return len(figure.partition(".")[2])


def test_constant_figures_are_stated() -> None:
    for page, figure in CONSTANT:
        assert figure in stated(page), f"{page} does not state {figure}"


def test_there_are_figures() -> None:
    """Also behind tables and indented commands of a page."""
    assert sum(len(stated(page)) for page in PROSE) >= 80
    assert len(stated("in-network.md")) >= 5
