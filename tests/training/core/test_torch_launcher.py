"""Queues of the launcher: orders, what they wait for, failures, timeouts and the end."""

from __future__ import annotations

import random
import threading
import time
from collections import deque
from importlib.util import find_spec

import pytest

from coppice.errors import CheckError

if find_spec("torch") is None:
    pytest.skip("torch is not installed", allow_module_level=True)

from coppice.training.torch.core.launcher import Launcher


def test_nothing_starts_before_an_iteration_and_each_goes_through_the_order() -> None:
    launcher, done = Launcher(None, 60.0, "count"), []
    launcher.follow("numbers", [1, 0, 2], lambda _: True, done.append)
    time.sleep(0.05)
    assert done == []
    for iteration in range(3):
        with launcher.changed:
            launcher.begin()
        launcher.wait(lambda most=3 * (iteration + 1): len(done) == most, lambda: "numbers")
    launcher.close()
    assert done == [1, 0, 2] * 3


def test_an_order_waits_for_its_next_number_alone() -> None:
    launcher, done, there = Launcher(None, 60.0, "count"), [], set()
    launcher.follow("numbers", [2, 0, 1], there.__contains__, done.append)
    with launcher.changed:
        launcher.begin()
    for number, expected in ((0, []), (1, []), (2, [2, 0, 1])):
        with launcher.changed:
            there.add(number)
            launcher.changed.notify_all()
        if expected:
            launcher.wait(lambda: len(done) == 3, lambda: "numbers")
        assert done == expected
    launcher.close()


@pytest.mark.parametrize("seed", range(5))
def test_queues_that_wait_for_each_other_do_all_in_order(seed: int) -> None:
    """Random graphs over several queues: each item runs once an iteration, after what it waits for, in its order."""
    draw = random.Random(seed)
    count, queues = 60, 4
    order = draw.sample(range(count), count)  # one order that suits all
    place = {number: at for at, number in enumerate(order)}
    after = {each: draw.sample(order[: place[each]], min(place[each], draw.randint(0, 3))) for each in order}
    queue_of = {each: draw.randrange(queues) for each in order}
    launcher = Launcher(None, 60.0, "count")
    done: set[int] = set()
    record: list[int] = []
    running: set[int] = set()

    def run(number: int) -> None:
        with launcher.changed:
            assert not any(queue_of[each] == queue_of[number] for each in running)
            assert done.issuperset(after[number])
            running.add(number)
            record.append(number)
        time.sleep(draw.random() * 1e-4)
        with launcher.changed:
            running.discard(number)
            done.add(number)
            launcher.changed.notify_all()

    for queue in range(queues):
        own = [each for each in order if queue_of[each] == queue]
        launcher.follow(f"queue {queue}", own, lambda each: done.issuperset(after[each]), run)
    for _ in range(4):
        with launcher.changed:
            done.clear()
            record.clear()
            launcher.begin()
        launcher.wait(lambda: len(done) == count, lambda: "all numbers")
        for queue in range(queues):
            assert [each for each in record if queue_of[each] == queue] == [
                each for each in order if queue_of[each] == queue
            ]
    launcher.close()


def test_what_fails_stops_all_and_is_raised_where_it_is_waited_for() -> None:
    launcher, done = Launcher(None, 60.0, "count"), []

    def fail(number: int) -> None:
        raise RuntimeError(f"no peer {number}\nat line 3")

    launcher.follow("broken", [7], lambda _: True, fail)
    launcher.follow("whole", [0, 1], lambda _: launcher.failure is not None, done.append)
    with launcher.changed:
        launcher.begin()
    words = r"all ranks to count, found one that does not answer \(no peer 7\): start the training again"
    with pytest.raises(CheckError, match=words) as caught:
        launcher.wait(lambda: False, lambda: "numbers")
    assert isinstance(caught.value.__cause__, RuntimeError)
    with pytest.raises(CheckError, match="all ranks to divide, found"):
        launcher.wait(lambda: True, lambda: "numbers", task="divide")
    launcher.close()
    assert done == []


def test_the_first_failure_counts() -> None:
    launcher = Launcher(None, 60.0, "count")
    launcher.fail(RuntimeError("one"))
    launcher.fail(RuntimeError("two"))
    assert str(launcher.failure) == "one"


@pytest.mark.parametrize("mistake", ["", "ranks run other layers"])
def test_what_is_late_is_named(mistake: str) -> None:
    launcher = Launcher(None, 0.02, "count", mistake=mistake)
    with pytest.raises(CheckError) as caught:
        launcher.wait(lambda: False, lambda: "number 3")
    tail = ", or ranks run other layers" if mistake else ""
    assert str(caught.value) == (
        f"expected number 3 within 0.02 s, found it under way: a rank is slow or gone{tail}."
    )


@pytest.mark.parametrize("drains", [True, False])
def test_a_queue_that_drains_ends_with_what_it_has(drains: bool) -> None:
    launcher, held, done = Launcher(None, 60.0, "count"), threading.Event(), []
    waiting = deque(range(3))

    def run(number: int) -> None:
        held.wait(60)
        done.append(number)

    launcher.serve("numbers", lambda: waiting.popleft() if waiting else None, run, drains=drains)
    while len(waiting) == 3:
        time.sleep(0.001)
    closing = threading.Thread(target=launcher.close)
    closing.start()
    time.sleep(0.05)
    held.set()
    closing.join()
    assert done == ([0, 1, 2] if drains else [0])


def test_on_the_host_there_are_no_marks() -> None:
    launcher = Launcher(None, 60.0, "count")
    assert launcher.mark() is None
    launcher.order_behind([None, launcher.mark()])
