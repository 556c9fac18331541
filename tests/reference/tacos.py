"""The matching of cpp/tacos/tacos.h, slowly and readably: the same draws, so the same transfers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

MASK = 2**64 - 1


def mixed(state: int) -> int:
    """splitmix64."""
    state = (state + 0x9E3779B97F4A7C15) & MASK
    state = ((state ^ (state >> 30)) * 0xBF58476D1CE4E5B9) & MASK
    state = ((state ^ (state >> 27)) * 0x94D049BB133111EB) & MASK
    return state ^ (state >> 31)


@dataclass
class Dice:
    state: int

    def below(self, n: int) -> int:
        drawn = mixed(self.state)
        self.state = (self.state + 0x9E3779B97F4A7C15) & MASK
        return drawn * n >> 64


@dataclass(frozen=True)
class Channel:
    src: int
    dst: int
    duration: int
    ports: tuple[tuple[int, int], ...]  # (port, how long it is held)


@dataclass
class Flight:
    channel: Channel
    number: int
    chunk: int
    start: int
    had: int  # chunks that the sender held at the start
    doubled: bool = False

    @property
    def arrive(self) -> int:
        return self.start + self.channel.duration


@dataclass
class State:
    held: list[list[int]]  # per rank, in the order in which they came
    coming: list[set[int]]
    port_free: dict[int, int] = field(default_factory=dict)
    flights: list[Flight] = field(default_factory=list)

    def free(self, channel: Channel, now: int) -> bool:
        return all(self.port_free.get(port, 0) <= now for port, _ in channel.ports)


def match(
    ranks: int,
    channels: Sequence[Channel],
    chunks: Sequence[tuple[int, int]],
    rule: str,
    seed: int,
    group: Sequence[int] = (),
) -> tuple[int, list[tuple[int, int, int]]]:
    """One attempt: (time, [(start, number of the channel, chunk)] by arrival).

    `chunks` are (source, target or -1: all of the group of the source).
    """
    dice = Dice(seed)
    uses = [port for channel in channels for port, _ in channel.ports]
    apart = any(hold != channel.duration for channel in channels for _, hold in channel.ports)
    shared = apart or len(set(uses)) < len(uses)
    into = [
        sorted((k for k, each in enumerate(channels) if each.dst == v), key=lambda k: channels[k].duration)
        for v in range(ranks)
    ]
    state = State(
        held=[[c for c, (source, _) in enumerate(chunks) if source == v] for v in range(ranks)],
        coming=[{c for c, (source, _) in enumerate(chunks) if source == v} for v in range(ranks)],
    )
    needed = [
        {
            c
            for c, (source, to) in enumerate(chunks)
            if source != v and (to == v or (to == -1 and (not group or group[source] == group[v])))
        }
        for v in range(ranks)
    ]
    found: list[tuple[int, int, int]] = []
    under_way: list[Flight] = []
    now = time = 0
    visited = list(range(ranks))

    def send(k: int, chunk: int) -> None:
        channel = channels[k]
        flight = Flight(channel, k, chunk, now, len(state.held[channel.src]))
        state.flights.append(flight)
        under_way.append(flight)
        state.coming[channel.dst].add(chunk)
        for port, hold in channel.ports:
            state.port_free[port] = now + hold

    def drawn(v: int, open_channels: list[int]) -> bool:
        """Starts one wanted chunk."""
        carried = {}
        for k in open_channels:
            carried[k] = set(state.held[channels[k].src])
            if rule == "local":
                for other in into[v]:
                    if channels[other].duration < channels[k].duration:
                        carried[k] -= state.coming[channels[other].src]
        wanted = needed[v] - state.coming[v]
        candidates = sorted(wanted & set().union(*carried.values()))
        if not candidates:
            return False
        if rule != "random":
            copies = {c: sum(c in there for there in state.coming) for c in candidates}
            candidates = [c for c in candidates if copies[c] == min(copies.values())]
        chunk = candidates[dice.below(len(candidates))]
        fitting = [k for k in open_channels if chunk in carried[k]]
        soonest = min(channels[k].duration for k in fitting)
        fitting = [k for k in fitting if channels[k].duration == soonest]
        send(fitting[dice.below(len(fitting)) if len(fitting) > 1 else 0], chunk)
        return True

    def overtaken(v: int, open_channels: list[int]) -> bool:
        """Asks once more for what would come late."""
        best: tuple[Flight, int] | None = None
        for k in open_channels:
            for flight in [each for each in under_way if each.channel.dst == v]:
                useful = not flight.doubled and flight.arrive > now + channels[k].duration
                useful = (
                    useful
                    and flight.chunk in state.held[channels[k].src]
                    and flight.chunk not in state.held[v]
                )
                if useful and (best is None or flight.arrive > best[0].arrive):
                    best = flight, k
        if best is None:
            return False
        best[0].doubled = True
        send(best[1], best[0].chunk)
        return True

    while True:
        if shared:
            for i in range(len(visited) - 1, 0, -1):
                j = dice.below(i + 1)
                visited[i], visited[j] = visited[j], visited[i]
        for v in visited:
            for step in (drawn, overtaken):
                while True:
                    open_channels = [k for k in into[v] if state.free(channels[k], now)]
                    if not open_channels or not step(v, open_channels):
                        break
        times = {flight.arrive for flight in under_way} | {t for t in state.port_free.values() if t > now}
        if not times:
            return (-1 if any(needed[v] - set(state.held[v]) for v in range(ranks)) else time), found
        now = min(times)
        for flight in [each for each in state.flights if each in under_way and each.arrive == now]:
            under_way.remove(flight)
            u, v, chunk = flight.channel.src, flight.channel.dst, flight.chunk
            if chunk in state.held[v]:
                others = [c for c in state.held[u][: flight.had] if c in needed[v] and c not in state.held[v]]
                if not others:
                    continue
                chunk = others[dice.below(len(others))]
                state.coming[v].add(chunk)
            state.held[v].append(chunk)
            time = now
            found.append((flight.start, flight.number, chunk))
        if not any(needed[v] - set(state.held[v]) for v in range(ranks)):
            return time, found
        visited = list(range(ranks))
