"""Collectives of torch that are planned: importing this makes the backend ``coppice`` known to torch.

import coppice.torch
torch.distributed.init_process_group("coppice")
"""

from __future__ import annotations

try:
    import torch as _torch  # noqa: F401
except ImportError:
    from coppice.errors import MissingExtraError

    _package = "torch"
    raise MissingExtraError.of(_package, extra="torch") from None

from coppice.run.torch.backend import NAME, CoppiceProcessGroup, register
from coppice.run.torch.backend_path import Options

__all__ = ["NAME", "CoppiceProcessGroup", "Options", "register"]

register()
