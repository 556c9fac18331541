"""Rules about hosts: how GPUs and NICs are wired, and what a run or the kernel reports of them."""

from coppice.doctor.host import reported, wiring  # noqa: F401 (they declare rules)
from coppice.doctor.host.subject import HOST_RULES, HostFile

__all__ = ["HOST_RULES", "HostFile"]
