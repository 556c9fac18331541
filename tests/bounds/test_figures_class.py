"""A bound says for which schedules it holds, where switches could do more."""

from __future__ import annotations

import json
from fractions import Fraction

import pytest
from typer.testing import CliRunner

from coppice.bounds import Problem
from coppice.bounds.figures import MOST_HELPED, bound_figures, bound_record
from coppice.cli import app
from coppice.collectives import Collective
from coppice.topology.presets import preset


def text(*words: str) -> str:
    return " ".join(CliRunner().invoke(app, ["bound", *words]).stdout.split())


def test_switches_that_add_pass_the_plain_bound() -> None:
    figures = bound_figures(Problem(preset("dgx-h100"), Collective.ALL_REDUCE))
    assert figures.switches_could_help
    assert figures.helped is not None
    assert (figures.algbw_gb_per_s, figures.helped.algbw_gb_per_s) == (Fraction(1800, 7), 450)
    assert "only GPUs copy and add" in figures.holds_for
    record = bound_record(figures)
    assert record["with_in_network"]["busbw_gb_per_s"] == 787.5
    assert record["holds_for"] == figures.holds_for


def test_the_bound_with_switches_says_so() -> None:
    figures = bound_figures(Problem(preset("dgx-h100"), Collective.ALL_REDUCE), in_network=True)
    assert not figures.switches_could_help
    assert figures.helped is None
    assert figures.holds_for == "schedules in which switches copy and add where they can"


@pytest.mark.parametrize(
    ("name", "collective", "holds"),
    [
        ("dgx-a100", Collective.ALL_REDUCE, "all schedules: no switch copies or adds"),
        ("dgx-h100", Collective.ALL_GATHER, "all schedules"),  # a switch that copies gains nothing there
        ("dgx-h100", Collective.ALL_TO_ALL, "all schedules: nothing is copied or added"),
    ],
)
def test_one_bound_where_switches_gain_nothing(name: str, collective: Collective, holds: str) -> None:
    figures = bound_figures(Problem(preset(name), collective))
    assert not figures.switches_could_help
    assert figures.holds_for == holds


def test_the_command_prints_both_or_names_the_option() -> None:
    assert "with them algbw 450 GB/s, busbw 787.5 GB/s at most (`--in-network`)" in text(
        "dgx-h100", "-c", "all_reduce"
    )
    boxes = MOST_HELPED // 8 + 1
    large = text("dgx-h100", "--boxes", str(boxes), "-c", "all_reduce")
    assert "`--in-network` gives the bound with them" in large
    assert "holds for" not in text("dgx-a100", "-c", "all_reduce")
    found = json.loads(CliRunner().invoke(app, ["bound", "dgx-a100", "-c", "all_reduce", "--json"]).stdout)
    assert found["with_in_network"] is None
