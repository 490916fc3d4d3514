"""How ranks find one another, and what strangers at their ports cannot do."""

from __future__ import annotations

import socket
import time
from pathlib import Path
from typing import Any

from engine_reference import RING, SIMPLE, TREE, Case, Coll
from free_ports import free_port

CALL = Case(Coll.ALL_REDUCE, 100, RING, SIMPLE, 2).line()


def listening_ports(pid: int) -> set[int]:
    """Ports on which a process accepts connections."""
    inodes = set()
    for link in Path(f"/proc/{pid}/fd").iterdir():
        target = str(link.readlink())
        if target.startswith("socket:["):
            inodes.add(target[8:-1])
    ports = set()
    for line in Path(f"/proc/{pid}/net/tcp").read_text().splitlines()[1:]:
        fields = line.split()
        if fields[3] == "0A" and fields[9] in inodes:
            ports.add(int(fields[1].split(":")[1], 16))
    return ports


def test_ranks_meet_at_a_port_that_all_know_in_any_order(ranks: Any) -> None:
    ranks.start(4, where=f"at:127.0.0.1:{free_port(4)}")
    assert all(a.startswith("ok") for a in ranks.ask(CALL))
    ranks.close()


def test_others_may_wait_for_rank_0(ranks: Any) -> None:
    where = f"at:localhost:{free_port(4)}"
    started = ranks.start(3, where=where, wait=False, prefix=late_root)
    for rank in started:
        assert rank.answer().startswith("joined")
    ranks.close()


def late_root(rank: int) -> list[str]:
    return ["sh", "-c", 'sleep 0.5; exec "$@"', "sh"] if rank == 0 else []


def test_nodes_are_counted_and_channels_are_the_least_of_all(ranks: Any) -> None:
    ranks.start(
        4,
        each=lambda rank: [f"node=host{rank // 2}", f"channels={(8, 3, 5, 8)[rank]}"],
        wait=False,
    )
    answers = {rank.answer() for rank in ranks.ranks}
    assert len(answers) == 1
    word, nodes, channels, _ = answers.pop().split()
    assert (word, nodes, channels) == ("joined", "2", "3")


def test_ranks_on_one_host_are_one_node(ranks: Any) -> None:
    ranks.start(2, wait=False)
    assert all(rank.answer().split()[1] == "1" for rank in ranks.ranks)


def test_exchange_gives_everybody_everything(ranks: Any) -> None:
    ranks.start(5)
    for size in (0, 1, 8, 100_000):
        assert ranks.ask(f"exchange {size}") == ["ok"] * 5
    ranks.ask(CALL)
    assert ranks.ask("exchange 3") == ["ok"] * 5
    ranks.close()


def test_strangers_at_the_root_do_not_break_the_job(ranks: Any) -> None:
    """Garbage, half a message, silence, and connections that end at once."""
    port = free_port(4)
    where = f"at:127.0.0.1:{port}"
    strangers = []
    ranks.start(3, where=where, wait=False, prefix=late_others)
    deadline = time.monotonic() + 30
    for talk in (b"GET / HTTP/1.1\r\n\r\n" * 60, b"RSH1", b"", b"\x00" * 1000):
        while True:
            try:
                connection = socket.create_connection(("127.0.0.1", port), timeout=5)
                break
            except ConnectionRefusedError:
                assert time.monotonic() < deadline
                time.sleep(0.01)
        connection.sendall(talk)
        strangers.append(connection)
    socket.create_connection(("127.0.0.1", port), timeout=5).close()
    for rank in ranks.ranks:
        assert rank.answer().startswith("joined")
    assert all(a.startswith("ok") for a in ranks.ask(CALL))
    for connection in strangers:
        connection.close()
    ranks.close()


def late_others(rank: int) -> list[str]:
    return ["sh", "-c", 'sleep 0.7; exec "$@"', "sh"] if rank != 0 else []


def test_strangers_at_a_rank_do_not_break_its_collectives(ranks: Any) -> None:
    ranks.start(3, None, "timeout=60")
    (port,) = listening_ports(ranks.ranks[1].process.pid)
    strangers = []
    for talk in (b"x" * 1000, b"RSD1", b""):
        connection = socket.create_connection(("127.0.0.1", port), timeout=5)
        connection.sendall(talk)
        strangers.append(connection)
    assert all(a.startswith("ok") for a in ranks.ask(CALL))
    assert all(a.startswith("ok") for a in ranks.ask(Case(Coll.ALL_REDUCE, 9, TREE).line()))
    ranks.close()


def test_a_rank_that_does_not_come_is_named(ranks: Any, tmp_path: Path) -> None:
    (tmp_path / "in.0").write_bytes(b"")
    where = f"at:127.0.0.1:{free_port(4)}"
    ranks.start(3, None, "timeout=1", where=where, wait=False, prefix=absent_rank_1)
    answers = [ranks.ranks[i].answer() for i in (0, 2)]
    assert answers[0].startswith("error 3 ")
    assert "did not join within 1 s: rank 1" in answers[0]
    assert answers[1].startswith("error ")


def absent_rank_1(rank: int) -> list[str]:
    return ["sh", "-c", "exit 0", "sh"] if rank == 1 else []


def test_two_processes_with_one_rank_are_told_so(ranks: Any) -> None:
    ranks.start(3, None, "timeout=60", wait=False, says=lambda i: ((0, 1, 1)[i], 3))
    answers = [rank.answer() for rank in ranks.ranks]
    assert all(a.startswith("error 6 ") for a in answers), answers
    assert "two processes with rank 1" in answers[0]


def test_ranks_that_count_differently_are_told_so(ranks: Any) -> None:
    ranks.start(2, None, "timeout=60", wait=False, says=lambda i: (i, 2 + i))
    answers = [rank.answer() for rank in ranks.ranks]
    assert all(a.startswith("error 6 ") for a in answers), answers
    assert "rank 1 says there are 3 ranks, rank 0 says 2" in answers[1]


def test_observers_see_each_message_and_channel(ranks: Any) -> None:
    """Every start has its end; a ring's steps are counted over the calls."""
    ranks.start(4)
    ranks.ask(Case(Coll.ALL_REDUCE, 4 * 16 * 3, RING, SIMPLE, 3).line())
    ranks.ask(Case(Coll.ALL_GATHER, 100, RING, SIMPLE, 1).line())
    for answer in ranks.ask("observed"):
        _, channels, same, started, finished, _blocked = answer.split()
        assert (channels, same) == ("4", "1")
        assert started == finished == str(6 * 3 + 3)
    assert set(ranks.ask("steps")) == {"steps " + " ".join(map(str, range(9)))}
    ranks.close()
