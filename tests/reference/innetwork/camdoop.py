"""Reference of cpp/hardware_trees/camdoop.h: hops that add along trees, with credit on every link."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from reference.innetwork.frames import NONE, Frame, Words, added, after, read_frame
from reference.innetwork.machine import Job, Machine, Sent

VALUES, SUMS, ACKNOWLEDGED, REBUILT, HELLO, START = 1, 2, 3, 4, 5, 6
Body = tuple[int, Words]
"""``extra`` and words of a frame, without the epoch."""


def plus(number: int, more: int) -> int:
    return (number + more) % 2**32


def well_formed(frame: Frame, job: Job) -> bool:
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
            return "duplicate"
        if after(frame.number, self.limit) >= 0:
            return "over_quota"
        if frame.number in self.frames:
            return "duplicate"
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


class HopReference(Machine):
    """A hop of one tree."""

    def __init__(self, job: Job, children: Sequence[int], parent: int = -1) -> None:
        super().__init__()
        self.open(job, children, parent)

    def open(self, job: Job, children: Sequence[int], parent: int) -> None:
        self.job, self.children, self.parent = job, list(children), parent
        self.epoch = job.number("life")
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
        body = np.concatenate([np.array([self.epoch], dtype=np.uint32), words])
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
        self.counters["received"] += 1
        frame = read_frame(packet)
        if frame is None or not len(frame.words):
            self.counters["malformed"] += 1
            return []
        below = sender in self.children
        if (frame.job, frame.tree) != (self.job.id, self.job.number("tree")) or not (
            below or sender == self.parent != -1
        ):
            self.counters["unknown_sender"] += 1
            return []
        wrong = (SUMS, START, REBUILT) if below else (VALUES, HELLO)
        if frame.type in wrong or not well_formed(frame, self.job):
            self.counters["malformed"] += 1
            return []
        epoch = int(frame.words[0])
        if epoch != self.epoch or frame.type == REBUILT:
            self.counters["bad_epoch"] += 1
            if epoch < self.epoch and below:
                self.put(REBUILT, 0, sender)
            if epoch == self.epoch and not self.started:
                self.tell_unheard()
            return self.taken()
        was_busy = self.busy
        child = self.children.index(sender) if below else -1
        if self.accept(frame, child, sender) or (not was_busy and self.busy):
            self.timer = now + self.job.timeout
        return self.taken()

    def accept(self, frame: Frame, child: int, sender: int) -> bool:
        """Whether it brings news of what the hop has sent."""
        if frame.type == HELLO:
            self.hello(child, frame.number)
        elif frame.type == START:
            if self.started or len(self.heard) < len(self.children):
                self.counters["duplicate" if self.started else "future"] += 1
                return False
            self.start(frame.number)
            self.proceed(None)
            return True
        elif not self.started:
            self.counters["future"] += 1
        elif frame.type == ACKNOWLEDGED:
            one = self.to[child] if child >= 0 else self.to_parent
            news = one.take(frame.number, frame.extra, self.down_next if child >= 0 else self.up_next)
            if news:
                self.proceed(None)
            else:
                self.counters["stale"] += 1
            return news
        else:
            receiver = self.sources[child] if child >= 0 else self.above
            self.counters[receiver.take(frame)] += 1
            self.proceed(receiver)
            self.acknowledge(receiver, sender)
        return False

    def hello(self, child: int, number: int) -> None:
        if self.started:
            self.counters["answered"] += 1
            self.put(START, self.first, self.children[child])
            self.acknowledge(self.sources[child], self.children[child])
        elif child in self.heard:
            self.counters["duplicate"] += 1
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
            self.counters["completed"] += 1
            self.down[self.down_next] = (extra, words)
            self.down_next = plus(self.down_next, 1)
        else:
            self.counters["forwarded"] += 1
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
            self.counters["sent"] += 1
            self.put(kind, sender.sent, to, *frames[sender.sent])
            sender.sent = plus(sender.sent, 1)

    def tell_unheard(self) -> None:
        """Children that have all sums keep silent until they are told of the rebuilt tree."""
        for child, endpoint in enumerate(self.children):
            if child not in self.heard:
                self.put(REBUILT, 0, endpoint)

    def deadline(self) -> int | None:
        return self.timer if self.busy else None

    def wake(self, now: int) -> Sent:
        if not self.busy or now < self.timer:
            return []
        self.timer = now + self.job.timeout
        if not self.started:
            if len(self.heard) == len(self.children):
                self.put(HELLO, self.first, self.parent)
            self.tell_unheard()
            return self.taken()
        links = [] if self.root else [(self.to_parent, VALUES, self.up, self.up_next, self.parent)]
        links += [(self.to[c], SUMS, self.down, self.down_next, each) for c, each in enumerate(self.children)]
        for sender, kind, frames, following, to in links:
            if sender.acknowledged != following:
                for number in sender.again():
                    self.counters["resent"] += 1
                    self.put(kind, number, to, *frames[number])
        return self.taken()


@dataclass
class Tree:
    epoch: int
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


class CamdoopWorkerReference(Machine):
    def __init__(self, job: Job, above: int) -> None:
        super().__init__()
        self.job, self.above = job, above
        first = job.number("first")
        self.trees = [
            Tree(job.number("life"), first, first, first, first, Receiver(job.slots))
            for _ in range(job.number("trees", 1))
        ]
        self.failed = False
        self.progress = 0
        self.pairs = bool(job.number("pairs"))

    @property
    def done(self) -> bool:
        return all(tree.base == tree.end for tree in self.trees)

    def begin(self, words: Words, now: int) -> Sent:
        values, trees = self.job.values, len(self.trees)
        frames = -(-len(words) // values)
        self.words = np.zeros(frames * values, dtype=np.uint32)
        self.words[: len(words)] = words
        self.output = np.zeros(frames * values, dtype=np.uint32)
        self.progress = now
        pairs = list(zip(words[0::2].tolist(), words[1::2].tolist(), strict=True)) if self.pairs else []
        for which, tree in enumerate(self.trees):
            tree.begin = tree.end
            tree.end = plus(tree.end, 1 if self.pairs else len(range(which, frames, trees)))
            tree.merged = []
            tree.pairs_to_cut = [pair for pair in pairs if pair[0] % trees == which]
            if tree.begin != tree.end:
                tree.timer = now + self.job.timeout
                if tree.started:
                    self.proceed(which)
                else:
                    self.put(which, HELLO, tree.begin)
        return self.taken()

    def cut(self, which: int) -> bool:
        tree = self.trees[which]
        if self.pairs:
            ring = 1 << (2 * self.job.window - 1).bit_length()
            if (
                tree.pairs_to_cut is None
                or tree.base == tree.end
                or after(tree.made, tree.to.acknowledged) >= ring
            ):
                return False
            now, rest = tree.pairs_to_cut[: self.job.values], tree.pairs_to_cut[self.job.values :]
            words = np.array([word for pair in now for word in pair], dtype=np.uint32)
            tree.chunks[tree.made] = (int(not rest), words)
            tree.pairs_to_cut = rest or None
        else:
            if tree.made == tree.end or after(tree.made, tree.base) >= self.job.window:
                return False
            at = (after(tree.made, tree.begin) * len(self.trees) + which) * self.job.values
            tree.chunks[tree.made] = (0, self.words[at : at + self.job.values])
        tree.made = plus(tree.made, 1)
        return True

    def put(self, which: int, kind: int, number: int, extra: int = 0, words: Words = NONE) -> None:
        body = np.concatenate([np.array([self.trees[which].epoch], dtype=np.uint32), words])
        self.send([self.above], Frame(kind, self.job.id, number, body, which, extra))

    def proceed(self, which: int) -> None:
        tree = self.trees[which]
        while (
            tree.started
            and after(tree.to.limit, tree.to.sent) > 0
            and (tree.to.sent != tree.made or self.cut(which))
        ):
            self.counters["sent"] += 1
            self.put(which, VALUES, tree.to.sent, *tree.chunks[tree.to.sent])
            tree.to.sent = plus(tree.to.sent, 1)

    def receive(self, sender: int, packet: bytes, now: int) -> Sent:
        self.counters["received"] += 1
        frame = read_frame(packet)
        if frame is None or not len(frame.words):
            self.counters["malformed"] += 1
        elif sender != self.above or frame.job != self.job.id or frame.tree >= len(self.trees):
            self.counters["unknown_sender"] += 1
        elif not well_formed(frame, self.job) or frame.type in (VALUES, HELLO):
            self.counters["malformed"] += 1
        else:
            self.accept(frame, now)
        return self.taken()

    def accept(self, frame: Frame, now: int) -> None:
        which, epoch = frame.tree, int(frame.words[0])
        tree = self.trees[which]
        if frame.type == REBUILT and (epoch > tree.epoch or (epoch == tree.epoch and not tree.started)):
            if epoch > tree.epoch and self.pairs and tree.begin != tree.end:
                self.failed = True
                return
            tree.epoch, tree.started, tree.timer = epoch, False, now + self.job.timeout
            self.put(which, HELLO, tree.base)
        elif epoch != tree.epoch:
            self.counters["bad_epoch"] += 1
        elif frame.type == REBUILT:
            self.counters["duplicate"] += 1
        elif frame.type == START:
            if tree.started:
                self.counters["duplicate"] += 1
            elif not self.pairs and not 0 <= after(tree.base, frame.number) <= self.job.window:
                self.counters["malformed"] += 1
            else:
                tree.started, tree.timer = True, now + self.job.timeout
                tree.to.start(frame.number, self.job.slots)
                tree.source.start(frame.number)
                self.proceed(which)
        elif not tree.started:
            self.counters["future"] += 1
        elif frame.type == ACKNOWLEDGED:
            if tree.to.take(frame.number, frame.extra, tree.made):
                tree.timer = now + self.job.timeout
                self.proceed(which)
            else:
                self.counters["stale"] += 1
        else:
            self.counters[tree.source.take(frame)] += 1
            if tree.source.ready:
                while tree.source.ready:
                    self.take(which)
                self.progress, tree.timer = now, now + self.job.timeout
                self.proceed(which)
            tree.source.told = tree.source.limit
            self.put(which, ACKNOWLEDGED, tree.source.expected, tree.source.told)

    def take(self, which: int) -> None:
        tree = self.trees[which]
        number = tree.source.used
        extra, words = tree.source.use()
        if self.pairs:
            self.counters["completed"] += 1
            tree.merged += zip(words[0::2].tolist(), words[1::2].tolist(), strict=True)
            tree.base = plus(tree.base, extra)
            if self.done:
                pairs = sorted(pair for each in self.trees for pair in each.merged)
                self.output = np.array(
                    [len(pairs), 0, *(word for pair in pairs for word in pair)], dtype=np.uint32
                )
        elif tree.base != tree.end and number == tree.base:
            self.counters["completed"] += 1
            at = (after(tree.base, tree.begin) * len(self.trees) + which) * self.job.values
            self.output[at : at + self.job.values] = words
            tree.base = plus(tree.base, 1)

    def deadline(self) -> int | None:
        if self.failed:
            return None
        times = [tree.timer for tree in self.trees if tree.waits]
        if not self.done:
            times.append(self.progress + self.job.give_up_timeout)
        return min(times, default=None)

    def wake(self, now: int) -> Sent:
        deadline = self.deadline()
        if deadline is None or now < deadline:
            return []
        if not self.done and now >= self.progress + self.job.give_up_timeout:
            self.failed = True
            return []
        for which, tree in enumerate(self.trees):
            if not tree.waits or now < tree.timer:
                continue
            tree.timer = now + self.job.timeout
            if not tree.started or tree.to.acknowledged == tree.made:
                self.put(which, HELLO, tree.base)
                continue
            for number in tree.to.again():
                self.counters["resent"] += 1
                self.put(which, VALUES, number, *tree.chunks[number])
        return self.taken()
