"""Graphs of tasks run by the rules, in the plainest way: a list of what runs, and one instant after the other."""

from __future__ import annotations

from fractions import Fraction

from coppice.iteration.tasks import TaskGraph

GRID = 2**34


def on_grid(seconds: Fraction) -> Fraction:
    return Fraction(round(seconds * GRID), GRID)


def speeds(loads: dict[int, dict[int, Fraction]]) -> dict[int, Fraction]:
    """Max-min fair speeds, at most 1: all grow together, those on a full link stop."""
    found: dict[int, Fraction] = {}
    while len(found) < len(loads):
        growing = {task: own for task, own in loads.items() if task not in found}
        level, full = Fraction(1), set()
        for link in {link for own in growing.values() for link in own}:
            taken = sum((found[task] * loads[task].get(link, 0) for task in found), Fraction(0))
            at = max(Fraction(0), 1 - taken) / sum(own.get(link, 0) for own in growing.values())
            if at < level:
                level, full = at, {link}
            elif at == level:
                full.add(link)
        stopped = [task for task, own in growing.items() if level == 1 or full & set(own)]
        found.update((task, level) for task in stopped)
    return found


def run(graph: TaskGraph) -> tuple[list[float], list[float]]:
    """Start and finish of each task; of those that wait for themselves -1."""
    tasks = range(len(graph))
    start: list[Fraction | None] = [None] * len(graph)
    finish: list[Fraction | None] = [None] * len(graph)
    loads = {}
    for task in tasks:
        rows = range(graph.load_start[task], graph.load_start[task + 1])
        loads[task] = {int(graph.load_link[k]): Fraction(float(graph.load[k])) for k in rows}
    left = [on_grid(Fraction(float(seconds))) for seconds in graph.seconds]
    running: dict[int, Fraction] = {}  # and when each ends at its present speed
    pace: dict[int, Fraction] = {}
    now = Fraction(0)
    credit = [Fraction(float(each)) for each in graph.credit]
    turn: dict[int, int] = {}  # of tasks that windows have admitted
    windowed = len(graph.window) > 0

    def ready(task: int) -> bool:
        return start[task] is None and all(finish[before] is not None for before in graph.predecessors(task))

    def give_back(task: int) -> None:
        if windowed and graph.returns[task] >= 0:
            of = graph.returns[task]
            credit[graph.window[of]] += Fraction(float(graph.window_bytes[of]))

    def held(task: int) -> bool:
        return windowed and graph.window[task] >= 0 and task not in turn

    while True:
        instant = True
        while instant:
            instant = False
            for task in tasks:
                if graph.stream[task] < 0 and not graph.seconds[task] and ready(task):
                    start[task] = finish[task] = now
                    instant = True
                    give_back(task)
        for task in tasks:
            if graph.stream[task] < 0 and ready(task):
                start[task], running[task], pace[task] = now, now + left[task], Fraction(1)
        for window in range(len(credit)):
            while credit[window] > graph.credit[window] * 1e-9:
                asking = [
                    task for task in tasks if held(task) and graph.window[task] == window and ready(task)
                ]
                if not asking:
                    break
                task = min(asking, key=lambda each: (graph.priority[each], each))
                turn[task] = len(turn)
                credit[window] -= Fraction(float(graph.window_bytes[task]))
        for stream in range(len(graph.streams)):
            if any(graph.stream[task] == stream for task in running):
                continue
            waiting = [task for task in tasks if graph.stream[task] == stream and ready(task)]
            waiting = [task for task in waiting if not held(task)]
            if waiting:
                task = min(
                    waiting, key=lambda each: (each not in turn, turn.get(each, graph.priority[each]), each)
                )
                start[task], running[task], pace[task] = now, now + left[task], Fraction(1)
        shared = speeds({task: loads[task] for task in running if loads[task] and left[task]})
        for task, speed in shared.items():
            if pace[task] != speed or start[task] == now:
                pace[task] = speed
                running[task] = now + on_grid(left[task] / speed)
        if not running:
            return [float(-1 if at is None else at) for at in start], [
                float(-1 if at is None else at) for at in finish
            ]
        then = min(running.values())
        for task in list(running):
            left[task] -= pace[task] * (then - now)
            if running[task] == then:
                finish[task] = then
                give_back(task)
                del running[task], pace[task]
        now = then
