"""Which firmware commands are sent, and what a failure says, as the mock recorded it."""

from __future__ import annotations

import ctypes
import errno
import os
import threading
from collections.abc import Callable

import pytest

from ringstep.hostlib.native.build import BuiltTagger
from ringstep.hostlib.rnic import SoftRnic
from ringstep.hostlib.tagger import NicTagger, TagError
from ringstep.hostlib.tagging import PortPerStep, QpPool, StepTagger
from ringstep.protocol.rocev2 import parse
from ringstep.protocol.tag import TagLayout

from .conftest import ERR, INIT, RC, RTR, RTS, UC, UD, Mock


def test_a_step_is_one_command_and_none_where_the_port_is_right(
    mock: Mock, library: ctypes.CDLL
) -> None:
    layout = TagLayout(6, 8)
    qp, other = mock.qp(), mock.qp()
    with NicTagger(layout, 33, library=library) as tagger:
        for step in (7, 7, 8, 8, 8 + 256, 9):
            tagger.set_step(qp, step)
        tagger.set_step(other, 9)
        cost = tagger.cost
    assert mock.ports() == [layout.sport(step, 33) for step in (7, 8, 9, 9)]
    assert [call.qp_num for call in mock.calls("sport")] == [mock.number(qp)] * 3 + [
        mock.number(other)
    ]
    assert mock.sport(qp) == layout.sport(9, 33)
    assert (cost.calls, cost.skipped, cost.failed) == (4, 3, 0)
    assert 0 < cost.min_ns <= cost.median_ns <= cost.max_ns


def test_the_time_of_commands_is_told(
    mock: Mock, library: ctypes.CDLL, monkeypatch: pytest.MonkeyPatch
) -> None:
    qp = mock.qp()
    with NicTagger(TagLayout(), library=library) as tagger:
        assert (tagger.cost.min_ns, tagger.cost.median_ns, tagger.cost.max_ns) == (0, 0, 0)
        for calls, us in enumerate((2000, 4000, 8000), 1):
            monkeypatch.setenv("RINGSTEP_MOCK_DELAY_US", str(us))
            tagger.set_step(qp, calls)
            cost = tagger.cost
            assert cost.calls == calls
            assert 2_000_000 <= cost.min_ns <= cost.median_ns <= cost.max_ns
            assert cost.max_ns >= us * 1000
        assert cost.median_ns >= 4_000_000


@pytest.mark.parametrize("k", [4, 8, 1024])
def test_a_pool_is_set_once(mock: Mock, library: ctypes.CDLL, k: int) -> None:
    pool = QpPool.of(k)
    qps = [mock.qp() for _ in range(k)]
    with NicTagger(pool.layout, 3, library=library) as tagger:
        tagger.preset_pool(qps)
        assert mock.ports() == pool.ports(3)
        assert [mock.sport(qp) for qp in qps] == pool.ports(3)
        # Steps then need no command at all, and asking for one changes nothing.
        tagger.preset_pool(qps)
        for step in range(3 * k):
            tagger.set_step(qps[pool.place(3, step).qp_index], step)
        assert (tagger.cost.calls, tagger.cost.skipped) == (k, 4 * k)


@pytest.mark.parametrize(
    ("make", "word"),
    [
        (lambda mock: mock.qp(rts=False), "RESET"),
        (lambda mock: mock.qp(UD), "only RC and UC"),
        (lambda mock: 0, "no queue pair"),
    ],
    ids=["not in RTS", "UD", "NULL"],
)
def test_a_pool_with_a_queue_pair_that_cannot_is_not_begun(
    mock: Mock, library: ctypes.CDLL, make: Callable[[Mock], int], word: str
) -> None:
    pool = QpPool.of(4)
    qps = [mock.qp() for _ in range(3)]
    with NicTagger(pool.layout, library=library) as tagger:
        with pytest.raises(TagError, match=word) as caught:
            tagger.preset_pool([*qps, make(mock)])
        assert "queue pair 3 of the pool" in str(caught.value)
        with pytest.raises(TagError, match="twice"):
            tagger.preset_pool([*qps, qps[0]])
        with pytest.raises(TagError, match="power of two"):
            tagger.preset_pool(qps)
        with pytest.raises(TagError, match="J = 11, S = 3"):
            tagger.preset_pool([mock.qp() for _ in range(8)])
    assert mock.ports() == []


def test_a_pool_goes_on_where_a_failure_ended_it(
    mock: Mock, library: ctypes.CDLL, monkeypatch: pytest.MonkeyPatch
) -> None:
    pool = QpPool.of(8)
    qps = [mock.qp() for _ in range(8)]
    monkeypatch.setenv("RINGSTEP_MOCK_FAIL", f"6:{errno.EBUSY}")
    with NicTagger(pool.layout, library=library) as tagger:
        with pytest.raises(TagError, match="busy") as caught:
            tagger.preset_pool(qps)
        assert caught.value.errno == errno.EBUSY
        assert mock.ports() == pool.ports(0)[:5]
        tagger.preset_pool(qps)
        assert mock.ports() == pool.ports(0)
        assert (tagger.cost.calls, tagger.cost.failed) == (9, 1)


@pytest.mark.parametrize("state", [INIT, RTR, ERR])
def test_only_in_rts(mock: Mock, library: ctypes.CDLL, state: int) -> None:
    qp = mock.qp(rts=False)
    for to in range(1, state + 1) if state < RTS else [state]:
        assert mock.modify(qp, to) == 0
    with NicTagger(TagLayout(), library=library) as tagger:
        with pytest.raises(TagError, match="in RTS only") as caught:
            tagger.set_step(qp, 1)
        assert caught.value.errno == errno.EOPNOTSUPP
    assert mock.calls("sport") == []


def test_a_queue_pair_that_left_rts_gets_its_port_anew(mock: Mock, library: ctypes.CDLL) -> None:
    qp = mock.qp(UC)
    with NicTagger(TagLayout(), library=library) as tagger:
        tagger.set_step(qp, 5)
        assert mock.modify(qp, 0) == 0
        assert mock.sport(qp) == 0
        # Noticed, because it was asked for outside of RTS ...
        with pytest.raises(TagError):
            tagger.set_step(qp, 5)
        for state in (INIT, RTR, RTS):
            assert mock.modify(qp, state) == 0
        tagger.set_step(qp, 5)
        assert mock.sport(qp) == 0xC005
        # ... or because the owner said so.
        for state in (0, INIT, RTR, RTS):
            assert mock.modify(qp, state) == 0
        tagger.forget(qp)
        tagger.set_step(qp, 5)
    assert mock.sport(qp) == 0xC005


def test_queue_pairs_that_come_and_go_are_not_taken_for_one_another(
    mock: Mock, library: ctypes.CDLL
) -> None:
    """Memory of a destroyed queue pair is used again; its number is not."""
    seen = set()
    with NicTagger(TagLayout(), library=library) as tagger:
        for _ in range(200):
            batch = [mock.qp() for _ in range(5)]
            for qp in batch:
                seen.add(qp)
                tagger.set_step(qp, 9)
                assert mock.sport(qp) == 0xC009
            for qp in batch:
                mock.destroy(qp)
        assert tagger.cost.calls == 1000
    if "RINGSTEP_TEST_TAGGER" not in os.environ:  # AddressSanitizer keeps freed memory apart.
        assert len(seen) < 1000


@pytest.mark.parametrize(
    ("number", "word"),
    [
        (errno.EOPNOTSUPP, "rts2rts_qp_udp_sport"),
        (errno.EINVAL, "range"),
        (errno.EREMOTEIO, "error state"),
        (errno.EPERM, "DEVX"),
        (errno.ENOMEM, "memory"),
        (errno.ETIMEDOUT, "did not answer"),
        (errno.ENODEV, "gone"),
        (errno.ERANGE, os.strerror(errno.ERANGE)),
    ],
)
def test_every_failure_is_explained_and_the_port_taken_to_be_unknown(
    mock: Mock,
    library: ctypes.CDLL,
    monkeypatch: pytest.MonkeyPatch,
    number: int,
    word: str,
) -> None:
    qp = mock.qp()
    monkeypatch.setenv("RINGSTEP_MOCK_FAIL", f"2:{number}")
    with NicTagger(TagLayout(), library=library) as tagger:
        tagger.set_step(qp, 1)
        with pytest.raises(TagError, match=word) as caught:
            tagger.set_step(qp, 2)
        assert caught.value.errno == number
        assert f"queue pair {mock.number(qp):#x}" in str(caught.value)
        tagger.set_step(qp, 1)
        assert tagger.cost.failed == 1
    assert [call.argument for call in mock.calls("sport")] == [0xC001, 0xC002, 0xC001]


@pytest.mark.parametrize("kind", ["rxe", "mlx5-ib", "mlx5-roce1"])
def test_a_nic_that_cannot_says_so(
    mock: Mock, library: ctypes.CDLL, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    monkeypatch.setenv("RINGSTEP_MOCK_DEVICES", f"nic={kind}")
    qp = mock.qp()
    with NicTagger(TagLayout(), library=library) as tagger:
        with pytest.raises(TagError, match="probe-nic") as caught:
            tagger.set_step(qp, 1)
        assert caught.value.errno == errno.EOPNOTSUPP


def test_bad_arguments(mock: Mock, library: ctypes.CDLL, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(TagError, match="job tag 64"):
        NicTagger(TagLayout(6, 8), 64, library=library)
    with pytest.raises(ValueError, match="32 bits"):
        NicTagger(TagLayout(), -1, library=library)
    with NicTagger(TagLayout(), library=library) as tagger:
        with pytest.raises(TagError, match="no queue pair"):
            tagger.set_step(0, 1)
        with pytest.raises(ValueError, match="step -1"):
            tagger.set_step(mock.qp(), -1)
        tagger.close()
    assert library.rt_set_step(None, None, 0) == errno.EINVAL
    assert library.rt_pool_preset(None, None, 4) == errno.EINVAL
    library.rt_forget(None, None)
    library.rt_get_cost(None, None)
    library.rt_tagger_destroy(None)


def test_several_threads_share_a_tagger(mock: Mock, library: ctypes.CDLL) -> None:
    qps = [[mock.qp() for _ in range(20)] for _ in range(4)]
    with NicTagger(TagLayout(), library=library) as tagger:

        def work(mine: list[int]) -> None:
            for step in range(20):
                for qp in mine:
                    tagger.set_step(qp, step // 2)

        threads = [threading.Thread(target=work, args=(mine,)) for mine in qps]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        cost = tagger.cost
    assert (cost.calls, cost.skipped, cost.failed) == (800, 800, 0)
    assert all(mock.sport(qp) == 0xC009 for mine in qps for qp in mine)


@pytest.mark.parametrize(
    ("tagger", "job_tag"),
    [(PortPerStep(), 0), (PortPerStep(TagLayout(6, 8)), 33), (QpPool.of(8), 1000)],
    ids=["port_per_step", "port_per_step of a job", "qp_pool"],
)
def test_frames_of_the_software_nic_with_these_ports_are_those_of_the_step_tagger(
    mock: Mock, library: ctypes.CDLL, tagger: StepTagger, job_tag: int
) -> None:
    """The ports that a NIC would be given, and what a switch then sees: byte for byte."""
    steps = [0, 1, 1, 2, 7, 8, 255, 256, 257, 16_383, 16_384]
    qps = [mock.qp() for _ in range(tagger.qps)]

    def frames(port_of: Callable[[int], tuple[int, int]]) -> list[bytes]:
        nic = SoftRnic(1, "10.0.0.1", 2, 1e12)
        pairs = [
            nic.create_qp(16 + i, "10.0.0.2", 100 + i, mtu_payload=256) for i in range(len(qps))
        ]
        sent = []
        for number, step in enumerate(steps):
            index, port = port_of(step)
            pairs[index].post_write(bytes([number]) * 600, sport=port, now_us=0.0)
            sent += nic.poll(1000.0 * (number + 1))
        return sent

    with NicTagger(tagger.layout, job_tag, library=library) as nic_tagger:
        if isinstance(tagger, QpPool):
            nic_tagger.preset_pool(qps)

        def by_nic(step: int) -> tuple[int, int]:
            index = tagger.place(job_tag, step).qp_index
            if not isinstance(tagger, QpPool):
                nic_tagger.set_step(qps[index], step)
            return index, mock.sport(qps[index])

        by_the_mock = frames(by_nic)
    by_the_tagger = frames(lambda step: tuple(tagger.place(job_tag, step)))
    assert by_the_mock == by_the_tagger
    assert len(by_the_mock) == 3 * len(steps)
    for number, frame in enumerate(by_the_mock):
        port = tagger.layout.sport(steps[number // 3], job_tag)
        assert frame[34:36] == port.to_bytes(2, "big")
        assert parse(frame).sport == port  # The ICRC, which covers it, is right.


def test_the_mock_keeps_the_rules_of_states_and_logs(
    mock: Mock, built: BuiltTagger, monkeypatch: pytest.MonkeyPatch, tmp_path: object
) -> None:
    qp = mock.qp(RC, rts=False)
    assert mock.modify(qp, RTS) == errno.EINVAL  # RESET to RTS
    assert mock.modify(qp, INIT, 1) == errno.EINVAL  # without attributes
    assert mock.modify(qp, INIT) == 0
    log = f"{tmp_path}/log"
    monkeypatch.setenv("RINGSTEP_MOCK_LOG", log)
    setter = mock.library.mlx5dv_modify_qp_udp_sport
    assert setter(ctypes.c_void_p(qp), ctypes.c_uint16(0xC001)) == errno.EOPNOTSUPP
    with open(log) as file:  # noqa: PTH123
        assert file.read() == (
            f"mlx5dv_modify_qp_udp_sport qp={mock.number(qp):#x} argument=0xc001 "
            f"result={errno.EOPNOTSUPP}\n"
        )
