"""Twin of cpp/aggregation/camdoop.h: hops that add along trees, with credit on every link."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from reference.innetwork.frames import NONE, Frame, Sent, TwinJob, TwinNode, Words, added, after, read_frame

VALUES, SUMS, ACKNOWLEDGED, REBUILT, HELLO, START = 1, 2, 3, 4, 5, 6
Body = tuple[int, Words]
"""``extra`` and words of a frame, without the life."""


def plus(number: int, more: int) -> int:
    return (number + more) % 2**32


def well_formed(frame: Frame, job: TwinJob) -> bool:
    if not VALUES <= frame.type <= START or not len(frame.words):
        return False
    if frame.type not in (VALUES, SUMS):
        return len(frame.words) == 1 and (frame.type == ACKNOWLEDGED or frame.extra == 0)
    if not job.number("pairs"):
        return len(frame.words) == 1 + job.values and frame.extra == 0
    keys = frame.words[1::2].astype(np.int64)
    fits = len(frame.words) % 2 == 1 and len(frame.words) <= 1 + 2 * job.values
    return fits and frame.extra <= 1 and bool((np.diff(keys) > 0).all())


class Receiver:
    def __init__(self, room: int) -> None:
        self.room = room
        self.start(0)

    def start(self, number: int) -> None:
        self.frames: dict[int, Body] = {}
        self.expected = self.used = number
        self.told = plus(number, self.room)

    @property
    def limit(self) -> int:
        return plus(self.used, self.room)

    @property
    def ready(self) -> bool:
        return self.used != self.expected

    @property
    def head(self) -> Body:
        return self.frames[self.used]

    def use(self) -> Body:
        body = self.frames.pop(self.used)
        self.used = plus(self.used, 1)
        return body

    @property
    def should_tell(self) -> bool:
        return self.told != self.limit and 2 * after(self.told, self.expected) <= self.room

    def take(self, frame: Frame) -> str:
        if after(frame.number, self.expected) < 0:
            return "repeated"
        if after(frame.number, self.limit) >= 0:
            return "over_quota"
        if frame.number in self.frames:
            return "repeated"
        self.frames[frame.number] = (frame.extra, frame.words[1:])
        while self.expected != self.limit and self.expected in self.frames:
            self.expected = plus(self.expected, 1)
        return "aggregated"


class Sender:
    acknowledged = sent = limit = 0

    def start(self, number: int, room: int) -> None:
        self.acknowledged = self.sent = number
        self.limit = plus(number, room)

    def take(self, number: int, limit: int, following: int) -> bool:
        if after(number, self.acknowledged) < 0 or after(number, following) > 0:
            return False
        news = number != self.acknowledged or after(limit, self.limit) > 0
        self.acknowledged = number
        if after(number, self.sent) > 0:
            self.sent = number
        if after(limit, self.limit) > 0:
            self.limit = limit
        return news

    def again(self) -> list[int]:
        """What is sent again after a time-out: what is not acknowledged, or one frame to learn of room."""
        count = after(self.sent, self.acknowledged) or 1
        return [plus(self.acknowledged, n) for n in range(count)]


class HopTwin(TwinNode):
    """A hop of one tree."""

    def __init__(self, job: TwinJob, children: Sequence[int], parent: int = -1) -> None:
        super().__init__()
        self.reopen(job, children, parent)

    def reopen(self, job: TwinJob, children: Sequence[int], parent: int) -> None:
        self.job, self.children, self.parent = job, list(children), parent
        self.life = job.number("life")
        self.started = False
        self.first = 0
        self.heard: set[int] = set()
        self.sources = [Receiver(job.slots) for _ in children]
        self.above = Receiver(job.slots)
        self.up: dict[int, Body] = {}
        self.down: dict[int, Body] = {}
        self.up_next = self.down_next = 0
        self.to_parent = Sender()
        self.to = [Sender() for _ in children]
        self.cursor = [0] * len(self.children)
        self.ended = [False] * len(self.children)
        self.merged: list[int] = []
        self.timer = 0

    def put(self, kind: int, number: int, to: int, extra: int = 0, words: Words = NONE) -> None:
        body = np.concatenate([np.array([self.life], dtype=np.uint32), words])
        self.send([to], Frame(kind, self.job.id, number, body, self.job.number("tree"), extra))

    def acknowledge(self, receiver: Receiver, to: int) -> None:
        receiver.told = receiver.limit
        self.put(ACKNOWLEDGED, receiver.expected, to, receiver.told)

    @property
    def root(self) -> bool:
        return self.parent == -1

    @property
    def busy(self) -> bool:
        if not self.started:
            return bool(self.heard)
        return self.to_parent.acknowledged != self.up_next or self.oldest != self.down_next

    @property
    def oldest(self) -> int:
        return plus(self.down_next, min(after(each.acknowledged, self.down_next) for each in self.to))

    def receive(self, sender: int, packet: bytes, now: int) -> Sent:
        self.counts["received"] += 1
        frame = read_frame(packet)
        if frame is None or not len(frame.words):
            self.counts["malformed"] += 1
            return []
        below = sender in self.children
        if (frame.job, frame.lane) != (self.job.id, self.job.number("tree")) or not (
            below or sender == self.parent != -1
        ):
            self.counts["stranger"] += 1
            return []
        wrong = (SUMS, START, REBUILT) if below else (VALUES, HELLO)
        if frame.type in wrong or not well_formed(frame, self.job):
            self.counts["malformed"] += 1
            return []
        life = int(frame.words[0])
        if life != self.life or frame.type == REBUILT:
            self.counts["bad_epoch"] += 1
            if life < self.life and below:
                self.put(REBUILT, 0, sender)
            return self.sent()
        was_busy = self.busy
        child = self.children.index(sender) if below else -1
        if self.accept(frame, child, sender) or (not was_busy and self.busy):
            self.timer = now + self.job.timeout
        return self.sent()

    def accept(self, frame: Frame, child: int, sender: int) -> bool:
        """Whether it brings news of what the hop has sent."""
        if frame.type == HELLO:
            self.hello(child, frame.number)
        elif frame.type == START:
            if self.started or len(self.heard) < len(self.children):
                self.counts["repeated" if self.started else "ahead"] += 1
                return False
            self.start(frame.number)
            self.proceed(None)
            return True
        elif not self.started:
            self.counts["ahead"] += 1
        elif frame.type == ACKNOWLEDGED:
            one = self.to[child] if child >= 0 else self.to_parent
            news = one.take(frame.number, frame.extra, self.down_next if child >= 0 else self.up_next)
            if news:
                self.proceed(None)
            else:
                self.counts["stale"] += 1
            return news
        else:
            receiver = self.sources[child] if child >= 0 else self.above
            self.counts[receiver.take(frame)] += 1
            self.proceed(receiver)
            self.acknowledge(receiver, sender)
        return False

    def hello(self, child: int, number: int) -> None:
        if self.started:
            self.counts["answered"] += 1
            self.put(START, self.first, self.children[child])
            self.acknowledge(self.sources[child], self.children[child])
        elif child in self.heard:
            self.counts["repeated"] += 1
        else:
            if not self.heard or after(number, self.first) < 0:
                self.first = number
            self.heard.add(child)
            if len(self.heard) == len(self.children):
                if self.root:
                    self.start(self.first)
                else:
                    self.put(HELLO, self.first, self.parent)

    def start(self, number: int) -> None:
        self.started = True
        self.first = self.up_next = self.down_next = number
        self.to_parent.start(number, self.job.slots)
        self.above.start(number)
        for child, endpoint in enumerate(self.children):
            self.sources[child].start(number)
            self.to[child].start(number, self.job.slots)
            self.put(START, number, endpoint)
        self.proceed(None)

    @property
    def room(self) -> bool:
        used = (
            after(self.down_next, self.oldest)
            if self.root
            else after(self.up_next, self.to_parent.acknowledged)
        )
        return used < self.job.slots

    def emit(self, extra: int, words: Words) -> None:
        if self.root:
            self.counts["completed"] += 1
            self.down[self.down_next] = (extra, words)
            self.down_next = plus(self.down_next, 1)
        else:
            self.counts["forwarded"] += 1
            self.up[self.up_next] = (extra, words)
            self.up_next = plus(self.up_next, 1)

    def add(self) -> bool:
        if not all(each.ready for each in self.sources) or not self.room:
            return False
        _, total = self.sources[0].use()
        for each in self.sources[1:]:
            total = added(self.job.element, total, each.use()[1])
        self.emit(0, total)
        return True

    def merge(self) -> bool:
        moved = False
        while True:
            for child, source in enumerate(self.sources):
                while not self.ended[child] and source.ready and self.cursor[child] == len(source.head[1]):
                    self.ended[child] = source.use()[0] == 1
                    self.cursor[child] = 0
                    moved = True
                if not self.ended[child] and not source.ready:
                    return moved
            going = [child for child, ended in enumerate(self.ended) if not ended]
            if not going or len(self.merged) == 2 * self.job.values:
                if not self.room:
                    return moved
                self.emit(int(not going), np.array(self.merged, dtype=np.uint32))
                self.merged = []
                if not going:
                    self.ended = [False] * len(self.children)
                return True
            pairs = [(int(self.sources[c].head[1][self.cursor[c]]), c) for c in going]
            least = min(pairs)[0]
            total: Words | None = None
            for key, child in pairs:
                if key == least:
                    value = self.sources[child].head[1][self.cursor[child] + 1 : self.cursor[child] + 2]
                    total = value if total is None else added(self.job.element, total, value)
                    self.cursor[child] += 2
            assert total is not None
            self.merged += [least, int(total[0])]
            moved = True

    def proceed(self, but: Receiver | None) -> None:
        moved = True
        while moved:
            moved = self.merge() if self.job.number("pairs") else self.add()
            while not self.root and self.above.ready and after(self.down_next, self.oldest) < self.job.slots:
                self.down[self.down_next] = self.above.use()
                self.down_next = plus(self.down_next, 1)
                moved = True
        if not self.root:
            self.send_more(self.to_parent, VALUES, self.up, self.up_next, self.parent)
        for child, endpoint in enumerate(self.children):
            self.send_more(self.to[child], SUMS, self.down, self.down_next, endpoint)
            if self.sources[child] is not but and self.sources[child].should_tell:
                self.acknowledge(self.sources[child], endpoint)
        if not self.root and self.above is not but and self.above.should_tell:
            self.acknowledge(self.above, self.parent)

    def send_more(self, sender: Sender, kind: int, frames: dict[int, Body], following: int, to: int) -> None:
        while sender.sent != following and after(sender.limit, sender.sent) > 0:
            self.counts["sent"] += 1
            self.put(kind, sender.sent, to, *frames[sender.sent])
            sender.sent = plus(sender.sent, 1)

    def deadline_ns(self) -> int | None:
        return self.timer if self.busy else None

    def wake(self, now: int) -> Sent:
        if not self.busy or now < self.timer:
            return []
        self.timer = now + self.job.timeout
        if not self.started:
            if len(self.heard) == len(self.children):
                self.put(HELLO, self.first, self.parent)
            for child, endpoint in enumerate(self.children):
                if child not in self.heard:
                    self.put(REBUILT, 0, endpoint)
            return self.sent()
        links = [] if self.root else [(self.to_parent, VALUES, self.up, self.up_next, self.parent)]
        links += [(self.to[c], SUMS, self.down, self.down_next, each) for c, each in enumerate(self.children)]
        for sender, kind, frames, following, to in links:
            if sender.acknowledged != following:
                for number in sender.again():
                    self.counts["resent"] += 1
                    self.put(kind, number, to, *frames[number])
        return self.sent()


@dataclass
class Lane:
    life: int
    begin: int
    base: int
    end: int
    made: int
    source: Receiver
    started: bool = False
    chunks: dict[int, Body] = field(default_factory=dict)
    to: Sender = field(default_factory=Sender)
    timer: int = 0
    pairs_to_cut: list[tuple[int, int]] | None = None
    merged: list[tuple[int, int]] = field(default_factory=list)

    @property
    def waits(self) -> bool:
        if not self.started:
            return self.begin != self.end
        return self.base != self.end or self.to.acknowledged != self.made


class CamdoopWorkerTwin(TwinNode):
    def __init__(self, job: TwinJob, above: int) -> None:
        super().__init__()
        self.job, self.above = job, above
        first = job.number("first")
        self.lanes = [
            Lane(job.number("life"), first, first, first, first, Receiver(job.slots))
            for _ in range(job.number("trees", 1))
        ]
        self.failed = False
        self.progress = 0
        self.pairs = bool(job.number("pairs"))

    @property
    def done(self) -> bool:
        return all(lane.base == lane.end for lane in self.lanes)

    def begin(self, words: Words, now: int) -> Sent:
        values, trees = self.job.values, len(self.lanes)
        frames = -(-len(words) // values)
        self.words = np.zeros(frames * values, dtype=np.uint32)
        self.words[: len(words)] = words
        self.output = np.zeros(frames * values, dtype=np.uint32)
        self.progress = now
        pairs = list(zip(words[0::2].tolist(), words[1::2].tolist(), strict=True)) if self.pairs else []
        for tree, lane in enumerate(self.lanes):
            lane.begin = lane.end
            lane.end = plus(lane.end, 1 if self.pairs else len(range(tree, frames, trees)))
            lane.merged = []
            lane.pairs_to_cut = [pair for pair in pairs if pair[0] % trees == tree]
            if lane.begin != lane.end:
                lane.timer = now + self.job.timeout
                if lane.started:
                    self.proceed(tree)
                else:
                    self.put(tree, HELLO, lane.begin)
        return self.sent()

    def cut(self, tree: int) -> bool:
        lane = self.lanes[tree]
        if self.pairs:
            ring = 1 << (2 * self.job.window - 1).bit_length()
            if (
                lane.pairs_to_cut is None
                or lane.base == lane.end
                or after(lane.made, lane.to.acknowledged) >= ring
            ):
                return False
            now, rest = lane.pairs_to_cut[: self.job.values], lane.pairs_to_cut[self.job.values :]
            words = np.array([word for pair in now for word in pair], dtype=np.uint32)
            lane.chunks[lane.made] = (int(not rest), words)
            lane.pairs_to_cut = rest or None
        else:
            if lane.made == lane.end or after(lane.made, lane.base) >= self.job.window:
                return False
            at = (after(lane.made, lane.begin) * len(self.lanes) + tree) * self.job.values
            lane.chunks[lane.made] = (0, self.words[at : at + self.job.values])
        lane.made = plus(lane.made, 1)
        return True

    def put(self, tree: int, kind: int, number: int, extra: int = 0, words: Words = NONE) -> None:
        body = np.concatenate([np.array([self.lanes[tree].life], dtype=np.uint32), words])
        self.send([self.above], Frame(kind, self.job.id, number, body, tree, extra))

    def proceed(self, tree: int) -> None:
        lane = self.lanes[tree]
        while (
            lane.started
            and after(lane.to.limit, lane.to.sent) > 0
            and (lane.to.sent != lane.made or self.cut(tree))
        ):
            self.counts["sent"] += 1
            self.put(tree, VALUES, lane.to.sent, *lane.chunks[lane.to.sent])
            lane.to.sent = plus(lane.to.sent, 1)

    def receive(self, sender: int, packet: bytes, now: int) -> Sent:
        self.counts["received"] += 1
        frame = read_frame(packet)
        if frame is None or not len(frame.words):
            self.counts["malformed"] += 1
        elif sender != self.above or frame.job != self.job.id or frame.lane >= len(self.lanes):
            self.counts["stranger"] += 1
        elif not well_formed(frame, self.job) or frame.type in (VALUES, HELLO):
            self.counts["malformed"] += 1
        else:
            self.accept(frame, now)
        return self.sent()

    def accept(self, frame: Frame, now: int) -> None:
        tree, life = frame.lane, int(frame.words[0])
        lane = self.lanes[tree]
        if frame.type == REBUILT and (life > lane.life or (life == lane.life and not lane.started)):
            if life > lane.life and self.pairs and lane.begin != lane.end:
                self.failed = True
                return
            lane.life, lane.started, lane.timer = life, False, now + self.job.timeout
            self.put(tree, HELLO, lane.base)
        elif life != lane.life:
            self.counts["bad_epoch"] += 1
        elif frame.type == REBUILT:
            self.counts["repeated"] += 1
        elif frame.type == START:
            if lane.started:
                self.counts["repeated"] += 1
            elif not self.pairs and not 0 <= after(lane.base, frame.number) <= self.job.window:
                self.counts["malformed"] += 1
            else:
                lane.started, lane.timer = True, now + self.job.timeout
                lane.to.start(frame.number, self.job.slots)
                lane.source.start(frame.number)
                self.proceed(tree)
        elif not lane.started:
            self.counts["ahead"] += 1
        elif frame.type == ACKNOWLEDGED:
            if lane.to.take(frame.number, frame.extra, lane.made):
                lane.timer = now + self.job.timeout
                self.proceed(tree)
            else:
                self.counts["stale"] += 1
        else:
            self.counts[lane.source.take(frame)] += 1
            if lane.source.ready:
                while lane.source.ready:
                    self.take(tree)
                self.progress, lane.timer = now, now + self.job.timeout
                self.proceed(tree)
            lane.source.told = lane.source.limit
            self.put(tree, ACKNOWLEDGED, lane.source.expected, lane.source.told)

    def take(self, tree: int) -> None:
        lane = self.lanes[tree]
        number = lane.source.used
        extra, words = lane.source.use()
        if self.pairs:
            self.counts["completed"] += 1
            lane.merged += zip(words[0::2].tolist(), words[1::2].tolist(), strict=True)
            lane.base = plus(lane.base, extra)
            if self.done:
                pairs = sorted(pair for each in self.lanes for pair in each.merged)
                self.output = np.array(
                    [len(pairs), 0, *(word for pair in pairs for word in pair)], dtype=np.uint32
                )
        elif lane.base != lane.end and number == lane.base:
            self.counts["completed"] += 1
            at = (after(lane.base, lane.begin) * len(self.lanes) + tree) * self.job.values
            self.output[at : at + self.job.values] = words
            lane.base = plus(lane.base, 1)

    def deadline_ns(self) -> int | None:
        if self.failed:
            return None
        times = [lane.timer for lane in self.lanes if lane.waits]
        if not self.done:
            times.append(self.progress + self.job.patience)
        return min(times, default=None)

    def wake(self, now: int) -> Sent:
        deadline = self.deadline_ns()
        if deadline is None or now < deadline:
            return []
        if not self.done and now >= self.progress + self.job.patience:
            self.failed = True
            return []
        for tree, lane in enumerate(self.lanes):
            if not lane.waits or now < lane.timer:
                continue
            lane.timer = now + self.job.timeout
            if not lane.started or lane.to.acknowledged == lane.made:
                self.put(tree, HELLO, lane.base)
                continue
            for number in lane.to.again():
                self.counts["resent"] += 1
                self.put(tree, VALUES, number, *lane.chunks[number])
        return self.sent()
