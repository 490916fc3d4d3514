"""What the ranks of a test do: run by conftest.World in processes of their own."""

from __future__ import annotations

import atexit
import contextlib
import datetime
import io
import json
import os
import runpy
import signal
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.distributed_c10d import _coalescing_manager
from torch.nn.parallel import DistributedDataParallel

from ringstep.hostlib import torch_backend, torch_hook
from ringstep.hostlib.native.build import build
from ringstep.hostlib.native.caller import Plugin, Rank

EXAMPLE = Path(__file__).parents[3] / "examples" / "train" / "ddp.py"
FOLDER: Path
JOB: dict[str, Callable[..., Any]] = {}


def job(function: Callable[..., Any]) -> Callable[..., Any]:
    JOB[function.__name__] = function
    return function


def join(backend: str, rank: int, size: int, **options: Any) -> None:
    dist.init_process_group(
        backend, init_method=f"file://{FOLDER}/store", rank=rank, world_size=size, **options
    )


def wait_for(name: str) -> None:
    while not (FOLDER / name).exists():
        time.sleep(0.005)


def raises(call: Callable[[], Any]) -> str:
    """Return kind and text of what a call raises."""
    try:
        call()
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return "nothing"


def same(found: torch.Tensor, wanted: Any) -> None:
    expected = torch.as_tensor(wanted).to(found.dtype)
    assert found.shape == expected.shape
    assert torch.allclose(found, expected), (found, expected)


# --- the backend ---


@job
def collectives(rank: int, size: int) -> None:
    """Every operation, against what it has to give."""
    join("ringstep", rank, size)
    total = sum(range(size))
    for dtype in (torch.float32, torch.float64, torch.bfloat16, torch.float16, torch.int64,
                  torch.int32, torch.uint8, torch.int8):  # fmt: skip
        tensor = torch.full((1000,), rank + 1, dtype=dtype)
        dist.all_reduce(tensor)
        same(tensor, torch.full((1000,), total + size))
    for op, wanted in ((dist.ReduceOp.MAX, size), (dist.ReduceOp.MIN, 1),
                       (dist.ReduceOp.AVG, (total + size) / size)):  # fmt: skip
        tensor = torch.full((7,), float(rank + 1))
        dist.all_reduce(tensor, op=op)
        same(tensor, torch.full((7,), float(wanted)))
    flags = torch.tensor([rank == 0, False, True])
    dist.all_reduce(flags, op=dist.ReduceOp.MAX)
    assert flags.tolist() == [True, False, True]

    strided = torch.arange(12.0).view(3, 4).t()
    work = dist.all_reduce(strided, async_op=True)
    assert work.wait(datetime.timedelta(seconds=30))
    assert work.is_completed()
    assert work.is_success()
    assert work.get_future().value()[0] is strided
    same(strided, size * torch.arange(12.0).view(3, 4).t())
    assert not strided.is_contiguous()
    with torch.inference_mode():
        frozen = torch.ones(4, 2).t()
        dist.all_reduce(frozen)
        same(frozen, torch.full((2, 4), float(size)))

    parts = [torch.empty(2, 3).t() for _ in range(size)]
    dist.all_gather(parts, torch.full((3, 2), float(rank)))
    for i, part in enumerate(parts):
        same(part, torch.full((3, 2), float(i)))
    gathered = torch.empty(2 * size)
    dist.group.WORLD._allgather_base(gathered, torch.full((2,), float(rank))).wait()
    same(gathered, torch.arange(size).repeat_interleave(2))
    mine = torch.empty(2)
    dist.group.WORLD._reduce_scatter_base(mine, torch.arange(2.0 * size)).wait()
    same(mine, size * torch.arange(2.0 * size)[2 * rank : 2 * rank + 2])
    dist.reduce_scatter(mine, [torch.full((2,), float(i + rank)) for i in range(size)])
    same(mine, torch.full((2,), float(size * rank + total)))
    odd = torch.full((3,), complex(rank, 1), dtype=torch.complex64)
    dist.broadcast(odd, size - 1)
    assert odd.tolist() == [complex(size - 1, 1)] * 3
    for empty in (torch.empty(0), torch.empty(0, 5)):
        dist.all_reduce(empty)
        dist.broadcast(empty, 0)
    everything = [None] * size
    dist.all_gather_object(everything, {"rank": rank})
    assert everything == [{"rank": i} for i in range(size)]
    dist.barrier()
    dist.destroy_process_group()


@job
def functional(rank: int, size: int) -> None:
    """torch finds the group by its name from C++."""
    import torch.distributed._functional_collectives as collectives

    join("ringstep", rank, size)
    summed = collectives.all_reduce(torch.ones(3), "sum", dist.group.WORLD)
    same(collectives.wait_tensor(summed), [size] * 3)
    dist.destroy_process_group()


@job
def coalesced(rank: int, size: int) -> list[int]:
    """Several collectives as one group, in both of torch's ways."""
    join("ringstep", rank, size)
    a, b, c = torch.ones(3), torch.ones(400), torch.ones(5, dtype=torch.int64)
    with _coalescing_manager(async_ops=True) as manager:
        dist.all_reduce(a)
        dist.all_reduce(b)
    manager.wait()
    with _coalescing_manager(device=torch.device("cpu"), async_ops=True) as manager:
        works = [dist.group.WORLD.allreduce([tensor]) for tensor in (a, c)]
        assert not any(work.is_completed() for work in works)
        assert "has not ended" in raises(works[0].wait)
    manager.wait()
    for work in works:
        work.wait()
    gathered = [torch.empty(2 * size), torch.empty(3 * size)]
    sent = [torch.full((2,), float(rank)), torch.full((3,), float(rank))]
    dist.group.WORLD.allgather_into_tensor_coalesced(gathered, sent).wait()
    same(gathered[1], torch.arange(size).repeat_interleave(3))
    dist.destroy_process_group()
    return [int(a[0]), int(b[0]), int(c[0])]


@job
def refused(rank: int, size: int) -> dict[str, str]:
    """What the backend does not do; it goes on working afterwards."""
    join("ringstep", rank, size)
    one = torch.ones(2)
    found = {
        "reduce": raises(lambda: dist.reduce(one, 0)),
        "send": raises(lambda: dist.send(one, (rank + 1) % size)),
        "all_to_all": raises(lambda: dist.all_to_all([one] * size, [one] * size)),
        "type": raises(lambda: dist.all_reduce(torch.ones(2, dtype=torch.int16))),
        "op": raises(lambda: dist.all_reduce(one, op=dist.ReduceOp.BAND)),
        "device": raises(lambda: dist.all_reduce(torch.ones(2, device="meta"))),
        "sizes": raises(lambda: dist.group.WORLD._allgather_base(torch.ones(3), one)),
        "options": raises(lambda: dist.new_group(backend="ringstep", pg_options={"a": 1})),
    }
    dist.all_reduce(one)
    same(one, [size] * 2)
    dist.destroy_process_group()
    found["after"] = raises(lambda: dist.all_reduce(one))
    return found


@job
def groups(rank: int, size: int) -> list[float]:
    """Sub-groups are communicators of their own, at work side by side."""
    join("ringstep", rank, size)
    low = dist.new_group([0, 1])
    high = dist.new_group(list(range(1, size)))
    found = [torch.full((1,), float(rank)) for _ in range(3)]
    works = [dist.all_reduce(found[0], async_op=True)]
    if rank <= 1:
        works.append(dist.all_reduce(found[1], group=low, async_op=True))
    if rank >= 1:
        works.append(dist.all_reduce(found[2], group=high, async_op=True))
    for work in works:
        work.wait()
    dist.destroy_process_group()
    return [float(t) for t in found]


@job
def waits(rank: int, size: int) -> str:
    """Rank 0 waits in vain for a while, the collective goes on, and is then done."""
    join("ringstep", rank, size)
    dist.barrier()
    if rank == 0:
        tensor = torch.ones(1)
        work = dist.all_reduce(tensor, async_op=True)
        text = raises(lambda: work.wait(datetime.timedelta(milliseconds=20)))
        (FOLDER / "waited").touch()
        work.wait()
        same(tensor, [size])
    else:
        wait_for("waited")
        dist.all_reduce(torch.ones(1))
        text = ""
    dist.destroy_process_group()
    return text


@job
def aborted(rank: int, size: int) -> str:
    """A group that is aborted ends the wait of the others too."""
    join("ringstep", rank, size)
    if rank:
        (FOLDER / "reducing").touch()
        return raises(lambda: dist.all_reduce(torch.ones(1)))
    wait_for("reducing")
    dist.group.WORLD.abort()
    return raises(lambda: dist.all_reduce(torch.ones(1)))


@job
def no_peer(rank: int, size: int) -> str:
    """One rank never comes: the group is not made, and says so."""
    if rank == 1:
        return "stays away"
    return raises(lambda: join("ringstep", rank, size, timeout=datetime.timedelta(seconds=2)))


@job
def forked(rank: int, size: int) -> list[Any]:
    """A child that ends leaves its parent's group alone, and may not use it."""
    join("ringstep", rank, size)
    dist.barrier()
    child = os.fork()
    if child == 0:
        told = raises(lambda: dist.all_reduce(torch.ones(1)))
        (FOLDER / f"child-{rank}").write_text(told)
        atexit._run_exitfuncs()
        os._exit(0)
    _, status = os.waitpid(child, 0)
    tensor = torch.ones(1)
    dist.all_reduce(tensor)
    dist.destroy_process_group()
    return [status, float(tensor), (FOLDER / f"child-{rank}").read_text()]


@job
def no_root(rank: int, size: int) -> str:
    """Rank 0 never comes."""
    if rank == 0:
        return "stays away"
    return raises(lambda: join("ringstep", rank, size, timeout=datetime.timedelta(seconds=1)))


# --- training ---


def model() -> torch.nn.Module:
    torch.manual_seed(0)
    return torch.nn.Sequential(
        torch.nn.Linear(64, 256), torch.nn.ReLU(), torch.nn.Linear(256, 256), torch.nn.ReLU(),
        torch.nn.Linear(256, 8),
    )  # fmt: skip


def train(rank: int, steps: int, after: Callable[[], Any] = lambda: None) -> torch.nn.Module:
    ddp = DistributedDataParallel(model(), bucket_cap_mb=0.1)
    optimizer = torch.optim.SGD(ddp.parameters(), lr=0.05)
    data = torch.Generator().manual_seed(rank)
    for _ in range(steps):
        optimizer.zero_grad()
        inputs = torch.randn(16, 64, generator=data)
        ddp(inputs).square().mean().backward()
        optimizer.step()
        after()
    return ddp


@job
def ddp(rank: int, size: int, backend: str, steps: int) -> list[float]:
    """Train; return the parameters."""
    join(backend, rank, size)
    trained = train(rank, steps)
    dist.destroy_process_group()
    return torch.cat([p.detach().flatten() for p in trained.parameters()]).tolist()


@job
def ddp_until_killed(rank: int, size: int, backend: str) -> str:
    """Train for ever; return what ends it."""
    join(backend, rank, size)

    def after() -> None:
        (FOLDER / f"training-{rank}").touch()

    try:
        train(rank, 1 << 40, after)
    except RuntimeError as error:
        return f"{type(error).__name__}: {error}"
    return "nothing"


@job
def ddp_until_interrupted(rank: int, size: int, backend: str) -> str:
    """Train until Ctrl-C, leave as the example does."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    join(backend, rank, size)
    try:
        train(rank, 1 << 40, lambda: (FOLDER / f"training-{rank}").touch())
    except KeyboardInterrupt:
        how = "interrupted"
    except RuntimeError:
        how = "peer left"
    with contextlib.suppress(RuntimeError):
        dist.destroy_process_group()
    return how


# --- the hook ---


@job
def hooked(rank: int, size: int, backend: str, steps: int = 3) -> dict[str, Any]:
    """Train with the hook; return what it counted."""
    join(backend, rank, size)
    hook = torch_hook.attach(every=2)
    second = raises(torch_hook.attach)
    train(rank, steps, hook.step)
    dist.broadcast(torch.ones(1000), 0)
    dist.all_gather([torch.empty(10) for _ in range(size)], torch.ones(10))
    dist.barrier()
    if hook.recorder is not None:
        hook.recorder.flush()
        seen = [hook.recorder.written, hook.recorder.failures]
    else:
        seen = None
    (FOLDER / f"trained-{rank}").touch()
    wait_for("looked")
    hook.detach()
    dist.all_reduce(torch.ones(1))  # Not recorded.
    with torch_hook.attach() as again:
        hook.detach()  # Not the other one's.
        third = raises(torch_hook.attach)
        attached = again.recorder is not None and third.startswith("RuntimeError")
    dist.destroy_process_group()
    return {"seen": seen, "fences": hook.fences, "steps": hook.steps, "second": second,
            "again": attached}  # fmt: skip


@job
def fenced(rank: int, size: int, steps: int) -> dict[str, Any]:
    """Train with gloo and fences, beside a communicator that the plugin knows as NCCL's."""
    join("gloo", rank, size)
    nccl = Rank(Plugin(build().plugin), 0xF00D, size, rank, n_nodes=size)
    nccl.collective()
    hook = torch_hook.attach(every=1)
    (FOLDER / f"attached-{rank}").touch()
    wait_for("announced")
    channels = []

    def after() -> None:
        channels.append(nccl.collective()[1])
        hook.step()

    train(rank, steps, after)
    dist.barrier()
    found: dict[str, Any] = {
        "channels": channels[:],
        "switches": hook.switches,
        "epochs": list(hook.epochs.items()),
    }
    (FOLDER / f"fenced-{rank}").touch()
    wait_for("replaced")
    train(rank, steps, after)
    found["later"] = [channels[steps:], hook.switches]
    hook.detach()
    nccl.finalize()
    dist.destroy_process_group()
    return found


@job
def fenced_on_the_engine(rank: int, size: int, steps: int) -> list[Any]:
    """Train on the engine, whose tuner is the plugin; return what each all-reduce ran as."""
    join("ringstep", rank, size)
    comm = dist.group.WORLD.comm
    dist.barrier()
    hook = torch_hook.attach(every=1)
    (FOLDER / f"attached-{rank}").touch()
    wait_for("announced")
    ran = []
    for _ in range(steps):
        dist.all_reduce(torch.ones(1 << 16))
        run = comm.last_run()
        ran.append([run.algo.name, run.n_channels, run.decided])
        hook.step()
    hook.detach()
    nodes = comm.n_nodes
    dist.destroy_process_group()
    return [ran, hook.switches, nodes]


@job
def until_switched(rank: int, size: int) -> list[Any]:
    """Reduce on the engine until a coordinator's table has come into force by a fence."""
    join("ringstep", rank, size)
    comm = dist.group.WORLD.comm
    hook = torch_hook.attach(every=1)
    while not hook.switches and hook.steps < 20000:
        dist.all_reduce(torch.ones(1 << 14))
        hook.step()
        time.sleep(0.001)
    dist.all_reduce(torch.ones(1 << 14))
    run = comm.last_run()
    hook.detach()
    dist.destroy_process_group()
    return [hook.steps, hook.switches, run.algo.name, run.proto.name, run.n_channels, run.decided]


@job
def fence_without_peer(rank: int, size: int) -> str:
    """The exchange of a fence fails as any collective does."""
    join("gloo", rank, size)
    hook = torch_hook.attach()
    if rank:
        os._exit(7)
    return raises(hook.fence)


@job
def attach_badly(rank: int, size: int) -> dict[str, str]:
    """What attach refuses."""
    before = raises(torch_hook.attach)
    join("gloo", rank, size)
    other = dist.new_group([0])
    found = {
        "before": before,
        "negative": raises(lambda: torch_hook.attach(every=-1)),
        "differs": raises(lambda: torch_hook.attach(every=1 + rank)),
    }
    if rank:
        found["stranger"] = raises(lambda: torch_hook.attach(other))
    torch_hook.attach().detach()
    dist.destroy_process_group()
    return found


@job
def unattached(rank: int, size: int) -> dict[str, Any]:
    """No file: the hook does nothing."""
    join("gloo", rank, size)
    hook = torch_hook.attach(every=1)
    train(rank, 3, hook.step)
    found = {"recorder": hook.recorder is None, "fences": hook.fences, "steps": hook.steps}
    hook.detach()
    dist.destroy_process_group()
    return found


@job
def followed(rank: int, size: int) -> int:
    """An optimizer that steps the hook; return how often it did."""
    join("gloo", rank, size)
    hook = torch_hook.attach()
    parameter = torch.nn.Parameter(torch.ones(1))
    optimizer = torch.optim.SGD([parameter], lr=0.1)
    handle = hook.follow(optimizer)
    for _ in range(3):
        parameter.grad = torch.ones(1)
        optimizer.step()
    handle.remove()
    optimizer.step()
    hook.detach()
    dist.destroy_process_group()
    return hook.steps


# --- the example ---


@job
def example(_rank: int, _size: int, words: list[str]) -> dict[str, Any]:
    """``python ddp.py WORDS``; return its status and what it printed."""
    for name in [name for name in os.environ if name.startswith(("RINGSTEP_", "NCCL_"))]:
        if name != "RINGSTEP_NATIVE_DIR":
            del os.environ[name]
    sys.argv = [str(EXAMPLE), *words]
    status: object = 0
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            runpy.run_path(str(EXAMPLE), run_name="__main__")
        except SystemExit as end:
            status = end.code
    return {"status": status, "out": out.getvalue(), "err": err.getvalue()}


def run(told: dict[str, Any]) -> None:
    global FOLDER
    FOLDER = Path(told["folder"])
    os.environ.update(told["env"])
    torch.set_num_threads(1)
    outcome: dict[str, Any]
    try:
        result = JOB[told["job"]](told["rank"], told["size"], **told["arguments"])
        outcome = {"result": result}
    except BaseException as error:
        outcome = {
            "error": type(error).__name__, "message": str(error), "trace": traceback.format_exc()
        }  # fmt: skip
    path = FOLDER / f"outcome-{told['rank']}.json"
    path.with_suffix(".part").write_text(json.dumps(outcome))
    path.with_suffix(".part").rename(path)


assert torch_backend is not None  # It registers the backend.
if __name__ == "job":
    run(TOLD)  # noqa: F821  conftest.World puts it there.
