"""What the picture of a search looks like: nothing overprints, points do not crowd, there is a legend."""

from __future__ import annotations

from itertools import pairwise
from math import exp, log10, nan
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coppice.training.autolrs.controller import Controller
from coppice.training.autolrs.log import EventLog, Method, SearchLog, SearchPhase, Settings, read_search
from coppice.training.autolrs.report import MOST_CURVES, MOST_PANELS, chosen_evenly, draw, spans, thinned

pytest.importorskip("matplotlib", reason="matplotlib draws")


def loss(rate: float, step: int, stage: int) -> float:
    if rate > 0.4 or (rate > 0.2 and step > 120):
        return nan
    noise = 0.1 * ((7 * step) % 5)
    return 0.3 * (log10(rate) + 0.5 + 0.4 * stage) ** 2 + 2 * exp(-0.03 * step) + 0.5 + noise


def searched(path: Path, settings: Settings) -> SearchLog:
    control, log = Controller(settings), EventLog(path, settings)
    while control.phase is not SearchPhase.DONE:
        state, count = control.state, control.steps_to_event
        losses = [loss(state.lr, state.done + k, state.stage) for k in range(count)]
        due = control.validation_due(count)
        validation = loss(state.lr, state.done + count, state.stage) if due else None
        log.write(control.observe(losses, validation).events)
    return read_search(path)


SETTINGS = {
    "long": Settings(tau=200, tau_max=400, warmup_steps=20, kept_steps=4020, validation=True),
    "short": Settings(tau=200, tau_max=200, kept_steps=200),
    "many rates": Settings(tau=1000, tau_max=1000, kept_steps=1000, candidates=30),
    "annealed": Settings(lr_range=(1e-4, 0.1), kept_steps=5000, validation=True, method=Method.ANNEALED),
}


@pytest.fixture(
    scope="module",
    params=[pytest.param(each, marks=pytest.mark.slow) if each == "long" else each for each in SETTINGS],
)
def search(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> SearchLog:
    return searched(tmp_path_factory.mktemp("log") / "log", SETTINGS[request.param])


def test_trials_lie_side_by_side(search: SearchLog) -> None:
    found = spans(search)
    assert found[0].first == 0
    assert all(after.first == before.first + before.steps for before, after in pairwise(found))
    kept = sum(span.steps for span in found if span.kind == "kept")
    assert kept == sum(event.steps for event in search.kept)
    lost = sum(event.steps for event in search.retreats)
    assert found[-1].first + found[-1].steps == kept + search.search_steps + lost


def test_labels_do_not_overprint_and_legends_name_every_colour(search: SearchLog) -> None:
    figure = draw(search)
    figure.draw_without_rendering()
    texts = []
    for axes in figure.axes:
        for axis in (axes.xaxis, axes.yaxis):
            within = axis.get_view_interval()
            shown = [
                tick.label1 for tick in axis.get_major_ticks() if within[0] <= tick.get_loc() <= within[1]
            ]
            texts += [text for text in [*shown, axis.label] if text.get_visible() and text.get_text()]
        texts.append(axes.title)
    texts += figure.axes[0].get_legend().get_texts()
    texts += [text for legend in figure.legends for text in legend.get_texts()]
    boxes = [text.get_window_extent() for text in texts]
    for number, box in enumerate(boxes):
        for other, text in zip(boxes[number + 1 :], texts[number + 1 :], strict=True):
            assert not box.overlaps(other), (texts[number].get_text(), text.get_text())
    named = {line.get_color() for line in figure.axes[0].get_legend().get_lines()}
    named |= {line.get_color() for legend in figure.legends for line in legend.get_lines()}
    assert {line.get_color() for axes in figure.axes for line in axes.get_lines()} <= named


def test_panels_are_few_and_hold_few_curves_and_points(search: SearchLog) -> None:
    panels = draw(search).axes[2:]
    assert 1 <= len(panels) <= MOST_PANELS
    for panel in panels:
        dotted = [line for line in panel.get_lines() if line.get_marker() == "."]
        assert len(dotted) <= MOST_CURVES
        assert all(len(line.get_xdata()) <= 16 for line in dotted)


@given(st.integers(0, 100), st.integers(2, 20))
def test_evenly_chosen_numbers_have_both_ends(count: int, most: int) -> None:
    numbers = chosen_evenly(count, most)
    assert len(numbers) == min(count, most)
    assert numbers == sorted(set(numbers))
    if count:
        assert (numbers[0], numbers[-1]) == (0, count - 1)


@given(st.lists(st.floats(-1e6, 1e6), max_size=300), st.integers(1, 20))
def test_thinned_losses_stay_within_theirs(losses: list[float], most: int) -> None:
    places, levels = thinned(range(len(losses)), losses, most)
    assert len(places) == len(levels) <= most
    assert all(min(losses) <= level <= max(losses) for level in levels)
    assert places == sorted(set(places))
