"""The two-flow rig in real time, on a machine that stalls."""

import os
import signal
import threading
from collections.abc import Iterator

import pytest

from ringstep.lab import rigs
from ringstep.lab.experiment import DemoParams
from ringstep.lab.rigs import UdpRig, udp_rig
from ringstep.lab.scenario import Mode, starts
from ringstep.lab.twoflow import FlowFailed

PARAMS = DemoParams(delays_ms=(50.0,), period_ms=100.0, flow_ms=100.0)
AT = starts(PARAMS.geometry, 50.0, PARAMS.period_ms)


@pytest.fixture
def rig() -> Iterator[UdpRig]:
    with udp_rig(PARAMS.host_params(), PARAMS.link(), PARAMS.job()) as rig:
        yield rig


@pytest.mark.slow
def test_pair_that_a_stalled_switch_held_up_is_run_again(
    rig: UdpRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    # What was sent to it meanwhile waits in its sockets, and comes out when it goes on.
    counters, stalls = rig._control.counters, [rig._patience_us * 1e-6 + 1]

    def counters_then_stall(mode: Mode) -> dict[str, int]:
        counted = counters(mode)
        if stalls:
            os.kill(rig._switch.pid, signal.SIGSTOP)
            threading.Timer(stalls.pop(), os.kill, (rig._switch.pid, signal.SIGCONT)).start()
        return counted

    monkeypatch.setattr(rig._control, "counters", counters_then_stall)
    packets = PARAMS.host_params().packets
    outcome = rig.run(Mode.MARKER, AT, seed=1)
    (reason,) = outcome.given_up
    assert reason.startswith("marker: not done after")
    assert f"flow a: 0 of {packets} packets in order" in reason
    # Nothing of the try before is counted to the one that ended.
    assert outcome.a.packets == packets + outcome.a.retransmissions
    assert outcome.marked["data"] == outcome.a.packets + outcome.b.packets

    after = rig.run(Mode.DCQCN, AT, seed=1)
    assert after.given_up == ()


@pytest.mark.slow
def test_pair_that_never_ends_fails_and_says_how_far_it_came(
    rig: UdpRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(UdpRig, "_patience_us", 300_000.0)
    monkeypatch.setattr(rigs, "_QUIET_US", 10_000.0)
    # A cable that is out: what host b sends gets lost.
    monkeypatch.setattr(rig._loop._ports[1][1], "send", lambda frame: None)
    with pytest.raises(FlowFailed, match=r"3 tries in a row: dcqcn: .* try --wire memory") as error:
        rig.run(Mode.DCQCN, AT, seed=1)
    packets = PARAMS.host_params().packets
    assert str(error.value).count(f"flow a: {packets} of {packets} packets in order") == 3
    assert str(error.value).count(f"flow b: 0 of {packets} packets in order") == 3
