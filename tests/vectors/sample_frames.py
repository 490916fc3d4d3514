"""Sample RoCEv2 frames for tests: any opcode, over IPv4 and IPv6, with and without VLAN."""

from __future__ import annotations

from ipaddress import ip_address

from ringstep.protocol.rocev2 import (
    AETH_OPCODES,
    CNP_PADDING,
    ECT0,
    IMM_OPCODES,
    RETH_OPCODES,
    Aeth,
    Bth,
    Opcode,
    Reth,
    RoceFrame,
)

SRC_MAC = 0x020000000001
DST_MAC = 0x020000000002
V4 = (ip_address("10.0.0.1"), ip_address("10.0.1.2"))
V6 = (ip_address("2001:db8::1"), ip_address("2001:db8:1::2"))


def frame(
    opcode: int = Opcode.RC_WRITE_MIDDLE,
    *,
    v6: bool = False,
    payload: bytes = bytes(range(32)),
    sport: int = 0xC005,
    psn: int = 77,
    dest_qp: int = 0x11,
    **more: object,
) -> RoceFrame:
    """Return a well-formed frame with the headers that ``opcode`` needs."""
    src, dst = V6 if v6 else V4
    empty = (Opcode.RC_ACK, Opcode.RC_READ_REQUEST)
    body = b"" if opcode in empty else CNP_PADDING if opcode == Opcode.CNP else payload
    values: dict[str, object] = {
        "src_mac": SRC_MAC,
        "dst_mac": DST_MAC,
        "src_ip": src,
        "dst_ip": dst,
        "sport": sport,
        "bth": Bth(
            opcode=opcode,
            dest_qp=dest_qp,
            psn=0 if opcode == Opcode.CNP else psn,
            becn=opcode == Opcode.CNP,
            pad=-len(body) % 4,
        ),
        "payload": body,
        "ecn": ECT0,
    }
    if opcode in RETH_OPCODES:
        values["reth"] = Reth(0x1122334455667788, 0xDEADBEEF, 4096)
    if opcode in AETH_OPCODES:
        values["aeth"] = Aeth.ack(9)
    if opcode in IMM_OPCODES:
        values["imm"] = 0xCAFEF00D
    values |= more
    return RoceFrame(**values)  # type: ignore[arg-type]
