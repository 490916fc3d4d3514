"""A skeleton and stubs over TCP: the same tables everywhere, switched at the job's fences."""

from __future__ import annotations

import shutil
import socket
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from ringstep.hostlib.coordinator.control import ControlError, ask, socket_path
from ringstep.hostlib.coordinator.links import LinkError
from ringstep.hostlib.coordinator.policy import Options
from ringstep.hostlib.coordinator.skeleton import Settings
from ringstep.hostlib.coordinator.tcp import TcpLinks, TcpUplink, parse_address
from ringstep.hostlib.native.build import Built
from ringstep.hostlib.native.caller import Plugin, Rank
from ringstep.hostlib.shm import Scope, ShmFile, default_path

TOKEN = 0x5EED
Make = Callable[..., Any]
TABLE = "collective,bytes,algorithm,protocol,channels\nallreduce,..,ring,simple,7\n"


def listening(token: int = TOKEN) -> Any:
    return lambda loop, config: TcpLinks("127.0.0.1:0", token, config.node, loop)


def linked_to(address: str, token: int = TOKEN) -> Any:
    return lambda loop, config: TcpUplink(address, token, config.node, loop)


class Cluster:
    """Two nodes of two ranks each, all of one communicator."""

    def __init__(self, start: Make, folder: Path, built: Built, monkeypatch: Any) -> None:
        self.start, self.folder, self.built = start, folder, built
        self.monkeypatch = monkeypatch
        self.paths = [default_path("j", folder / name) for name in ("a", "b")]
        self.table = folder / "t.csv"
        self.table.write_text(TABLE)
        self.skeleton: Any = None
        self.stub: Any = None
        self.ranks: list[Rank] = []
        self.files: list[ShmFile] = []

    def begin(self, policy: str = "", **settings: Any) -> None:
        settings = {"nodes": 2, "supersede_fenced_s": 0.2, **settings}
        self.skeleton = self.start(
            policy or f"fixed:{self.table}", path=self.paths[0], node="a", token=TOKEN,
            links=listening(), settings=Settings(**settings), options=Options(),
        )  # fmt: skip
        self.begin_stub()

    @property
    def address(self) -> str:
        return str(self.skeleton.status()["address"])

    def begin_stub(self, address: str = "") -> None:
        self.stub = self.start(
            path=self.paths[1], node="b", token=TOKEN, uplink=linked_to(address or self.address)
        )

    def join(self) -> None:
        self.monkeypatch.setenv("RINGSTEP_SHM_TOKEN", f"{TOKEN:x}")
        self.monkeypatch.setenv("RINGSTEP_JOB", "j")
        for node, path in enumerate(self.paths):
            library = (
                self.folder / f"plugin{node}.so"
            )  # loaded twice: two processes' worth of state
            shutil.copy(self.built.plugin, library)
            self.monkeypatch.setenv("RINGSTEP_SHM_DIR", str(path.parent))
            plugin = Plugin(library)
            for rank in (2 * node, 2 * node + 1):
                self.ranks.append(Rank(plugin, 77, 4, rank, n_nodes=2))
            self.files.append(ShmFile.open(path, writable=True))

    def step(self) -> list[int]:
        return [rank.collective()[1] for rank in self.ranks]

    def fence(self) -> bool:
        """A point that all ranks pass: returns whether they switched."""
        members = [self.files[r // 2].fence_member(0, r) for r in range(4)]
        pairs = [member.propose() for member in members]
        agreed = min(pairs) == max(pairs) and pairs[0][0] != 0
        for member in members:
            member.settle(agreed)
        return agreed

    def run(self, until: Make, wanted: int) -> None:
        def turn() -> bool:
            self.step()
            self.fence()
            return self.step() == [wanted] * 4

        until(turn)

    def end(self) -> None:
        for rank in self.ranks:
            rank.finalize()
        for file in self.files:
            file.close()


@pytest.fixture
def cluster(
    start: Make, tmp_path: Path, shm_dir: Path, built: Built, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Cluster]:
    made = Cluster(start, tmp_path, built, monkeypatch)
    yield made
    made.end()


def test_both_nodes_get_the_table_and_switch_at_a_fence(cluster: Cluster, until: Make) -> None:
    cluster.begin()
    cluster.join()
    until(lambda: all(file.comm(0).scope is Scope.FENCED for file in cluster.files))
    cluster.step()
    until(
        lambda: all(r.ack_epoch == 1 for f in cluster.files for r in f.comm(0).ranks), cluster.step
    )
    assert cluster.step() == [0] * 4  # nothing before the fence
    digests = {r.ack_digest for f in cluster.files for r in f.comm(0).ranks}
    assert len(digests) == 1
    assert cluster.fence()
    assert cluster.step() == [7] * 4
    (comm,) = until(
        lambda: [c for c in cluster.skeleton.status()["communicators"] if c["epoch"] == 1]
    )
    assert comm["nodes"] == ["a", "b"]
    assert comm["switches_at"] == "fences"


def test_samples_are_joined_over_nodes(cluster: Cluster, until: Make) -> None:
    cluster.begin("nccl")
    cluster.join()
    until(lambda: cluster.skeleton.status()["samples_learned"] >= 5, cluster.step)
    comm = cluster.skeleton.comm()
    assert comm["absent_ranks"] == []
    assert comm["ranks"] == 4


def test_nothing_is_offered_before_all_nodes_are_there(cluster: Cluster, until: Make) -> None:
    cluster.begin(nodes=3)
    cluster.join()
    for _ in range(200):
        cluster.step()
    until(lambda: cluster.skeleton.status()["samples_learned"] >= 10)
    assert cluster.skeleton.status()["epoch"] == 0


def test_a_lost_stub_leaves_what_is_in_force_and_comes_back(cluster: Cluster, until: Make) -> None:
    cluster.begin()
    cluster.join()
    cluster.run(until, 7)
    address = cluster.address
    # its file stays: the ranks have it mapped
    object.__setattr__(cluster.stub.coordinator.config, "keep_file", True)
    cluster.stub.stop()
    until(lambda: cluster.skeleton.status()["nodes"] == ["a"])
    cluster.skeleton.ask(do="bypass", on=True)
    for _ in range(20):
        assert cluster.step() == [7] * 4
        cluster.fence()
    cluster.begin_stub(address)
    cluster.run(until, 0)
    epochs = {f.last_epoch for f in cluster.files}
    assert epochs == {max(epochs)}


def test_epochs_go_on_above_all_nodes(cluster: Cluster, until: Make) -> None:
    for path, last in zip(cluster.paths, (3, 41), strict=True):
        with ShmFile.create(path, token=TOKEN) as file:
            file.raw["header"]["epoch"] = last
    cluster.begin()
    cluster.join()
    cluster.run(until, 7)
    assert [f.last_epoch for f in cluster.files] == [42, 42]


def test_a_skeleton_that_comes_back_goes_on(cluster: Cluster, until: Make) -> None:
    cluster.begin()
    cluster.join()
    cluster.run(until, 7)
    address = cluster.address
    object.__setattr__(cluster.skeleton.coordinator.config, "keep_file", True)
    cluster.skeleton.stop()
    until(lambda: cluster.stub.status()["linked"] is False)
    assert cluster.step() == [7] * 4
    cluster.table.write_text(TABLE.replace("7", "9"))
    cluster.skeleton = cluster.start(
        f"fixed:{cluster.table}", path=cluster.paths[0], node="a", token=TOKEN,
        links=lambda loop, config: TcpLinks(address, TOKEN, "a", loop),
        settings=Settings(nodes=2, supersede_fenced_s=0.2),
    )  # fmt: skip
    cluster.run(until, 9)
    assert all(f.last_epoch >= 2 for f in cluster.files)


@pytest.mark.slow
def test_killed_coordinators_of_both_nodes_are_replaced_and_epochs_go_on(
    cluster: Cluster, start_process: Make, until: Make
) -> None:
    token = {"RINGSTEP_SHM_TOKEN": f"{TOKEN:x}"}

    def skeleton(where: str, table: str) -> Any:
        cluster.table.write_text(table)
        return start_process(
            "--job", "j", "--shm", str(cluster.paths[0].parent), "--node", "a", "--nodes", "2",
            "--listen", where, "--policy", f"fixed:{cluster.table}", environment=token,
        )  # fmt: skip

    def stub(where: str) -> Any:
        return start_process(
            "--job", "j", "--shm", str(cluster.paths[1].parent), "--node", "b",
            "--skeleton", where, environment=token,
        )  # fmt: skip

    first = skeleton("127.0.0.1:0", TABLE)
    address = first.event("ready")["address"]
    other = stub(address)
    other.event("linked")
    cluster.join()
    cluster.run(until, 7)
    first.process.kill()
    other.event("unlinked")
    assert cluster.step() == [7] * 4
    second = skeleton(address, TABLE.replace("7", "9"))
    cluster.run(until, 9)
    other.process.kill()
    other.process.wait()
    assert cluster.step() == [9] * 4
    stub(address).event("linked")
    for channels in (0, 9):
        ask(socket_path(cluster.paths[0]), {"do": "bypass", "on": channels == 0})
        cluster.run(until, channels)
    offers = [e for p in (first, second) for e in p.told if e["event"] == "offer"]
    for node in ("a", "b"):
        epochs = [e["epoch"] for e in offers if e["node"] == node]
        assert sorted(set(epochs)) == epochs


def test_a_stub_is_asked_for_its_link_only(cluster: Cluster, until: Make) -> None:
    cluster.begin()
    until(lambda: cluster.stub.status()["linked"])
    for request in ({"do": "policy", "name": "nccl"}, {"do": "bypass", "on": True}):
        with pytest.raises(ControlError, match=r"stub: ask the skeleton \(127\.0\.0\.1"):
            cluster.stub.ask(**request)


def test_a_stub_with_another_token_is_refused(
    cluster: Cluster, start: Make, until: Make, caplog: pytest.LogCaptureFixture
) -> None:
    cluster.begin()
    other = start(path=default_path("x", cluster.folder), node="x", token=1,
                  uplink=linked_to(cluster.address, token=1))  # fmt: skip
    until(lambda: "is RINGSTEP_SHM_TOKEN the same on both" in caplog.text)
    assert other.status()["linked"] is False
    assert cluster.skeleton.status()["nodes"] == ["a", "b"]


def test_two_nodes_of_one_name_are_told_apart(
    cluster: Cluster, start: Make, until: Make, caplog: pytest.LogCaptureFixture
) -> None:
    cluster.begin()
    start(path=default_path("x", cluster.folder), node="a", token=TOKEN,
          uplink=linked_to(cluster.address))  # fmt: skip
    until(lambda: "give each one its own --node" in caplog.text)


@pytest.mark.parametrize(
    "garbage",
    [b"GET / HTTP/1.0\r\n\r\n", b"\xff" * 100, b"\0\0\0\x05hello", b"\0\0\0\0" * 50, b"\0\0"],
)
def test_garbage_on_the_port_hurts_nobody(cluster: Cluster, until: Make, garbage: bytes) -> None:
    cluster.begin()
    host, port = parse_address(cluster.address)
    strangers = [socket.create_connection((host, port)) for _ in range(3)]
    for stranger in strangers:
        stranger.sendall(garbage)
    cluster.join()
    cluster.run(until, 7)
    for stranger in strangers:
        stranger.close()


def test_a_session_that_turns_to_garbage_is_hung_up_on_and_built_again(
    cluster: Cluster, until: Make
) -> None:
    cluster.begin()
    until(lambda: cluster.skeleton.status()["nodes"] == ["a", "b"])
    uplink = cluster.stub.coordinator._uplink
    lost: list[Any] = []
    cluster.stub.coordinator._tell = lost.append
    uplink._channel.sock.send(b"\0\0\0\x20" + b"x" * 32)
    until(lambda: [e for e in lost if e["event"] == "unlinked"])
    until(lambda: [e for e in lost if e["event"] == "linked"])
    cluster.join()
    cluster.run(until, 7)


@pytest.mark.parametrize("text", ["", "host", "host:", ":1", "host:port", "::1:80", "h:70000"])
def test_addresses_that_are_none(text: str) -> None:
    with pytest.raises(LinkError, match="write HOST:PORT"):
        parse_address(text)


def test_a_link_needs_a_token(start: Make) -> None:
    with pytest.raises(LinkError, match="RINGSTEP_SHM_TOKEN is not set"):
        start(links=listening(token=0))
    with pytest.raises(LinkError, match="RINGSTEP_SHM_TOKEN is not set"):
        start(uplink=linked_to("127.0.0.1:1", token=0))
