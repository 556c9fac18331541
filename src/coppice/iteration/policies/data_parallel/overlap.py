"""Baselines of data-parallel training: no overlap, and wait-free back-propagation.

Wait-free back-propagation sends the gradients of a layer when its backward pass is done, while the layers below it
are computed; the next iteration starts when all are summed. An iteration takes F + B and what of the communication
is not hidden: F + B + c_0 where the network keeps up with the backward pass (c_0: the message of layer 0, the last
to be ready).

Source: Zhang et al., "Poseidon: An Efficient Communication Architecture for Distributed Deep Learning on GPU
Clusters", USENIX ATC 2017, section 3.
"""

from __future__ import annotations

from typing import ClassVar

from coppice.iteration.policies.data_parallel.policy import DataParallelPolicy


class Serial(DataParallelPolicy):
    """No overlap of communication and computation."""

    name = "serial"
    about = "all communication after the backward pass"
    assumes = "nothing"
    stock = "Megatron-LM without --overlap-grad-reduce"
    overlaps: ClassVar[bool] = False


class WaitFree(DataParallelPolicy):
    """Wait-free backpropagation (Poseidon, USENIX ATC 2017): send gradients as soon as they are ready."""

    name = "wfbp"
    about = "a message for each layer as soon as its gradients are there (Poseidon, ATC'17)"
