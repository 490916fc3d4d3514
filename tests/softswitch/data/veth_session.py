"""Run inside a network namespace of its own: two hosts on veth pairs behind the software switch."""

import subprocess
import sys
import threading
from ipaddress import ip_address
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "p4"))

from committed_program import Bench, host

from ringstep.hostlib import AfPacketWire, HostLoop, SoftRnic, Status
from ringstep.protocol.rocev2 import Bth, Opcode, RoceFrame, build, parse
from ringstep.softswitch.runtime import Runtime
from ringstep.softswitch.wires import parse_wire

SWITCH_MAC = 0x02000000FF01


def main() -> None:
    for number in (1, 2):
        pair = ["type", "veth", "peer", "name", f"h{number}"]
        subprocess.run(["ip", "link", "add", f"s{number}", *pair], check=True)
        for end in ("s", "h"):
            subprocess.run(["ip", "link", "set", f"{end}{number}", "up"], check=True)
    bench = Bench()
    bench.hosts(1, 2)
    runtime = Runtime(bench.switch, {n: parse_wire(f"afpacket:s{n}") for n in (1, 2)})
    thread = threading.Thread(target=runtime.run)
    thread.start()
    try:
        write_through_the_switch()
        vlan_tag_survives()
    finally:
        runtime.stop()
        thread.join()
        runtime.close()
    print("ok")


def write_through_the_switch() -> None:
    nics = {
        number: SoftRnic(0x020000000B00 + number, host(number), SWITCH_MAC, 50e6)
        for number in (1, 2)
    }
    qps = {
        number: nics[number].create_qp(17, host(3 - number), 17, retry_limit=1000)
        for number in (1, 2)
    }
    with HostLoop([(nics[n], AfPacketWire(f"h{n}")) for n in (1, 2)]) as loop:
        request = qps[1].post_write(100_000, step=3, now_us=loop.now_us)
        assert loop.run(lambda: request.done, deadline_us=loop.now_us + 20e6), nics[2].stats
    assert request.status is Status.OK
    (arrival,) = nics[2].poll_arrivals()
    assert (arrival.nbytes, arrival.step) == (100_000, 3)


def vlan_tag_survives() -> None:
    frame = RoceFrame(
        1, SWITCH_MAC, ip_address("10.9.9.9"), host(2), 0xC000,
        Bth(Opcode.RC_WRITE_MIDDLE, 17, 5), b"data", vlan=0x2064,
    )  # fmt: skip
    sender, receiver = parse_wire("afpacket:h1"), parse_wire("afpacket:h2")
    sender.send(build(frame), 0)
    for _ in range(2000):
        for got in receiver.receive(0):
            if len(got) > 60 and got[12:14] == b"\x81\x00":
                assert parse(got).vlan == 0x2064
                assert parse(got).payload == b"data"
                return
        threading.Event().wait(0.01)
    raise AssertionError("the tagged frame did not arrive")


if __name__ == "__main__":
    main()
