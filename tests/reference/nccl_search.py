"""NCCL's search for the channels of one pattern, in plain Python: the reference of ``cpp/nccl_search``.

It follows ``src/graph/search.cc`` of NCCL 2.30: channels are tried at falling speeds, each by a depth-first walk over
GPUs that takes the rate of a channel from every link it uses, until a budget of steps is spent.
"""

from __future__ import annotations

import math
import sys
from copy import copy
from dataclasses import dataclass, field

from coppice.selection.nccl.graph import ChannelGraph, ChannelPattern
from coppice.selection.nccl.paths import local
from coppice.selection.nccl.searching import (
    Order,
    SearchRequest,
    speeds_of,
)
from coppice.selection.nccl.system import LINK_PCI, Path, PathType, System, SystemKind, SystemLink, SystemNode

TREES = (ChannelPattern.BALANCED_TREE, ChannelPattern.SPLIT_TREE, ChannelPattern.TREE)
STEPS = 1 << 14
STEPS_SAME = 1 << 8
STEPS_IN_ALL = 1 << 19
STEPS_IN_FILE_ORDER = 1 << 10


@dataclass
class _State:
    """A graph under search: what a walk changes, and what it has found."""

    pattern: ChannelPattern
    least: int
    most: int
    cross_nic: int = 0
    count: int = 0
    within: float = 0.0
    across: float = 0.0
    latency_us: float = 0.0
    within_type: int = 0
    across_type: int = 0
    same: int = 0
    hops: int = 0
    orders: dict[tuple[int, int], int] = field(default_factory=dict)  # (channel, step) -> rank
    ports: dict[int, int] = field(default_factory=dict)  # 2 channel + (0 in, 1 out) -> port

    def saved(self) -> _State:
        found = copy(self)
        found.orders, found.ports = dict(self.orders), dict(self.ports)
        return found


class _Time:
    def __init__(self, steps: int) -> None:
        self.left = steps


def search(request: SearchRequest) -> ChannelGraph:
    """The channels that NCCL finds for a pattern."""
    limit = sys.getrecursionlimit()
    sys.setrecursionlimit(100_000)
    try:
        return _Search(request).found()
    finally:
        sys.setrecursionlimit(limit)


class _Search:
    def __init__(self, request: SearchRequest) -> None:
        self.request = request
        self.system: System = request.system
        self.gpus, self.nets = self.system.gpus, self.system.nets
        self.switches = self.system.nodes[SystemKind.NVS]
        self.rates = {
            link: link.gb_per_s for nodes in self.system.nodes.values() for v in nodes for link in v.links
        }
        self.net_rates = [net.net.gb_per_s for net in self.nets]
        self.used = [0] * len(self.gpus)
        self.preferred = request.preferred
        self.of_rank = {gpu.rank: gpu.index for gpu in self.gpus}
        self.back_to_net = self.back_to_first = -1

    # The loop over speeds, classes of paths and other relaxations

    def found(self) -> ChannelGraph:
        request, system = self.request, self.system
        inter, amd = system.several, system.maker == "amd"
        capability, count = system.least_capability, len(self.gpus)
        crosses = (
            request.cross_nic_setting
            if len(self.nets) > 1
            and request.pattern
            in (
                ChannelPattern.RING,
                ChannelPattern.BALANCED_TREE,
                ChannelPattern.SPLIT_TREE,
            )
            else 0
        )
        best = _State(request.pattern, request.least, request.most, cross_nic=int(crosses == 1))
        least_within, least_across = PathType.LOC, PathType.PIX
        most_within, most_across = PathType.SYS, PathType.SYS
        if count > 1:
            least_within, most_within = _span(self.gpus, SystemKind.GPU)
        if inter:
            least_across, most_across = _span(self.gpus, SystemKind.NET)
            most_within = most_across
        if capability < 90:
            most_across = PathType.SYS
        best.within_type, best.across_type = least_within, least_across
        try_same = 0 if request.pattern is ChannelPattern.NVLS else 1
        best.same = try_same
        if best.pattern is ChannelPattern.NVLS:
            if not self.switches or capability < 90:
                return self.graph(best)
            best.most = min(32, count)
        if best.pattern is ChannelPattern.COLLNET_DIRECT:
            best.most = min(8, count)
        if count == 1 and best.pattern is not ChannelPattern.RING:
            best.pattern = ChannelPattern.TREE
        if not inter and best.pattern is ChannelPattern.NVLS:
            best.least = best.most
        if (
            best.pattern is ChannelPattern.RING
            and _two_islands(self.gpus)
            and best.most >= 2
            and best.least == 1
        ):
            best.least = 2
        trial = best.saved()
        speeds = speeds_of(capability, several=inter)
        chips = len(system.nodes[SystemKind.DEV])
        most, total = system.most_gb_per_s, system.total_gb_per_s
        if chips > 1 and best.pattern is not ChannelPattern.RING:
            total *= chips / (chips - 1)
        at = 0
        while (speeds[at] > most or speeds[at] * best.least > total) and at < len(speeds) - 1:
            at += 1
        trial.within = trial.across = speeds[at]
        budget, first = STEPS_IN_ALL, True
        while True:
            time = _Time(STEPS_SAME if trial.same else STEPS)
            trial.count = 0
            budget -= time.left
            best = self.walk(trial, best, time)
            done = time.left == -1 or best.count * best.across >= system.total_gb_per_s
            if first and not done:
                if trial.same and not (amd and trial.within_type == PathType.SYS):
                    trial.same = 0
                    continue
                trial.same = try_same
                budget = budget + time.left if time.left != -1 else STEPS_IN_ALL
                if not (budget < 0 and best.count):
                    if capability >= 90 and trial.pattern is ChannelPattern.BALANCED_TREE:
                        trial.pattern = ChannelPattern.TREE
                        continue
                    trial.pattern = best.pattern
                    limit = trial.across_type if inter else most_within
                    if trial.within_type < limit and (
                        best.count == 0 or trial.within_type < best.within_type
                    ):
                        trial.within_type += 1
                        if trial.within_type < PathType.DIS:
                            continue
                    trial.within_type = least_within
                    if (
                        inter
                        and trial.across_type < most_across
                        and (
                            best.count == 0
                            or trial.across_type < best.across_type
                            or trial.across_type < PathType.PXN
                        )
                    ):
                        trial.across_type += 1
                        if trial.across_type < PathType.DIS:
                            continue
                    trial.across_type = least_across
                    if (
                        crosses == 2
                        and trial.cross_nic == 0
                        and best.pattern in (ChannelPattern.RING, ChannelPattern.BALANCED_TREE)
                    ):
                        trial.cross_nic = 2
                        continue
                    trial.cross_nic = int(crosses == 1)
                    if at < len(speeds) - 1 and (best.count == 0 or speeds[at + 1] / best.across > 0.49):
                        at += 1
                        trial.within = trial.across = speeds[at]
                        continue
                    at = 0
                    while speeds[at] > most and at < len(speeds) - 1:
                        at += 1
                    trial.within = trial.across = speeds[at]
            if first:
                time.left = -1
                _double(best, capability, count)
                trial = best.saved()
                at = 0
                while speeds[at] > best.across and at < len(speeds) - 1:
                    at += 1
                trial.within = trial.across = speeds[at]
                trial.least = best.count
                first = False
            if time.left == 0 or at == 0:
                break
            if best.pattern is ChannelPattern.RING:
                at -= 1
                trial.within = trial.across = speeds[at]
            elif (
                best.pattern is ChannelPattern.NVLS
                and trial.across == best.across
                and trial.across < trial.within * 2
            ):
                trial.least = trial.most = best.count
                at -= 1
                trial.across = speeds[at]
            elif trial.within == best.within and trial.within < trial.across * 2:
                at -= 1
                trial.within = speeds[at]
            else:
                break
        if best.count == 0 and not request.adds and best.pattern is not ChannelPattern.NVLS:
            self.simple_order(best)
        return self.graph(best)

    def simple_order(self, best: _State) -> None:
        """What NCCL takes where it finds no path at all."""
        best.orders = {(0, i): gpu.rank for i, gpu in enumerate(self.gpus)}
        best.within, best.within_type = 0.1, PathType.SYS
        ends = [self.preferred[0], self.preferred[-1]]
        if all(ends):
            best.across, best.across_type = 0.1, PathType.SYS
            best.ports = {0: ends[0][0], 1: ends[1][0]}
        else:
            best.across, best.across_type = 0.0, PathType.DIS
            best.ports = {}
        best.count = 1

    def graph(self, best: _State) -> ChannelGraph:
        size = len(self.gpus)
        whole = best.pattern is not ChannelPattern.NVLS
        return ChannelGraph(
            pattern=best.pattern,
            count=best.count,
            within=best.within,
            across=best.across,
            latency_us=best.latency_us,
            within_type=PathType(best.within_type),
            across_type=PathType(best.across_type),
            same=bool(best.same),
            cross_nic=best.cross_nic,
            hops=best.hops,
            orders=tuple(
                tuple(best.orders[c, s] for s in range(size if whole else 1)) for c in range(best.count)
            ),
            ports=tuple(
                (best.ports.get(2 * c, -1), best.ports.get(2 * c + 1, -1)) for c in range(best.count)
            ),
        )

    # One walk at given speeds

    def walk(self, trial: _State, best: _State, time: _Time) -> _State:
        last = len(self.gpus) - 1
        self.back_to_net = self.back_to_first = -1
        if self.system.several:
            self.back_to_net = {ChannelPattern.RING: last, ChannelPattern.SPLIT_TREE: 1}.get(trial.pattern, 0)
        elif trial.pattern is ChannelPattern.RING:
            self.back_to_first = last
        self.trial, self.best, self.time = trial, best, time
        self.channel(time)
        return self.best

    def channel(self, time: _Time) -> None:
        """Search the next channel."""
        g = self.trial
        if self.system.several:
            self.from_nets(time)
            return
        if g.pattern is ChannelPattern.NVLS:
            self.try_gpu(0, self.back_to_net, self.back_to_first, Order.ANY, time, None, g.count)
            return
        if g.count == 0:
            self.try_gpu(0, self.back_to_net, self.back_to_first, Order.FILE, time, None, 0)
        else:
            again = self.of_rank[g.orders[g.count - 1, 0]]
            self.try_gpu(0, self.back_to_net, self.back_to_first, Order.REPLAY, time, None, again)
        if not g.same or g.count == 0:
            for gpu in range(len(self.gpus)):
                self.try_gpu(0, self.back_to_net, self.back_to_first, Order.ANY, time, None, gpu)

    def selected(self, gpu: int) -> list[int]:
        """Ports to try: those that GPUs prefer, then others by class of path; ``gpu`` -1 is for all."""
        gpus = range(len(self.gpus)) if gpu == -1 else (gpu,)
        found = list(dict.fromkeys(n for g in gpus for n in self.preferred[g]))
        for kind in range(self.trial.across_type + 1):
            for g in gpus:
                paths = self.gpus[g].paths[SystemKind.NET]
                found += [
                    n for n in range(min(64, len(self.nets))) if paths[n].kind == kind and n not in found
                ]
        return found

    def from_nets(self, time: _Time) -> None:
        g = self.trial
        rate = int(g.across)
        nets = self.selected(-1)
        heads = g.pattern in (ChannelPattern.NVLS, ChannelPattern.COLLNET_DIRECT)
        found = False
        for i in range(len(nets)):
            if heads and found:
                break
            n = nets[(g.count + i) % len(nets)]
            net = self.nets[n]
            if self.request.adds and not net.net.adds:
                continue
            if self.net_rates[n] < rate:
                continue
            if (
                g.pattern is ChannelPattern.RING
                and g.cross_nic == 2
                and g.count % 2
                and n != g.ports[2 * (g.count - 1) + 1]
            ):
                continue
            g.ports[2 * g.count] = n
            g.latency_us = net.net.latency_us
            shared = [m for m, e in enumerate(self.nets) if e.asic == net.asic and e.net.port == net.net.port]
            for m in shared:
                self.net_rates[m] -= rate
            if heads:
                gpu = net.local_gpu
                if g.count < len(nets) and gpu != -1:
                    taken = any(g.orders[c, 0] == self.gpus[gpu].rank for c in range(g.count))
                    if not taken:
                        self.try_gpu(0, self.back_to_net, self.back_to_first, Order.ANY, time, net, gpu)
                        found = True
            elif g.count > 0 and g.same:
                again = self.of_rank[g.orders[g.count - 1, 0]]
                self.try_gpu(0, self.back_to_net, self.back_to_first, Order.REPLAY, time, net, again)
            else:
                if g.count == 0 and not self.switches:
                    short = _Time(STEPS_IN_FILE_ORDER)
                    self.try_gpu(0, self.back_to_net, self.back_to_first, Order.FILE, short, net, 0)
                    if short.left == -1:
                        time.left = -1
                if net.local_gpu != -1:
                    self.try_gpu(0, self.back_to_net, self.back_to_first, Order.ANY, time, net, net.local_gpu)
                near, kind = local(net, SystemKind.GPU, len(self.gpus))
                if kind is PathType.DIS:
                    continue
                for gpu in near:
                    if gpu != net.local_gpu:
                        self.try_gpu(0, self.back_to_net, self.back_to_first, Order.ANY, time, net, gpu)
            for m in shared:
                self.net_rates[m] += rate

    def try_gpu(
        self,
        step: int,
        back_to_net: int,
        back_to_first: int,
        order: Order,
        time: _Time,
        origin: SystemNode | None,
        gpu: int,
    ) -> None:
        flag = 1 << self.trial.count
        if self.follow(origin, self.gpus[gpu], 1):
            self.used[gpu] ^= flag
            self.at_gpu(gpu, step, back_to_net, back_to_first, order, time)
            self.used[gpu] ^= flag
            self.follow(origin, self.gpus[gpu], -1)

    def at_gpu(
        self, gpu: int, step: int, back_to_net: int, back_to_first: int, order: Order, time: _Time
    ) -> None:
        if time.left <= 0:
            return
        time.left -= 1
        g, size = self.trial, len(self.gpus)
        if step == size:
            self.complete(time)
            return
        g.orders[g.count, step] = self.gpus[gpu].rank
        if step == back_to_net:
            if self.system.several:
                self.back_out(gpu, step, back_to_first, order, time)
        elif g.pattern is ChannelPattern.NVLS:
            self.try_nvls(gpu, time)
        elif g.pattern is ChannelPattern.COLLNET_DIRECT:
            self.try_direct(gpu, time)
        elif step < size - 1:
            if order is Order.FILE:
                following = [step + 1]
            elif order is Order.REPLAY:
                following = [self.of_rank[g.orders[g.count - 1, step + 1]]]
            else:
                following = self.sorted_next(
                    gpu, 0 if back_to_net == -1 else 1 if back_to_net == step + 1 else -1
                )
            for each in following:
                self.try_gpu(step + 1, back_to_net, back_to_first, order, time, self.gpus[gpu], each)
        elif step == back_to_first:
            first = self.of_rank[g.orders[g.count, 0]]
            if self.follow(self.gpus[gpu], self.gpus[first], 1):
                self.at_gpu(first, step + 1, back_to_net, -1, order, time)
                self.follow(self.gpus[gpu], self.gpus[first], -1)
        else:
            self.at_gpu(gpu, size, -1, -1, order, time)

    def complete(self, time: _Time) -> None:
        g = self.trial
        g.count += 1
        if self.better():
            self.best = g.saved()
            if g.count == g.most:
                time.left = -1
        if g.count < g.most:
            self.channel(time)
        g.count -= 1

    def better(self) -> bool:
        g, b = self.trial, self.best
        if g.count < g.least:
            return False
        if g.pattern is ChannelPattern.NVLS:
            return (b.count < g.count <= len(self.gpus)) or g.count * g.across > b.count * b.across
        mine, theirs = g.count * g.within, b.count * b.within
        if mine != theirs:
            return mine > theirs
        return g.pattern == b.pattern and g.cross_nic == b.cross_nic and g.hops < b.hops

    def back_out(self, gpu: int, step: int, back_to_first: int, order: Order, time: _Time) -> None:
        g = self.trial
        start = self.nets[g.ports[2 * g.count]]
        balanced = g.pattern is ChannelPattern.BALANCED_TREE
        for n in self.selected(gpu):
            if not self.may_leave(start, n, step):
                continue
            following = 1 if balanced and step == 0 else -1
            whole = g.across
            if balanced:
                g.across /= 2
            reached = self.follow(self.gpus[gpu], self.nets[n], 1)
            g.across = whole
            if reached:
                g.ports[2 * g.count + 1] = n
                self.at_gpu(gpu, step, following, back_to_first, order, time)
                if balanced:
                    g.across /= 2
                self.follow(self.gpus[gpu], self.nets[n], -1)
                g.across = whole

    def may_leave(self, start: SystemNode, n: int, step: int) -> bool:
        g, net = self.trial, self.nets[n]
        if g.pattern is ChannelPattern.TREE and net is not start:
            return False
        if g.pattern is ChannelPattern.RING and g.cross_nic == 2:
            if g.count % 2 and n != g.ports[2 * (g.count - 1)]:
                return False
        elif g.cross_nic == 0 and (net.asic != start.asic or net.net.port != start.net.port):
            return False
        return not (g.pattern is ChannelPattern.BALANCED_TREE and step and n != g.ports[2 * g.count + 1])

    def sorted_next(self, gpu: int, nearness: int) -> list[int]:
        """GPUs to go on to: nearest to the port first (1), last (-1), or by paths inside alone (0)."""
        g, size = self.trial, len(self.gpus)
        flag = 1 << g.count
        paths = self.gpus[gpu].paths[SystemKind.GPU]
        net_paths = self.nets[g.ports[2 * g.count]].paths[SystemKind.GPU] if nearness else None
        scores = []
        for i in range(1, size):
            each = (gpu + i) % size
            if not paths[each].links or self.used[each] & flag:
                continue
            far = (0, 0, 0)
            if net_paths is not None:
                far = (
                    -int(net_paths[each].gb_per_s),
                    -self.pcie_rate(self.gpus[each]),
                    len(net_paths[each].links),
                )
            inside = (-int(paths[each].gb_per_s), len(paths[each].links))
            scores.append((*far, *inside, i, each))
        scores.sort()
        found = [score[-1] for score in scores]
        if nearness == -1 and len({score[3:5] for score in scores}) <= 1:
            found.reverse()
        if self.switches:
            before, after = (gpu - 1) % size, (gpu + 1) % size
            if g.pattern is ChannelPattern.RING:
                first = [after, before]
            elif g.pattern in (ChannelPattern.SPLIT_TREE, ChannelPattern.BALANCED_TREE):
                first = [before, after]
            else:
                first = [after]
            near = [each for each in dict.fromkeys(first) if each in found]
            return near[::-1]
        return found

    def pcie_rate(self, gpu: SystemNode) -> int:
        chip = gpu.parent
        assert chip is not None
        for link in chip.links:
            if link.kind is LINK_PCI:
                back = next((each for each in link.to.links if each.to is chip), None)
                if back is not None:
                    return int(min(self.rates[link], self.rates[back]))
        return -1

    def try_nvls(self, gpu: int, time: _Time) -> None:
        switch = self.switches[0]
        taken: list[tuple[SystemNode, SystemNode, int]] = []
        ends = [(switch, each) for each in self.gpus] + [(each, switch) for each in self.gpus]
        for a, b in ends:
            times = 2 if self.gpus[gpu] in (a, b) else 1
            if not self.follow(a, b, times):
                break
            taken.append((a, b, times))
        else:
            self.at_gpu(-1, len(self.gpus), -1, -1, Order.ANY, time)
        for a, b, times in reversed(taken):
            self.follow(a, b, -times)

    def try_direct(self, gpu: int, time: _Time) -> None:
        share = 1 / (len(self.gpus) - 1) if len(self.gpus) > 1 else math.inf
        taken: list[tuple[SystemNode, SystemNode]] = []
        head = self.gpus[gpu]
        for a, b in [(head, each) for each in self.gpus] + [(each, head) for each in self.gpus]:
            if not self.follow(a, b, share):
                break
            taken.append((a, b))
        else:
            others = [each.rank for each in self.gpus if each is not head]
            for step, rank in enumerate(others, 1):
                self.trial.orders[self.trial.count, step] = rank
            self.at_gpu(-1, len(self.gpus), -1, -1, Order.ANY, time)
        for a, b in reversed(taken):
            self.follow(a, b, -share)

    # Rates that are left on links

    def follow(self, a: SystemNode | None, b: SystemNode, times: float) -> bool:
        """Take the rate of a channel (or give it back, by ``times`` < 0) along the path from ``a`` to ``b``."""
        if a is None:
            return True
        g = self.trial
        path = a.paths[b.kind][b.index]
        inside = SystemKind.NET not in (a.kind, b.kind)
        rate, kind = (g.within, g.within_type) if inside else (g.across, g.across_type)
        if path.kind is PathType.DIS or (times == 1 and path.kind > kind):
            return False
        if times == 1 and g.pattern in TREES and b.paths[a.kind][a.index].kind > kind:
            return False
        rate *= times
        steps = self.take(path, a, len(path.links), rate)
        if steps < len(path.links):
            self.take(path, a, steps, -rate)
            return False
        g.hops = int(g.hops + times * len(path.links))
        return True

    def take(self, path: Path, start: SystemNode, most: int, rate: float) -> int:
        pcie = rate
        for link in path.links:
            if (
                link.to.kind is SystemKind.CPU
                and path.kind is PathType.PHB
                and start.kind is SystemKind.GPU
                and link.to.maker == "intel"
            ):
                pcie = rate * 6 / 5
        node = start
        for step, link in enumerate(path.links[:most]):
            forward = pcie if link.kind is LINK_PCI else rate
            backward = 0.0
            to = link.to
            if (
                to.kind is SystemKind.DEV
                and to.described.capability < 80
                and start.kind is not SystemKind.GPU
            ):
                backward += forward / 8
            if to.kind is SystemKind.CPU and to.maker == "ibm" and link.kind is PathType.NVL:
                backward += forward
            back: SystemLink | None = None
            if backward:
                back = next(each for each in to.links if each.to is node and each.kind is link.kind)
            if self.rates[link] < forward or (back is not None and self.rates[back] < backward):
                return step
            self.rates[link] = _rounded(self.rates[link] - forward)
            if back is not None:
                self.rates[back] = _rounded(self.rates[back] - backward)
            node = to
        return most


def _rounded(value: float) -> float:
    return math.copysign(math.floor(abs(value) * 1000 + 0.5), value) / 1000


def _span(gpus: list[SystemNode], kind: SystemKind) -> tuple[PathType, PathType]:
    """Best and worst class of the paths from GPUs to other nodes of a kind."""
    kinds = [
        path.kind
        for gpu in gpus
        for i, path in enumerate(gpu.paths.get(kind, ()))
        if kind is not SystemKind.GPU or i != gpu.index
    ]
    return min([PathType.SYS, *kinds]), max([PathType.LOC, *kinds])


def _two_islands(gpus: list[SystemNode]) -> bool:
    """Whether NVLinks join the GPUs to two islands."""
    island = list(range(len(gpus)))
    for g, gpu in enumerate(gpus):
        for p in range(g + 1, len(gpus)):
            if gpu.paths[SystemKind.GPU][p].kind is PathType.NVL:
                island[p] = island[g]
    return sum(island.count(each) > 1 for each in range(len(gpus))) == 2


def _double(best: _State, capability: int, size: int) -> None:
    """Split fast channels in two."""
    if best.count == 0 or best.pattern is ChannelPattern.NVLS or best.within < 25:
        return
    if capability > 80 and best.within < 50 and best.count > 4:
        return
    doubled = min(2 * best.count, best.most)
    for c in range(best.count, doubled):
        for step in range(size):
            best.orders[c, step] = best.orders[c - best.count, step]
        for end in (0, 1):
            if 2 * (c - best.count) + end in best.ports:
                best.ports[2 * c + end] = best.ports[2 * (c - best.count) + end]
    parts = -(-doubled // best.count)
    best.within /= parts
    best.across /= parts
    best.count = doubled
