"""Files that are missing, of another kind, broken, or somebody else's: success, NCCL left alone."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ringstep.hostlib import shm_layout as lay
from ringstep.hostlib.native.caller import Rank
from ringstep.hostlib.shm import (
    Decision,
    DecisionTable,
    Reason,
    ShmError,
    ShmFile,
    alive,
    default_path,
)
from ringstep.hostlib.shm_layout import Algo, Collective, Proto

AR = Collective.ALL_REDUCE
MakeRank = Callable[..., Rank]


def filled(path: Path, **options: int) -> ShmFile:
    file = ShmFile.create(path, **options)
    table = DecisionTable()
    table.set(AR, range(64), Decision(Algo.RING, Proto.LL, 2))
    file.write_static(table)
    return file


def applied(rank: Rank) -> bool:
    costs, channels = rank.get_coll_info(AR)
    done = costs.chosen() == (Algo.RING, Proto.LL)
    assert done or (channels == 0 and all(c == 10.0 for c in costs.block))
    return done


def overwrite(path: Path, offset: int, value: bytes) -> None:
    with path.open("r+b") as file:
        file.seek(offset)
        file.write(value)


HEADER = lay.HEADER.fields
assert HEADER is not None
FIELDS = [name for name in HEADER if name in {"magic", "layout", "ready"} | set(lay.SIZES)]


@pytest.mark.parametrize("field", FIELDS)
def test_another_version_is_recognised(
    shm_dir: Path, make_rank: MakeRank, log: Any, field: str
) -> None:
    path = default_path()
    with filled(path):
        assert HEADER is not None
        kind, offset = HEADER[field][:2]
        overwrite(path, offset, b"\x63" * kind.itemsize)
        assert not applied(make_rank(1, 1, 0, log=log))
        assert log.reasons[0] == Reason.BAD_FILE
        with pytest.raises(ShmError, match=r"layout|magic|byte order|finished"):
            ShmFile.open(path)


@pytest.mark.parametrize("size", [0, 1, 4096, lay.FILE.itemsize - 1, lay.FILE.itemsize + 4096])
def test_truncated_and_overlong_files(
    shm_dir: Path, make_rank: MakeRank, log: Any, size: int
) -> None:
    path = default_path()
    filled(path).close()
    os.truncate(path, size)
    assert not applied(make_rank(1, 1, 0, log=log))
    assert log.reasons[0] == Reason.BAD_FILE
    with pytest.raises(ShmError, match=str(size)):
        ShmFile.open(path)


def test_a_file_without_storage(shm_dir: Path, make_rank: MakeRank, log: Any) -> None:
    """A sparse file on a full file system would kill the process at the first touch."""
    path = default_path()
    filled(path).close()
    content = path.read_bytes()[:4096]
    path.unlink()
    path.write_bytes(content)
    os.truncate(path, lay.FILE.itemsize)
    assert not applied(make_rank(1, 1, 0, log=log))
    assert log.reasons[0] == Reason.BAD_FILE


def test_a_full_file_system_is_said_at_creation(
    shm_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "posix_fallocate", full)
    with pytest.raises(ShmError, match="no storage"):
        ShmFile.create(default_path())
    assert not default_path().exists()


@pytest.mark.parametrize("kind", ["absent", "folder", "fifo", "link", "garbage", "odd job"])
def test_what_is_not_the_file(
    shm_dir: Path, make_rank: MakeRank, log: Any, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    path = default_path()
    if kind == "folder":
        path.mkdir()
    elif kind == "fifo":
        os.mkfifo(path)
    elif kind == "link":
        filled(path.with_name("other.shm")).close()
        path.symlink_to(path.with_name("other.shm"))
    elif kind == "garbage":
        path.write_bytes(os.urandom(lay.FILE.itemsize))
    elif kind == "odd job":
        monkeypatch.setenv("RINGSTEP_JOB", "../../etc/passwd")
    assert not applied(make_rank(1, 1, 0, log=log))
    expected = Reason.NO_FILE if kind in ("absent", "odd job") else Reason.BAD_FILE
    assert log.reasons[0] == expected


@pytest.mark.root
@pytest.mark.skipif(os.geteuid() != 0, reason="needs root to become another user")
def test_a_file_that_cannot_be_written_or_is_not_ours(shm_dir: Path, built: Any) -> None:
    path = default_path()
    filled(path).close()
    script = f"""
import os, sys
from ringstep.hostlib.native.caller import Plugin, Rank
plugin = Plugin({str(built.plugin)!r})
os.setuid(65534)
reasons = []
rank = Rank(plugin, 1, 1, 0, log=lambda *a: reasons.append(a[3]))
costs, channels = rank.get_coll_info()
assert all(c == 10.0 for c in costs.block), "touched"
print(reasons[0])
"""
    here = path
    while here != Path("/tmp") and here != here.parent:  # the other user has to see the folder
        here = here.parent
        here.chmod(0o755)
    for owner, mode in ((0, 0o644), (12345, 0o666)):
        os.chown(path, owner, owner)
        path.chmod(mode)
        done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
        assert (done.stdout.strip(), done.stderr) == (str(int(Reason.BAD_FILE)), "")


def test_a_file_of_a_run_that_is_over(
    shm_dir: Path, make_rank: MakeRank, log: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = default_path()
    maker = (
        "from ringstep.hostlib.shm import *; from ringstep.hostlib.shm_layout import *;"
        "f=ShmFile.create(default_path()); t=DecisionTable();"
        "t.set(Collective.ALL_REDUCE, range(64), Decision(Algo.RING, Proto.LL, 2));"
        "f.write_static(t)"
    )
    subprocess.run([sys.executable, "-c", maker], check=True)
    assert not applied(make_rank(1, 1, 0, log=log))
    assert log.reasons[0] == Reason.STALE_FILE
    with ShmFile.reopen(path):  # a coordinator that comes back takes it over
        assert applied(make_rank(2, 1, 0))


def test_owner_is_told_from_another_process_with_its_number(
    shm_dir: Path, make_rank: MakeRank
) -> None:
    with filled(default_path()) as file:
        file.raw["header"]["pid_start"] = int(file.raw["header"]["pid_start"][0]) - 1
        assert not applied(make_rank(1, 1, 0))


def test_token_names_the_run(
    shm_dir: Path, make_rank: MakeRank, monkeypatch: pytest.MonkeyPatch, log: Any
) -> None:
    with filled(default_path(), token=0xABC) as file:
        assert file.token == 0xABC
        monkeypatch.setenv("RINGSTEP_SHM_TOKEN", "abd")
        assert not applied(make_rank(1, 1, 0, log=log))
        assert log.reasons[0] == Reason.STALE_FILE
        monkeypatch.setenv("RINGSTEP_SHM_TOKEN", "abc")
        file.raw["header"]["pid"] = 2**22 + 5  # out of sight in another pid namespace
        assert applied(make_rank(2, 1, 0))


def test_a_file_that_cannot_be_made_leaves_nothing(tmp_path: Path) -> None:
    path = tmp_path / "job.shm"
    path.mkdir()
    with pytest.raises(OSError, match=r"job\.shm"):
        ShmFile.create(path)
    assert list(tmp_path.iterdir()) == [path]


def test_one_owner_at_a_time(shm_dir: Path) -> None:
    path = default_path()
    with filled(path):
        with pytest.raises(ShmError, match="another coordinator"):
            ShmFile.create(path)
        with pytest.raises(ShmError, match="another coordinator"):
            ShmFile.reopen(path)
    ShmFile.create(path).close()


def test_a_new_file_does_not_disturb_who_has_the_old_one(
    shm_dir: Path, make_rank: MakeRank, log: Any
) -> None:
    path = default_path()
    old = filled(path)
    rank = make_rank(1, 1, 0)
    assert applied(rank)
    old.close()
    with ShmFile.create(path):
        assert applied(rank)  # still on the old one
        between = make_rank(5, 1, 0, log=log)
        assert not applied(between)  # neither here nor there
        assert log.reasons == [Reason.BUSY]
        between.finalize()
        rank.finalize()
        assert not applied(make_rank(2, 1, 0))  # the new one, which is empty


def test_torn_and_wrong_tables_are_refused(shm_dir: Path, make_rank: MakeRank, log: Any) -> None:
    with filled(default_path()) as file:
        file.raw["static_bank"]["entries"]["n_channels"][0, AR, 20] = 9  # without the digest
        assert not applied(make_rank(1, 1, 0, log=log))
        assert log.reasons[0] == Reason.BAD_DIGEST
        file.raw["static_bank"]["version"] = 3  # its writer died in the middle
        assert not applied(make_rank(2, 1, 0))


def test_names_of_jobs(shm_dir: Path) -> None:
    assert default_path("a.b-c_9") == shm_dir / "a.b-c_9.shm"
    for bad in ("", ".hidden", "a/b", "x" * 65, "ü"):
        with pytest.raises(ShmError, match="letters"):
            default_path(bad)


def test_a_file_full_of_processes(shm_dir: Path, make_rank: MakeRank, log: Any) -> None:
    """Telemetry finds no ring; decisions are applied all the same."""
    with filled(default_path()) as file:
        procs = file.raw["procs"][0]
        procs["state"], procs["pid"], procs["pid_start"] = 1, os.getppid(), 0
        assert applied(make_rank(1, 1, 0, log=log))
        assert log.reasons == [Reason.NO_ROOM]


def test_init_succeeds_whatever_the_environment_says(
    shm_dir: Path, make_rank: MakeRank, monkeypatch: pytest.MonkeyPatch
) -> None:
    """aws-ofi-nccl #982: a tuner that failed when NCCL_ALGO was set killed the job."""
    for name, value in (("NCCL_ALGO", "Tree"), ("NCCL_PROTO", "LL"), ("RINGSTEP_SHM_TOKEN", "zz"),
                        ("RINGSTEP_SHM_DIR", "/" + "x" * 5000), ("RINGSTEP_STATIC_DIGEST", "-1"),
                        ("RINGSTEP_PROFILE", ""), ("RINGSTEP_MAX_CHANNELS", "-7")):  # fmt: skip
        monkeypatch.setenv(name, value)
        assert not applied(make_rank(1, 1, 0))


def test_a_process_is_told_from_another_that_has_its_number() -> None:
    start = int(Path("/proc/self/stat").read_text().rpartition(")")[2].split()[19])
    assert alive(os.getpid())
    assert alive(os.getpid(), start)
    assert not alive(os.getpid(), start + 1)
    ended = subprocess.Popen(["true"])
    ended.wait()
    assert not alive(ended.pid)
    assert not alive(0)
    assert not alive((1 << 32) - 1)


def test_looking_at_what_is_no_file_with_storage_is_an_error_and_no_wait(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.shm")
    with pytest.raises(ShmError, match="bytes, layout"):
        ShmFile.open(tmp_path / "pipe.shm")
    with filled(tmp_path / "whole.shm"):
        pass
    with (tmp_path / "holes.shm").open("wb") as holes:
        holes.write((tmp_path / "whole.shm").read_bytes()[:4096])
        holes.truncate(lay.FILE.itemsize)
    with pytest.raises(ShmError, match="it has holes"):
        ShmFile.open(tmp_path / "holes.shm")
    (tmp_path / "link.shm").symlink_to(tmp_path / "whole.shm")
    with pytest.raises(ShmError):
        ShmFile.open(tmp_path / "link.shm", writable=True)
    ShmFile.open(tmp_path / "link.shm").close()
