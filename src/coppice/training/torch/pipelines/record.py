"""What a rank has done, by the names that tasks have in simulation."""

from __future__ import annotations

import threading


class DeviceRecord:
    """Names of what ran, by stream, in the order in which it began."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.passes: list[str] = []  # Passes on the device
        self.sums: list[str] = []  # Messages with gradients, when they are launched
        self.events: list[str] = []  # Both and more (`waited`, `updated`), in one order

    def ran(self, name: str) -> None:
        """A pass begins."""
        with self._lock:
            self.passes.append(name)
            self.events.append(name)

    def launched(self, name: str) -> None:
        """A message is launched."""
        with self._lock:
            self.sums.append(name)
            self.events.append(name)

    def noted(self, name: str) -> None:
        """Something else."""
        with self._lock:
            self.events.append(name)

    def clear(self) -> None:
        """Forget all."""
        with self._lock:
            self.passes, self.sums, self.events = [], [], []
