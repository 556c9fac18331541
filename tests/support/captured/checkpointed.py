"""Replicas with DDP whose layers are computed again in the backward pass."""

from gpt import GPT, Block, begin, train
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import checkpoint


class Again(Block):
    def forward(self, x):
        return checkpoint(super().forward, x, use_reentrant=False)


if __name__ == "__main__":
    device = begin()
    train(DistributedDataParallel(GPT(block=Again).to(device)), device, batch=8)
