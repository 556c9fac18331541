"""Disjoint groups that merge (union-find)."""

from __future__ import annotations

from collections.abc import Hashable, Iterable


class Groups:
    """Disjoint groups of devices that merge (union-find)."""

    def __init__(self, members: Iterable[Hashable]) -> None:
        self._parent = {member: member for member in members}

    def find(self, member: Hashable) -> Hashable:
        """Representative of the group of ``member``."""
        root = member
        while self._parent[root] != root:
            root = self._parent[root]
        while self._parent[member] != root:
            self._parent[member], member = root, self._parent[member]
        return root

    def join(self, a: Hashable, b: Hashable) -> None:
        """Merge the groups of ``a`` and ``b``."""
        self._parent[self.find(b)] = self.find(a)
