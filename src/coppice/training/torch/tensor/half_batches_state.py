"""What computing again has to find as it was: random numbers and the types of mixed precision."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

import torch


@dataclass(frozen=True, eq=False)
class DeviceState:
    """Generators and autocast, as they are at one time."""

    device: torch.device  # The device of activations
    generator: torch.Tensor  # State of the generator of the host
    of_device: torch.Tensor | None  # State of that of the device, if it is not the host
    casts: tuple[dict[str, Any], ...]  # Arguments of `torch.autocast` for the host and for the device

    @classmethod
    def now(cls, device: torch.device) -> DeviceState:
        """Of a device, and of the host."""
        of_device = None
        if device.type != "cpu":
            of_device = torch.get_device_module(device).get_rng_state(device)
        return cls(
            device=device,
            generator=torch.get_rng_state(),
            of_device=of_device,
            casts=tuple(
                {
                    "device_type": kind,
                    "enabled": torch.is_autocast_enabled(kind),
                    "dtype": torch.get_autocast_dtype(kind),
                    "cache_enabled": torch.is_autocast_cache_enabled(),
                }
                for kind in dict.fromkeys(("cpu", device.type))
            ),
        )

    @contextmanager
    def again(self) -> Iterator[None]:
        """A context in which everything is as it was; afterwards it is as before."""
        devices = [] if self.of_device is None else [self.device]
        kind = "cuda" if self.device.type == "cpu" else self.device.type
        with ExitStack() as stack:
            stack.enter_context(torch.random.fork_rng(devices=devices, device_type=kind))
            torch.set_rng_state(self.generator)
            if self.of_device is not None:
                torch.get_device_module(self.device).set_rng_state(self.of_device, self.device)
            for cast in self.casts:
                stack.enter_context(torch.autocast(**cast))
            yield
