"""Train a small language model data-parallel, and print loss and CCT.

The data is synthetic: every sequence follows a fixed permutation of the vocabulary, so the loss
falls within a few steps and equal settings give equal losses on every backend.

    torchrun --nproc-per-node 2 examples/train/ddp.py --backend gloo
    ringstep run --job demo -- torchrun --nproc-per-node 2 examples/train/ddp.py --backend ringstep

CCT (collective completion time) is the time from the issue of a gradient bucket's all-reduce to
its end, as the training loop sees it.
"""

import argparse
import contextlib
import json
import os
import statistics
import sys
import time
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

VOCABULARY = 64


def main() -> int:
    """Train as the command line says; return the exit status."""
    options = parse()
    if not {"RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"} <= os.environ.keys():
        print("ddp.py: start it with torchrun, which tells each process its rank:\n"
              "  torchrun --nproc-per-node 2 examples/train/ddp.py", file=sys.stderr)  # fmt: skip
        return 2
    if options.backend == "nccl" and not torch.cuda.is_available():
        print("ddp.py: --backend nccl needs a GPU; use gloo or ringstep", file=sys.stderr)
        return 2
    torch.set_num_threads(options.threads)
    device = torch.device("cpu")
    if options.backend == "nccl":
        device = torch.device("cuda", int(os.environ["LOCAL_RANK"]) % torch.cuda.device_count())
        torch.cuda.set_device(device)
    elif options.backend == "ringstep":
        import ringstep.hostlib.torch_backend  # noqa: F401  It registers the backend.
    dist.init_process_group(options.backend)
    try:
        summary = train(options, device)
    except KeyboardInterrupt:
        return 130
    finally:
        with contextlib.suppress(Exception):
            dist.destroy_process_group()
    if summary["rank"] == 0 and options.json:
        print(json.dumps(summary))
    return 0


def parse() -> argparse.Namespace:
    """Return the command line's options."""
    parser = argparse.ArgumentParser(
        description="Train a small language model data-parallel, and print loss and CCT.",
        epilog="example: torchrun --nproc-per-node 2 examples/train/ddp.py --backend gloo",
    )
    parser.add_argument("--backend", choices=("gloo", "nccl", "ringstep"), default="gloo")
    parser.add_argument("--model", choices=("mlp", "transformer"), default="transformer")
    parser.add_argument("--steps", type=positive, default=50)
    parser.add_argument("--batch", type=positive, default=8, help="sequences per rank and step")
    parser.add_argument("--length", type=positive, default=32, help="tokens per sequence")
    parser.add_argument("--width", type=positive, default=128, help="of the model, times 4 heads")
    parser.add_argument("--layers", type=positive, default=2)
    parser.add_argument("--bucket-mb", type=float, default=1.0, help="gradient bucket, MiB")
    parser.add_argument("--threads", type=positive, default=1, help="of torch, per process")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--print-every", type=positive, default=10, metavar="STEPS")
    parser.add_argument(
        "--fence-every", type=int, default=0, metavar="STEPS",
        help="attach Ringstep's hook and fence every so many steps; 0: no hook",
    )  # fmt: skip
    parser.add_argument("--json", action="store_true", help="end with one line of JSON on rank 0")
    options = parser.parse_args()
    if options.width % 4:
        parser.error(f"--width {options.width}: a multiple of 4, the number of heads")
    if options.bucket_mb <= 0:
        parser.error(f"--bucket-mb {options.bucket_mb}: above 0")
    if options.fence_every < 0:
        parser.error(f"--fence-every {options.fence_every}: 0 or more")
    return options


def positive(text: str) -> int:
    """Return a whole number above 0."""
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"{text}: a whole number above 0")
    return value


class Transformer(nn.Module):
    """A causal transformer over tokens."""

    def __init__(self, width: int, layers: int, length: int) -> None:
        super().__init__()
        self.embed = nn.Embedding(VOCABULARY, width)
        self.place = nn.Parameter(torch.zeros(length, width))
        layer = nn.TransformerEncoderLayer(
            width, 4, 4 * width, dropout=0.0, batch_first=True, norm_first=True
        )
        self.body = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
        self.head = nn.Linear(width, VOCABULARY)
        mask = nn.Transformer.generate_square_subsequent_mask(length)
        self.register_buffer("mask", mask, persistent=False)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """Return logits (batch, length, vocabulary)."""
        hidden = self.embed(tokens) + self.place
        return self.head(self.body(hidden, mask=self.mask, is_causal=True))


def mlp(width: int, layers: int) -> nn.Module:
    """Return a model that looks at one token only."""
    body: list[nn.Module] = [nn.Embedding(VOCABULARY, width)]
    for _ in range(layers):
        body += [nn.Linear(width, 4 * width), nn.ReLU(), nn.Linear(4 * width, width), nn.ReLU()]
    return nn.Sequential(*body, nn.Linear(width, VOCABULARY))


class Timed:
    """Averages gradient buckets as DDP does, and times them."""

    def __init__(self, device: torch.device) -> None:
        self.cuda = device.type == "cuda"
        self.spans: list[Any] = []
        self.bytes = 0

    def average(
        self, _state: object, bucket: dist.GradBucket
    ) -> torch.futures.Future[torch.Tensor]:
        """Be DDP's communication hook: start the bucket's all-reduce."""
        gradients = bucket.buffer()
        gradients.div_(dist.get_world_size())
        self.bytes += gradients.nbytes
        start = self._now()
        future = dist.all_reduce(gradients, async_op=True).get_future()

        def ended(done: torch.futures.Future[list[torch.Tensor]]) -> torch.Tensor:
            # On a GPU this runs at issue, on a stream that waits for the collective.
            self.spans.append((start, self._now()))
            return done.value()[0]

        return future.then(ended)

    def _now(self) -> Any:
        if not self.cuda:
            return time.perf_counter()
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event

    def take_ms(self) -> list[float]:
        """Return the durations since the last call; on a GPU the caller has synchronised."""
        spans, self.spans = self.spans, []
        if self.cuda:
            return [start.elapsed_time(end) for start, end in spans]
        return [1e3 * (end - start) for start, end in spans]


def train(options: argparse.Namespace, device: torch.device) -> dict[str, Any]:
    """Run the loop; return what rank and run measured."""
    torch.manual_seed(options.seed)  # The same model and permutation everywhere.
    follows = torch.randperm(VOCABULARY).to(device)
    body = (
        mlp(options.width, options.layers)
        if options.model == "mlp"
        else Transformer(options.width, options.layers, options.length)
    )
    ddp = DistributedDataParallel(body.to(device), bucket_cap_mb=options.bucket_mb)
    timed = Timed(device)
    ddp.register_comm_hook(None, timed.average)
    optimizer = torch.optim.AdamW(ddp.parameters(), lr=3e-3)
    hook: Any = None
    if options.fence_every:
        from ringstep.hostlib import torch_hook

        hook = torch_hook.attach(every=options.fence_every)
    rank, world = dist.get_rank(), dist.get_world_size()
    data = torch.Generator().manual_seed(options.seed + 1 + rank)
    loss_sum = torch.zeros((), device=device)
    all_ms: list[float] = []
    recent: list[float] = []
    first = last = float("nan")
    began = time.perf_counter()
    for step in range(1, options.steps + 1):
        loss = one_step(ddp, optimizer, follows, data, options)
        if hook is not None:
            hook.step()
        loss_sum += loss
        if step == 1:
            first = loss.item()
        if step % options.print_every == 0 or step == options.steps:
            count = (step - 1) % options.print_every + 1
            last = loss_sum.item() / count  # Waits for the GPU, so its events have times.
            loss_sum.zero_()
            now_ms = timed.take_ms()
            recent = now_ms or recent
            all_ms += now_ms
            if rank == 0:
                print(
                    f"step {step:>5}/{options.steps}  loss {last:7.4f}  "
                    f"CCT {statistics.median(recent):8.3f} ms (median of {len(now_ms)})",
                    flush=True,
                )
    elapsed = time.perf_counter() - began
    if hook is not None:
        hook.detach()
    return {
        "backend": options.backend, "rank": rank, "ranks": world, "steps": options.steps,
        "first_loss": first, "last_loss": last, "collectives": len(all_ms),
        "mean_bytes": timed.bytes // max(len(all_ms), 1),
        "cct_p50_ms": statistics.median(all_ms), "cct_max_ms": max(all_ms),
        "step_ms": 1e3 * elapsed / options.steps,
    }  # fmt: skip


def one_step(
    ddp: nn.Module,
    optimizer: torch.optim.Optimizer,
    follows: torch.Tensor,
    data: torch.Generator,
    options: argparse.Namespace,
) -> torch.Tensor:
    """Do one training step; return its loss, not waited for."""
    token = torch.randint(VOCABULARY, (options.batch,), generator=data).to(follows.device)
    tokens = [token]
    for _ in range(options.length):
        tokens.append(follows[tokens[-1]])
    sequence = torch.stack(tokens, dim=1)
    logits = ddp(sequence[:, :-1])
    loss = nn.functional.cross_entropy(logits.flatten(0, 1), sequence[:, 1:].flatten())
    optimizer.zero_grad(set_to_none=True)
    loss.backward()
    optimizer.step()
    return loss.detach()


if __name__ == "__main__":
    sys.exit(main())
