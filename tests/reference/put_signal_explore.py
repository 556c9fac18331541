"""Every run of a small program: the judge that no proof is needed for.

States that were seen are not visited again. Actions that touch what nobody else will touch need not be tried before and
after others: they come at once.
"""

from __future__ import annotations

from dataclasses import dataclass

from coppice.program.dialects.put_signal.fuzzer import PutSignalContents
from coppice.program.dialects.put_signal.program import PutSignalAct, PutSignalProgram
from reference.put_signal_machine import Action, Happening, PutSignalMachine, PutSignalScript, RankPhase


@dataclass(frozen=True, kw_only=True)
class Exploration:
    """What all runs of a program come to.

    Attributes:
        fault: What goes wrong in some run, a sentence; empty where nothing does.
        states: States that were visited.
        complete: All runs were followed to their end, or a fault was found.
    """

    fault: str
    states: int
    complete: bool


def explore(program: PutSignalProgram, *, in_place: bool, most_states: int = 50_000) -> Exploration:
    """Follow every run of a program that the machine allows, up to a number of states.

    Args:
        program: A program of sound form.
        in_place: Input and output share memory.
        most_states: States after which it gives up.
    """
    script = PutSignalScript(program, in_place=in_place)
    touches = _touches(script)
    seen: set[tuple[object, ...]] = set()
    stack = [PutSignalMachine(script, PutSignalContents(layout=program, seed=1))]
    while stack:
        machine = stack.pop()
        while not machine.wrong and (place := _alone(machine, touches)) is not None:
            machine.perform(place)
        if machine.wrong:
            return Exploration(fault=machine.wrong, states=len(seen), complete=True)
        if not machine.enabled:
            if not machine.over:
                return Exploration(fault="it deadlocks", states=len(seen), complete=True)
            continue
        key = machine.key()
        if key in seen:
            continue
        seen.add(key)
        if len(seen) > most_states:
            return Exploration(fault="", states=len(seen), complete=False)
        for place in range(len(machine.enabled)):
            other = machine.copy()
            other.perform(place)
            stack.append(other)
    return Exploration(fault="", states=len(seen), complete=True)


def _touches(script: PutSignalScript) -> dict[Action, list[tuple[range, bool]]]:
    """What each action reads and writes: stretches of addresses, and whether it writes them."""
    found: dict[Action, list[tuple[range, bool]]] = {}
    for number, op in enumerate(script.operations):
        source, target = range(op.source, op.source + op.count), range(op.target, op.target + op.count)
        if op.act == PutSignalAct.PUT:
            found[Happening.READ, number] = [(source, False)]
            found[Happening.LAND, number] = [(target, True)]
        elif op.act in (PutSignalAct.COPY, PutSignalAct.SUM):
            mine = [(source, False), (target, True)]
            if op.act == PutSignalAct.SUM:
                mine.append((range(op.addend, op.addend + op.count), False))
            found[Happening.WORK, number] = mine
    for rank in range(script.ranks):
        mine = [(range(first, first + count), True) for first, count in script.owned(rank)]
        found[Happening.BEGIN, rank] = found[Happening.END, rank] = mine
    return found


def _alone(machine: PutSignalMachine, touches: dict[Action, list[tuple[range, bool]]]) -> int | None:
    """Place of an action that commutes with all that others can do before it; None where there is none.

    Actions that can only come after it, since its own stream waits for it, do not count.
    """
    todo = _still_to_come(machine)
    for place, action in enumerate(machine.enabled):
        mine = touches[action]
        behind = _behind(machine, action)
        if not any(
            other != action and other not in behind and _conflict(mine, touches[other]) for other in todo
        ):
            return place
    return None


def _still_to_come(machine: PutSignalMachine) -> list[Action]:
    """Every action that has not happened."""
    script = machine.script
    found: list[Action] = []
    enabled = set(machine.enabled)
    for rank, phase in enumerate(machine.phase):
        if phase == RankPhase.CALLERS:
            found.append((Happening.BEGIN, rank))
        if phase < RankPhase.GIVEN_BACK:
            found.append((Happening.END, rank))
    for call, blocked in enumerate(machine.blockers):
        over = not blocked and not machine.left[call]
        for number in script.operations_of[call]:
            act = script.operations[number].act
            if act == PutSignalAct.PUT:
                if blocked or (Happening.READ, number) in enabled:
                    found += [(Happening.READ, number), (Happening.LAND, number)]
                elif number in machine.flying:
                    found.append((Happening.LAND, number))
            elif act in (PutSignalAct.COPY, PutSignalAct.SUM) and not over:
                first = next((op for kind, op in machine.enabled if kind == Happening.WORK and op in script.operations_of[call]), -1)  # fmt: skip  # noqa: E501
                if blocked or number >= first >= 0:
                    found.append((Happening.WORK, number))
    return found


def _behind(machine: PutSignalMachine, action: Action) -> set[Action]:
    """Actions of the same rank that its streams hold back until an action has happened."""
    script = machine.script
    act, number = action
    if act in (Happening.END, Happening.LAND):
        return set()
    rank = number if act == Happening.BEGIN else script.call_rank[script.operations[number].call]
    calls = script.calls_of[rank] if act == Happening.BEGIN else []
    if act != Happening.BEGIN:
        reached: set[int] = set()
        line = [script.operations[number].call]
        while line:
            for call in script.after[line.pop()]:
                if call not in reached:
                    reached.add(call)
                    line.append(call)
        calls = sorted(reached)
    found: set[Action] = {(Happening.END, rank)}
    if act == Happening.READ:
        found.add((Happening.LAND, number))
    if act == Happening.WORK:
        here = script.operations_of[script.operations[number].call]
        found |= {(Happening.WORK, each) for each in here if each > number}
    for call in calls:
        for each in script.operations_of[call]:
            found |= {(Happening.READ, each), (Happening.LAND, each), (Happening.WORK, each)}
    return found


def _conflict(one: list[tuple[range, bool]], other: list[tuple[range, bool]]) -> bool:
    return any(
        (a_writes or b_writes) and a.start < b.stop and b.start < a.stop
        for a, a_writes in one
        for b, b_writes in other
    )
