#!/usr/bin/env python3
"""Two hosts that send each other steps of a ring through the switch, over UDP loopback wires.

Usage: python ring.py [--steps N] [--packets N]

Port 1 of the switch must be bound to 127.0.0.1:5001 towards 6001, port 2 to 5002 towards 6002.
"""

from __future__ import annotations

import argparse

from ringstep.hostlib import HostLoop, SoftRnic, UdpWire, WorkRequest, preset

RATE_BPS = 50e6
SWITCH_MAC = 0x02000000FF01
HOSTS = {
    "h1": ("10.0.0.1", 0x020000000001, 6001, 5001),
    "h2": ("10.0.0.2", 0x020000000002, 6002, 5002),
}
QPN = 0x11
MTU = 1024


def main() -> None:
    """Send every step in both directions and say how long it took."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=6)
    parser.add_argument("--packets", type=int, default=200, help="packets per step")
    args = parser.parse_args()

    dcqcn = preset("connectx", 10e9).scaled(10, RATE_BPS / 10e9)
    ports, qps = [], []
    for name, peer in (("h1", "h2"), ("h2", "h1")):
        ip, mac, own_port, switch_port = HOSTS[name]
        nic = SoftRnic(mac, ip, SWITCH_MAC, RATE_BPS)
        ports.append((nic, UdpWire(("127.0.0.1", own_port), ("127.0.0.1", switch_port))))
        # On a busy machine these wires stall for longer than a NIC's seven retries take.
        qps.append(nic.create_qp(QPN, HOSTS[peer][0], QPN, dcqcn, retry_limit=64))

    with HostLoop(ports) as loop:
        for step in range(args.steps):
            begin = loop.now_us
            requests = [qp.post_write(args.packets * MTU, step=step, now_us=begin) for qp in qps]

            def arrived(step_requests: list[WorkRequest] = requests) -> bool:
                return all(request.done for request in step_requests)

            if not loop.run(arrived, deadline_us=begin + 20e6):
                raise SystemExit(f"step {step} did not finish; is the switch programmed?")
            print(f"step {step}: {(loop.now_us - begin) / 1e3:.1f} ms, {requests[0].status}")


if __name__ == "__main__":
    main()
