"""Small put/signal programs, and one fault put into their files."""

from __future__ import annotations

import copy
import json
import random
from collections.abc import Callable, Iterator
from functools import cache
from typing import Any

from coppice.bounds.problem import Problem
from coppice.collectives import Collective
from coppice.export.put_signal.document import parse_put_signal, put_signal_json
from coppice.planners.algorithms.catalogue import algorithms, case_of, find, make
from coppice.planners.planning import plan
from coppice.program.dialects.put_signal.lower import lower_put_signal
from coppice.program.dialects.put_signal.program import PutSignalProgram
from coppice.schedule.forest import Forest
from coppice.schedule.schedule import Schedule
from coppice.topology.model import Topology
from coppice.topology.presets import preset

COLLECTIVES = (
    Collective.ALL_GATHER,
    Collective.REDUCE_SCATTER,
    Collective.ALL_REDUCE,
    Collective.BROADCAST,
    Collective.REDUCE,
    Collective.ALL_TO_ALL,
)


def problem(topology: Topology, collective: Collective) -> Problem:
    return Problem(topology=topology, collective=collective, root=0 if collective.rooted else None)


@cache
def forest(
    name: str, collective: Collective, settings: tuple[tuple[str, int], ...] = ()
) -> Forest | Schedule:
    """The plan of a preset."""
    return plan(problem(preset(name, **dict(settings)), collective)).plan.body


def classic(name: str, collective: Collective, topology: Topology) -> Forest | Schedule:
    """A classic algorithm."""
    entry = find(name, collective)
    return make(entry, case_of(entry, problem(topology, collective)))


def catalogue(topology: Topology) -> Iterator[tuple[str, Forest | Schedule]]:
    """Every algorithm that the topology takes."""
    from coppice.errors import CoppiceError

    for (name, collective), entry in algorithms().items():
        if collective is Collective.BARRIER:
            continue
        try:
            yield f"{name} {collective}", make(entry, case_of(entry, problem(topology, collective)))
        except CoppiceError:
            continue


@cache
def small_programs() -> tuple[PutSignalProgram, ...]:
    """Programs that the judge can follow through all their runs."""
    found = []
    for gpus in (2, 3):
        name = "star" if gpus == 2 else "ring"
        for collective in COLLECTIVES:
            body = forest(name, collective, (("gpus", gpus),))
            found.append(lower_put_signal(body, pieces=1, name=f"{collective} {gpus}"))
            if gpus == 2:
                found.append(lower_put_signal(body, pieces=2, graphs=False, name=f"{collective} 2, eager"))
            if gpus == 2 or collective.rooted or collective is Collective.REDUCE_SCATTER:
                found.append(lower_put_signal(body, pieces=2, name=f"{collective} {gpus}, pieces"))
                found.append(
                    lower_put_signal(body, pieces=3, staging=0, name=f"{collective} {gpus}, credits")  # type: ignore[arg-type]
                )
    return tuple(found)


def tree_of(program: PutSignalProgram) -> dict[str, Any]:
    """The file of a program as a tree."""
    found: dict[str, Any] = json.loads(put_signal_json(program))
    return found


def text_of(tree: dict[str, Any]) -> bytes:
    return json.dumps(tree).encode()


def wrong_program() -> PutSignalProgram:
    """A reduction whose landing buffers are used again without any credit."""
    tree = tree_of(lower_put_signal(forest("ring", Collective.REDUCE, (("gpus", 4),)), pieces=8))
    for calls in tree["calls"]:
        for call in calls:
            for row in next(iter(call[word] for word in ("transfer", "wait", "local") if word in call)):
                for at, member in enumerate(row):
                    if member == "staging":
                        row[at + 1] %= 2
    return parse_put_signal(text_of(tree), file="wrong").program


Mutation = Callable[[dict[str, Any], random.Random], str | None]
"""Puts a fault into a tree and names it; None where there is no place for it."""


def _calls(tree: dict[str, Any], *words: str) -> list[tuple[list[Any], int, str]]:
    """(calls of the rank, number, word) of every call of some kinds."""
    return [
        (calls, number, word)
        for calls in tree["calls"]
        for number, call in enumerate(calls)
        for word in words
        if word in call
    ]


def _rows(tree: dict[str, Any], *names: str) -> list[tuple[list[Any], int, str, int]]:
    return [
        (calls, number, word, place)
        for calls, number, word in _calls(tree, "transfer", "wait", "local")
        for place, row in enumerate(calls[number][word])
        if row[0] in names
    ]


def _drop(*names: str) -> Mutation:
    def mutate(tree: dict[str, Any], random: random.Random) -> str | None:
        rows = _rows(tree, *names)
        if not rows:
            return None
        calls, number, word, place = random.choice(rows)
        del calls[number][word][place]
        if not calls[number][word]:
            del calls[number]
        return f"dropped a {names[0]}"

    return mutate


def _number(name: str, member: int, what: str) -> Mutation:
    """Another number in a member of an operation."""

    def mutate(tree: dict[str, Any], random: random.Random) -> str | None:
        rows = _rows(tree, name)
        if not rows:
            return None
        calls, number, word, place = random.choice(rows)
        calls[number][word][place][member] += random.choice((-1, 1))
        return f"another {what} of a {name}"

    return mutate


def _buffer(name: str, member: int) -> Mutation:
    def mutate(tree: dict[str, Any], random: random.Random) -> str | None:
        rows = _rows(tree, name)
        if not rows:
            return None
        calls, number, word, place = random.choice(rows)
        row = calls[number][word][place]
        row[member] = random.choice([each for each in ("input", "output", "staging") if each != row[member]])
        return f"another buffer of a {name}"

    return mutate


def _swap_calls(tree: dict[str, Any], random: random.Random) -> str | None:
    ranks = [calls for calls in tree["calls"] if len(calls) > 1]
    if not ranks:
        return None
    calls = random.choice(ranks)
    at = random.randrange(len(calls) - 1)
    other = random.choice([at + 1, random.randrange(len(calls))])
    calls[at], calls[other] = calls[other], calls[at]
    return "swapped calls"


def _swap_rows(tree: dict[str, Any], random: random.Random) -> str | None:
    """Two operations of one kind change places between calls."""
    name = random.choice(("put", "wait", "sum", "copy"))
    rows = _rows(tree, name)
    if len(rows) < 2:
        return None
    (a, b, c, d), (e, f, g, h) = random.sample(rows, 2)
    a[b][c][d], e[f][g][h] = e[f][g][h], a[b][c][d]
    return f"swapped {name}s"


def _drop_credit(tree: dict[str, Any], random: random.Random) -> str | None:
    """A signal without data, and the wait for it, both."""
    signals = _rows(tree, "signal")
    if not signals:
        return None
    calls, number, word, place = random.choice(signals)
    giver = next(rank for rank, each in enumerate(tree["calls"]) if each is calls)
    row = calls[number][word].pop(place)
    if not calls[number][word]:
        del calls[number]
    taker = tree["calls"][row[1]]
    waits = [
        (call, at)
        for call in taker
        for at, wait in enumerate(call.get("wait", ()))
        if wait[1] == giver and wait[3:] == row[2:]
    ]
    if not waits:
        return None
    call, at = random.choice(waits)
    call["wait"][at][2] -= 1
    if not call["wait"][at][2]:
        del call["wait"][at]
        if not call["wait"]:
            taker.remove(call)
    return "removed a credit"


def _move_call(tree: dict[str, Any], random: random.Random) -> str | None:
    ranks = [calls for calls in tree["calls"] if len(calls) > 2]
    if not ranks:
        return None
    calls = random.choice(ranks)
    calls.insert(random.randrange(len(calls) - 1), calls.pop(random.randrange(len(calls))))
    return "moved a call"


def _other_stream(tree: dict[str, Any], random: random.Random) -> str | None:
    found = _calls(tree, "local", "transfer", "wait")
    calls, number, _ = random.choice(found)
    calls[number]["stream"] += random.choice((1, 2))
    return "another stream"


def _other_communicator(tree: dict[str, Any], random: random.Random) -> str | None:
    found = _calls(tree, "transfer", "wait")
    if not found:
        return None
    calls, number, _ = random.choice(found)
    calls[number]["communicator"] += 1
    return "another communicator"


def _double(tree: dict[str, Any], random: random.Random) -> str | None:
    rows = _rows(tree, "put", "wait", "sum", "copy", "signal")
    calls, number, word, place = random.choice(rows)
    calls[number][word].insert(place, list(calls[number][word][place]))
    return "doubled an operation"


def _less_staging(tree: dict[str, Any], random: random.Random) -> str | None:
    """Staging slots from a place on are used once more: a credit that was needed is not there."""
    last = max(tree["staging"])
    if not last:
        return None
    cut = random.randrange(1, last + 1)
    for calls, number, word, place in _rows(tree, "put", "sum", "copy"):
        row = calls[number][word][place]
        for at, member in enumerate(row):
            if member == "staging":
                row[at + 1] %= cut
    return "folded staging"


MUTATIONS: tuple[Mutation, ...] = (
    _drop("put"),
    _drop("signal"),
    _drop("wait"),
    _drop("sum"),
    _drop("copy"),
    _number("put", 1, "peer"),
    _number("put", 3, "source"),
    _number("put", 5, "target"),
    _number("put", 6, "count"),
    _number("put", 7, "signal"),
    _number("put", 8, "context"),
    _number("wait", 1, "peer"),
    _number("wait", 2, "count"),
    _number("signal", 1, "peer"),
    _number("sum", 2, "source"),
    _number("sum", 4, "addend"),
    _number("sum", 6, "target"),
    _number("copy", 2, "source"),
    _buffer("put", 2),
    _buffer("put", 4),
    _buffer("sum", 1),
    _buffer("sum", 5),
    _swap_calls,
    _swap_rows,
    _drop_credit,
    _move_call,
    _other_stream,
    _other_communicator,
    _double,
    _less_staging,
)


def mutated(tree: dict[str, Any], number: int) -> tuple[str, dict[str, Any]]:
    """A copy with the fault of a number, or two faults for every fifth; the name of the faults."""
    rng = random.Random(number)
    found = copy.deepcopy(tree)
    names = []
    wanted = 2 if number % 5 == 4 else 1
    for turn in range(len(MUTATIONS)):
        if len(names) == wanted:
            break
        name = MUTATIONS[(number + turn) % len(MUTATIONS)](found, rng)
        if name is not None:
            names.append(name)
    return ", ".join(names), found
