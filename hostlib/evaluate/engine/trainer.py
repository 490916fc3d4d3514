"""One rank of a training job: a small language model, data-parallel, on the engine.

``python -m ringstep.hostlib.evaluate.engine.trainer SETTINGS`` with a JSON object (:class:`Job`).
Prints one JSON object per step. It ends with standard input: nothing outlives who started it.

The data is synthetic: every sequence follows a fixed permutation of the vocabulary, with a share of
tokens at random, so that the loss falls over tens of steps and never to nothing.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from dataclasses import dataclass
from typing import Any, Final

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from ringstep.hostlib import torch_hook
from ringstep.hostlib.torch_backend import NAME

VOCABULARY: Final = 64
LENGTH: Final = 32
"""Tokens of a sequence."""
HEADS: Final = 4
RANDOM: Final = 0.1
"""Share of tokens that follow no rule."""
RATE: Final = 1e-3


@dataclass(frozen=True, slots=True)
class Job:
    """What a rank is told.

    Attributes:
        rank, ranks: of the job.
        store: file by which the ranks find one another.
        steps: of training.
        seed: of model and data.
        width, layers: of the model.
        batch: sequences by rank and step.
        bucket_mb: of gradients, MiB.
        fence_every: steps between fences; 0: no hook.
    """

    rank: int
    ranks: int
    store: str
    steps: int
    seed: int
    width: int = 128
    layers: int = 2
    batch: int = 4
    bucket_mb: float = 0.5
    fence_every: int = 1


class Transformer(nn.Module):  # type: ignore[misc]  # torch has no types here
    """A causal transformer over tokens."""

    def __init__(self, width: int, layers: int) -> None:
        super().__init__()
        self.embed = nn.Embedding(VOCABULARY, width)
        self.place = nn.Parameter(torch.zeros(LENGTH, width))
        layer = nn.TransformerEncoderLayer(
            width, HEADS, 4 * width, dropout=0.0, batch_first=True, norm_first=True
        )
        self.body = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
        self.head = nn.Linear(width, VOCABULARY)
        mask = nn.Transformer.generate_square_subsequent_mask(LENGTH)
        self.register_buffer("mask", mask, persistent=False)

    def forward(self, tokens: Any) -> Any:
        """Return logits (batch, length, vocabulary)."""
        hidden = self.embed(tokens) + self.place
        return self.head(self.body(hidden, mask=self.mask, is_causal=True))


class Data:
    """Sequences of one rank, the same for the same seed."""

    def __init__(self, seed: int, rank: int) -> None:
        self._follows = torch.randperm(VOCABULARY, generator=torch.Generator().manual_seed(seed))
        self._draw = torch.Generator().manual_seed(1_000 * seed + rank + 1)

    def batch(self, size: int) -> Any:
        """Return tokens (size, length + 1)."""
        token = torch.randint(VOCABULARY, (size,), generator=self._draw)
        tokens = [token]
        for _ in range(LENGTH):
            other = torch.randint(VOCABULARY, (size,), generator=self._draw)
            odd = torch.rand(size, generator=self._draw) < RANDOM
            tokens.append(torch.where(odd, other, self._follows[tokens[-1]]))
        return torch.stack(tokens, dim=1)


def train(job: Job) -> None:
    """Train, and tell of each step as it ends: number, loss, when it began, how long it took."""
    torch.set_num_threads(1)
    torch.manual_seed(job.seed)
    model = DistributedDataParallel(
        Transformer(job.width, job.layers), bucket_cap_mb=job.bucket_mb, broadcast_buffers=False
    )
    optimizer = torch.optim.AdamW(model.parameters(), lr=RATE)
    hook = torch_hook.attach(every=job.fence_every) if job.fence_every else None
    data = Data(job.seed, job.rank)
    parameters = sum(p.numel() for p in model.parameters())
    say(ready=os.getpid(), parameters=parameters)
    for step in range(job.steps):
        began_ns = time.monotonic_ns()
        tokens = data.batch(job.batch)
        logits = model(tokens[:, :-1])
        loss = nn.functional.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
        if hook is not None:
            hook.step()
        took_ns = time.monotonic_ns() - began_ns
        say(step=step, loss=loss.item(), began_ns=began_ns, took_ns=took_ns)
    if hook is not None:
        hook.detach()


def say(**what: Any) -> None:
    """Print a line of JSON."""
    print(json.dumps(what), flush=True)


def _end_with_input() -> None:
    sys.stdin.read()
    os._exit(1)


def main() -> int:
    """Do what the command line says; return the exit status."""
    job = Job(**json.loads(sys.argv[1]))
    threading.Thread(target=_end_with_input, daemon=True).start()
    dist.init_process_group(
        NAME, init_method=f"file://{job.store}", rank=job.rank, world_size=job.ranks
    )
    try:
        train(job)
    except (RuntimeError, OSError) as error:
        say(error=f"{type(error).__name__}: {error}")
        return 3
    dist.destroy_process_group()
    return 0


if __name__ == "__main__":
    sys.exit(main())
