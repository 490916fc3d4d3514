"""Run inside a network namespace of its own: bridges on interfaces, straight and by a switch."""

import subprocess
import sys
import tempfile
import threading
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
sys.path.insert(0, str(Path(__file__).resolve().parents[3] / "p4"))

from committed_program import Bench, host
from stand_in import UNTAGGED, Engine

from ringstep.hostlib.bridge import Bridge, BridgeConfig, attach
from ringstep.softswitch.runtime import Runtime
from ringstep.softswitch.wires import parse_wire

SWITCH_MAC = 0x02000000FF01


def ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True)


def veth(left: str, right: str) -> None:
    ip("link", "add", left, "type", "veth", "peer", "name", right)
    ip("link", "set", left, "up")
    ip("link", "set", right, "up")


def exchange(folder: Path, interfaces: tuple[str, str], **options: object) -> None:
    bridges = []
    threads = []
    for number, interface in enumerate(interfaces, 1):
        mac = 0x020000000B00 + number if options else None
        bridges.append(
            Bridge(
                folder / interface,
                attach(f"packet:{interface}", ip=host(number), mac=mac),
                BridgeConfig(**options),  # type: ignore[arg-type]
                log=print,
            )
        )
        assert bridges[-1].attachment.mtu == 1024
        threads.append(threading.Thread(target=bridges[-1].run))
        threads[-1].start()
    left, right = (Engine(bridge.path) for bridge in bridges)
    ends = left.open(), right.open()
    assert (left.connect(ends[1]), right.connect(ends[0])) == (0, 0)
    for step in (1, 2, UNTAGGED):
        left.send(bytes([step & 255]) * 20_000, step)
        assert right.receive() == (bytes([step & 255]) * 20_000, step)
        right.send(b"ok", step)
        assert left.receive() == (b"ok", step)
    left.close()
    assert right.closed()
    for bridge, thread in zip(bridges, threads, strict=True):
        bridge.stop()
        thread.join()
        bridge.close()


def main() -> None:
    with tempfile.TemporaryDirectory() as name:
        veth("a1", "a2")
        exchange(Path(name), ("a1", "a2"))
        for number in (1, 2):
            veth(f"s{number}", f"h{number}")
        bench = Bench()
        bench.hosts(1, 2)
        runtime = Runtime(bench.switch, {n: parse_wire(f"afpacket:s{n}") for n in (1, 2)})
        thread = threading.Thread(target=runtime.run)
        thread.start()
        try:
            exchange(Path(name), ("h1", "h2"), gateway_mac=SWITCH_MAC, window_bytes=32 << 10)
        finally:
            runtime.stop()
            thread.join()
            runtime.close()
    print("ok")


if __name__ == "__main__":
    main()
