"""One rank of benchmarks/training_step.py: steps of a small GPT under DDP; rank 0 prints one JSON line."""

from __future__ import annotations

import json
import statistics
import sys
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

CONTEXT, WIDTH, LAYERS, HEADS, BATCH = 64, 128, 4, 4, 8


class Decoder(nn.Module):
    """A causal transformer over bytes."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens, self.places = nn.Embedding(256, WIDTH), nn.Embedding(CONTEXT, WIDTH)
        layer = nn.TransformerEncoderLayer(
            WIDTH, HEADS, 4 * WIDTH, dropout=0.0, batch_first=True, norm_first=True
        )
        self.layers = nn.TransformerEncoder(layer, LAYERS, enable_nested_tensor=False)
        self.head = nn.Linear(WIDTH, 256)

    def forward(self, text: torch.Tensor) -> torch.Tensor:
        """Logits of the next byte at every place."""
        length = text.shape[1]
        mask = nn.Transformer.generate_square_subsequent_mask(length)
        hidden = self.tokens(text) + self.places(torch.arange(length))
        logits: torch.Tensor = self.head(self.layers(hidden, mask=mask, is_causal=True))
        return logits


def main(backend: str, steps: int) -> None:
    from pydoc_data.topics import topics

    torch.manual_seed(0)
    torch.set_num_threads(1)
    if backend == "coppice":
        import coppice.torch  # noqa: F401 (registers the backend)
    dist.init_process_group(backend)
    rank = dist.get_rank()
    data = torch.frombuffer(bytearray("\n".join(topics.values()).encode()), dtype=torch.uint8).long()
    model = DistributedDataParallel(Decoder())
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    choose = torch.Generator().manual_seed(rank)
    times, losses = [], []
    for _ in range(steps):
        starts = torch.randint(len(data) - CONTEXT - 1, (BATCH,), generator=choose)
        text = torch.stack([data[start : start + CONTEXT + 1] for start in starts.tolist()])
        dist.barrier()
        begin = time.perf_counter()
        loss = nn.functional.cross_entropy(model(text[:, :-1]).flatten(0, 1), text[:, 1:].flatten())
        optimizer.zero_grad()
        torch.autograd.backward(loss)
        optimizer.step()
        mean = loss.detach()
        dist.all_reduce(mean)
        times.append(time.perf_counter() - begin)
        losses.append(float(mean) / dist.get_world_size())
    if rank == 0:
        parameters = sum(each.numel() for each in model.parameters())
        median = statistics.median(times[2:])
        print(json.dumps({"step_ms": 1e3 * median, "losses": losses, "parameters": parameters}), flush=True)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
