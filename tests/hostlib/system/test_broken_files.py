"""What may happen to the shared-memory file under running ranks, and to what is written into it."""

from __future__ import annotations

import contextlib
import os
import random
import shutil
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from ringstep.hostlib import shm_layout as lay
from ringstep.hostlib.coordinator.control import socket_path
from ringstep.hostlib.shm import DecisionTable, ShmFile

from .world import World, audit, until

pytestmark = pytest.mark.root


def unlinked(path: Path) -> None:
    path.unlink()


def truncated(path: Path) -> None:
    """A copy in its place: to shorten the file itself would kill whoever has it mapped."""
    short = path.with_name("short")
    short.write_bytes(path.read_bytes()[:100_000])
    short.rename(path)


def of_another_version(path: Path) -> None:
    other = path.with_name("other")
    shutil.copy(path, other)
    with other.open("r+b") as file:
        file.seek(8)
        file.write((lay.LAYOUT + 1).to_bytes(4, "little"))
    other.rename(path)


def of_zeros(path: Path) -> None:
    zeros = path.with_name("zeros")
    zeros.write_bytes(bytes(lay.FILE.itemsize))
    zeros.rename(path)


def unreadable(path: Path) -> None:
    """Root may read and write all the same; that is as good a case as any."""
    path.chmod(0)


def a_folder(path: Path) -> None:
    path.unlink()
    path.mkdir()


@pytest.fixture
def decided(world: World) -> Path:
    table = world.folder / "table.csv"
    table.write_text("collective,bytes,algorithm,protocol,channels\nallreduce,..,tree,ll,1\n")
    return table


def test_file_that_breaks_under_running_ranks(world: World, decided: Path) -> None:
    """Who has the old file keeps it; who comes later runs without decisions, or with the old."""
    coordinator = world.coordinator("--policy", f"fixed:{decided}")
    watcher = world.watch()
    ranks = world.start_ranks(sizes=[1 << 12, 1 << 18])
    until(lambda: coordinator.events("applied"), "a decision in force")
    world.go_on(ranks, 5)
    kept = world.folder / "kept"
    kept.hardlink_to(world.path())
    for broken in (unlinked, truncated, of_another_version, of_zeros, unreadable, a_folder):
        broken(world.path())
        before = [rank.decided for rank in ranks]
        world.go_on(ranks, 20)
        assert all(rank.decided > was for rank, was in zip(ranks, before, strict=True)), (
            broken.__name__
        )
        later = world.start_ranks(sizes=[1 << 12], count=2)
        world.go_on(later, 5)
        world.finish(later)
        put_back(kept, world.path())
    world.finish(ranks)
    assert audit(watcher.close(), len(ranks)).differences == []


def put_back(kept: Path, path: Path) -> None:
    """Have the running ranks' own file at its place again, as it was."""
    if path.is_dir():
        path.rmdir()
    path.unlink(missing_ok=True)
    path.hardlink_to(kept)
    path.chmod(0o600)


@contextlib.contextmanager
def small_file_system(folder: Path) -> Iterator[None]:
    folder.mkdir()
    done = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=8m,mode=0700", "none", str(folder)],
        capture_output=True, text=True,
    )  # fmt: skip
    if done.returncode != 0:
        pytest.skip(f"needs the right to mount: {done.stderr.strip()}")
    try:
        yield
    finally:
        subprocess.run(["umount", "--lazy", str(folder)], check=True)


def fill(folder: Path) -> None:
    with (folder / "filling").open("wb", buffering=0) as file, contextlib.suppress(OSError):
        while True:
            file.write(bytes(4096))
    assert os.statvfs(folder).f_bavail == 0


def test_file_system_that_fills_up_under_running_ranks(world: World, decided: Path) -> None:
    folder = world.folder / "small"
    with small_file_system(folder):
        coordinator = world.coordinator("--policy", f"fixed:{decided}", folder=folder)
        fill(folder)
        ranks = world.start_ranks(folders=[folder] * world.hosts.count)
        until(lambda: coordinator.events("applied"), "a decision in force")
        world.go_on(ranks, 10)
        assert all(result["decided"] for result in world.finish(ranks))
        coordinator.kill()
        coordinator.wait()


def test_garbage_from_the_coordinators_side(world: World, decided: Path) -> None:
    """Its own parts of the file at random, tables that lie, and half a request to its socket."""
    random_bytes = random.Random(7)
    coordinator = world.coordinator("--policy", f"fixed:{decided}")
    watcher = world.watch()
    ranks = world.start_ranks(sizes=[1 << 12, 1 << 18])
    until(lambda: coordinator.events("applied"), "a decision in force")
    for half in (b"", b"{", b'{"do": "pol', b"\xff" * 5000, b'{"do": 7}\n', b"[]\n", b"null\n"):
        with socket.socket(socket.AF_UNIX) as client, contextlib.suppress(OSError):
            client.connect(str(socket_path(world.path())))
            client.sendall(half)
    assert coordinator.ask(do="status")["policy"] == "fixed"
    coordinator.kill()
    coordinator.wait()
    with ShmFile.reopen(world.path()) as shm:
        block = shm.raw["comms"][0][0]
        for turn in range(60):
            bank = block["bank"]
            entries = np.frombuffer(random_bytes.randbytes(bank["entries"].nbytes), lay.ENTRY)
            bank["version"] = random_bytes.getrandbits(60) | 1
            bank["entries"] = entries.reshape(bank["entries"].shape)
            bank["epoch"] = 10 + turn if turn % 3 else random_bytes.getrandbits(32)
            # Now and then all of it fits, but for what the entries say.
            fits = DecisionTable(bank["entries"].copy()).digest(int(bank["epoch"]))
            bank["digest"] = fits if turn % 2 else random_bytes.getrandbits(64)
            bank["version"] += 1
            block["announced"] = int(bank["epoch"]) if turn % 4 else random_bytes.getrandbits(63)
            world.go_on(ranks, 2)
            assert [r.in_force for r in shm.comm(0).ranks] == [1] * len(ranks)
    world.finish(ranks)
    found = audit(watcher.close(), len(ranks))
    assert found.differences == []
    assert found.epochs <= {0, 1}
