"""Poseidon (Zhang et al., USENIX ATC 2017): wait-free backpropagation with hybrid communication.

The gradient of a fully connected layer of M x N weights over K samples is a sum of K outer products. A worker can
send their factors, K (M + N) elements, to all others, which rebuild the gradient, instead of M N elements to a
parameter server. Elements that a node sends and receives, as reported in the paper, P1 workers on the nodes of P2
shards of the server:

    server             2 M N (P1 + P2 - 2) / P2
    factors            2 K (P1 - 1) (M + N)
    factors to the server, matrices back (Project Adam)     (P1 - 1) (M N + K M + K N)

A layer takes what is less; convolutions always the server. With P1 = P2 = P factors are less up to K* = 2 M N / (P
(M + N)) samples, and the same against a ring all-reduce. Shards hold equal shares (pairs of 2 MB, hashed), so the
server takes as long as an all-reduce where P1 = P2, and the bandwidth of the workload is that of it.

K is the rows of the layer's input: in transformers batch times sequence, where factors hardly ever are less.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import ClassVar

import msgspec

from coppice.iteration.layers import LayerWorkload
from coppice.iteration.policies.data_parallel.policy import DataParallelPolicy
from coppice.iteration.policies.policy import Count, PolicyCosts
from coppice.iteration.step.plan import Message


def server_elements(rows: int, columns: int, workers: int, servers: int) -> float:
    """Elements that a node (worker and server shard) sends and receives for a matrix by parameter server.

    Examples:
        >>> server_elements(25088, 4096, 8, 8)
        359661568.0
    """
    return 2 * rows * columns * (workers + servers - 2) / servers


def factor_elements(rows: int, columns: int, workers: int, samples: int) -> float:
    """Elements that a node sends and receives for a matrix by broadcast of sufficient factors.

    Examples:
        >>> factor_elements(25088, 4096, 8, 32)
        13074432.0
    """
    return 2.0 * samples * (workers - 1) * (rows + columns)


class PoseidonOptions(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Parameter-server transport."""

    servers: Count | None = None  # Shards of the server, each on a node of a worker; None: as many as workers


class Poseidon(DataParallelPolicy):
    """Send each layer's gradients by parameter server or as factors, whichever is smaller, once they are ready."""

    name = "poseidon"
    about = "layer by layer, by server or by factors of matrices (Poseidon, ATC'17)"
    assumes = "fully connected layers with few samples a worker; one barrier"
    options: ClassVar[type[msgspec.Struct]] = PoseidonOptions

    def by_factors(self, workload: LayerWorkload, layer: int) -> bool:
        """Whether the gradients of a layer are sent as factors."""
        shape = workload.matrices[layer] if workload.matrices else None
        if shape is None or workload.workers == 1:
            return False
        servers = self.settings.servers or workload.workers
        least = server_elements(*shape, workload.workers, servers)
        return factor_elements(*shape, workload.workers, workload.samples) <= least

    def messages(self, workload: LayerWorkload) -> Sequence[Message]:
        """One message per layer; gradients that are not matrices, such as biases, go with the factors."""
        found = []
        for layer in reversed(range(workload.layers)):
            if not workload.bytes[layer]:
                continue
            shape = (
                workload.matrices[layer] if self.by_factors(workload, layer) and workload.matrices else None
            )
            size = workload.bytes[layer]
            if shape is not None:
                rest = max(0.0, size - shape[0] * shape[1] * workload.element_bytes)
                size = workload.samples * sum(shape) * workload.element_bytes + rest
            found.append(
                Message(
                    name=f"layer {layer}",
                    seconds=workload.message(self._carried(workload, layer)),
                    size_bytes=size,
                    layers=(layer,),
                    needed_by=workload.roots,
                    collective="all_reduce" if shape is None else "factors",
                )
            )
        return found

    def _carried(self, workload: LayerWorkload, layer: int) -> float:
        """Size of an all-reduce with the same load per node."""
        workers, size = workload.workers, workload.bytes[layer]
        if workers == 1:
            return size
        servers = self.settings.servers or workers
        dense = server_elements(1, 1, workers, servers) / server_elements(1, 1, workers, workers)
        shape = workload.matrices[layer] if workload.matrices else None
        if shape is None or not self.by_factors(workload, layer):
            return size * dense
        matrix = shape[0] * shape[1]
        share = factor_elements(*shape, workers, workload.samples) / server_elements(*shape, workers, workers)
        return (
            max(0.0, size - matrix * workload.element_bytes) * dense + matrix * workload.element_bytes * share
        )

    def costs(self, workload: LayerWorkload) -> PolicyCosts:
        """Messages of a worker per iteration, and half the bytes that its node sends and receives."""
        share = 2 * (workload.workers - 1) / workload.workers
        carried = sum(self._carried(workload, layer) for layer in range(workload.layers))
        return replace(super().costs(workload), bytes=carried * share)

    def extra_memory_bytes(self, workload: LayerWorkload) -> float:
        """Parameters held by server shards, one copy in total, and the factors of all workers."""
        found = 0.0
        for layer in range(workload.layers):
            shape = workload.matrices[layer] if workload.matrices else None
            if shape is not None and self.by_factors(workload, layer):
                found += workload.workers * workload.samples * sum(shape) * workload.element_bytes
            else:
                found += workload.bytes[layer] / (self.settings.servers or workload.workers)
        return found

    def lower_bound_seconds(self, workload: LayerWorkload) -> float:
        """Lower bound for the bytes sent in place of gradients."""
        carried = tuple(self._carried(workload, layer) for layer in range(workload.layers))
        return replace(workload, bytes=carried, matrices=()).lower_bound_seconds()
