"""RoCEv2 frames: Ethernet / [VLAN] / IPv4 or IPv6 / UDP / BTH / ... / ICRC.

``build`` and ``parse`` are exact inverses on well-formed frames. ``parse`` trusts nothing: whatever
is short, inconsistent or not understood raises and names the reason.

Sources: IBTA Architecture Specification Vol. 1, chapter 9 (BTH, RETH, AETH, opcodes) and Annex A17
(RoCEv2); RFC 791, RFC 8200, RFC 768, IEEE 802.1Q.
"""

from __future__ import annotations

import struct
import zlib
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Final

from ringstep.protocol.icrc import ICRC_BYTES as ICRC_BYTES
from ringstep.protocol.icrc import LRH_CRC, icrc, masked_headers
from ringstep.protocol.limits import ROCE_UDP_PORT
from ringstep.protocol.udpip import CE as CE
from ringstep.protocol.udpip import ECT0 as ECT0
from ringstep.protocol.udpip import ECT1 as ECT1
from ringstep.protocol.udpip import ETHERNET_BYTES as ETHERNET_BYTES
from ringstep.protocol.udpip import ETHERTYPE_IPV4 as ETHERTYPE_IPV4
from ringstep.protocol.udpip import ETHERTYPE_IPV6 as ETHERTYPE_IPV6
from ringstep.protocol.udpip import ETHERTYPE_VLAN as ETHERTYPE_VLAN
from ringstep.protocol.udpip import IPPROTO_UDP as IPPROTO_UDP
from ringstep.protocol.udpip import IPV4_BYTES as IPV4_BYTES
from ringstep.protocol.udpip import IPV6_BYTES as IPV6_BYTES
from ringstep.protocol.udpip import NOT_ECT as NOT_ECT
from ringstep.protocol.udpip import UDP_BYTES as UDP_BYTES
from ringstep.protocol.udpip import VLAN_BYTES as VLAN_BYTES
from ringstep.protocol.udpip import IpAddress as IpAddress
from ringstep.protocol.udpip import MalformedFrame as MalformedFrame
from ringstep.protocol.udpip import OtherTraffic, encode_ethernet, encode_udp, find_udp
from ringstep.protocol.udpip import ipv4_checksum as ipv4_checksum

BTH_BYTES: Final = 12
RETH_BYTES: Final = 16
AETH_BYTES: Final = 4
IMM_BYTES: Final = 4
CNP_PADDING: Final = bytes(16)
DEFAULT_PKEY: Final = 0xFFFF


class NotRoce(OtherTraffic):
    """The frame is whole but is not RoCEv2; the text says what it is instead."""


class Opcode(IntEnum):
    """BTH opcodes: transport (RC 0x00, UC 0x20) plus operation; CNP stands alone."""

    RC_SEND_FIRST = 0x00
    RC_SEND_MIDDLE = 0x01
    RC_SEND_LAST = 0x02
    RC_SEND_LAST_IMM = 0x03
    RC_SEND_ONLY = 0x04
    RC_SEND_ONLY_IMM = 0x05
    RC_WRITE_FIRST = 0x06
    RC_WRITE_MIDDLE = 0x07
    RC_WRITE_LAST = 0x08
    RC_WRITE_LAST_IMM = 0x09
    RC_WRITE_ONLY = 0x0A
    RC_WRITE_ONLY_IMM = 0x0B
    RC_READ_REQUEST = 0x0C
    RC_READ_RESPONSE_FIRST = 0x0D
    RC_READ_RESPONSE_MIDDLE = 0x0E
    RC_READ_RESPONSE_LAST = 0x0F
    RC_READ_RESPONSE_ONLY = 0x10
    RC_ACK = 0x11
    UC_SEND_FIRST = 0x20
    UC_SEND_MIDDLE = 0x21
    UC_SEND_LAST = 0x22
    UC_SEND_LAST_IMM = 0x23
    UC_SEND_ONLY = 0x24
    UC_SEND_ONLY_IMM = 0x25
    UC_WRITE_FIRST = 0x26
    UC_WRITE_MIDDLE = 0x27
    UC_WRITE_LAST = 0x28
    UC_WRITE_LAST_IMM = 0x29
    UC_WRITE_ONLY = 0x2A
    UC_WRITE_ONLY_IMM = 0x2B
    CNP = 0x81


_UC: Final = 0x20
_RC_DATA: Final = frozenset(range(Opcode.RC_SEND_FIRST, Opcode.RC_WRITE_ONLY_IMM + 1))
_RC_LAST: Final = frozenset(
    {
        Opcode.RC_SEND_LAST,
        Opcode.RC_SEND_LAST_IMM,
        Opcode.RC_SEND_ONLY,
        Opcode.RC_SEND_ONLY_IMM,
        Opcode.RC_WRITE_LAST,
        Opcode.RC_WRITE_LAST_IMM,
        Opcode.RC_WRITE_ONLY,
        Opcode.RC_WRITE_ONLY_IMM,
    }
)


def _with_uc(rc: frozenset[int]) -> frozenset[int]:
    return rc | frozenset(op + _UC for op in rc)


DATA_OPCODES: Final = _with_uc(_RC_DATA)
"""What the marker counts: SEND and WRITE over RC and UC."""
LAST_OPCODES: Final = _with_uc(_RC_LAST)
"""LAST and ONLY, with and without immediate: the end of a message."""
RETH_OPCODES: Final = frozenset(
    {
        Opcode.RC_WRITE_FIRST,
        Opcode.RC_WRITE_ONLY,
        Opcode.RC_WRITE_ONLY_IMM,
        Opcode.RC_READ_REQUEST,
        Opcode.UC_WRITE_FIRST,
        Opcode.UC_WRITE_ONLY,
        Opcode.UC_WRITE_ONLY_IMM,
    }
)
IMM_OPCODES: Final = _with_uc(
    frozenset(
        {
            Opcode.RC_SEND_LAST_IMM,
            Opcode.RC_SEND_ONLY_IMM,
            Opcode.RC_WRITE_LAST_IMM,
            Opcode.RC_WRITE_ONLY_IMM,
        }
    )
)
AETH_OPCODES: Final = frozenset(
    {
        Opcode.RC_READ_RESPONSE_FIRST,
        Opcode.RC_READ_RESPONSE_LAST,
        Opcode.RC_READ_RESPONSE_ONLY,
        Opcode.RC_ACK,
    }
)


def is_data(opcode: int) -> bool:
    """Say whether the opcode is an RC or UC SEND or WRITE."""
    return opcode in DATA_OPCODES


def is_last(opcode: int) -> bool:
    """Say whether the opcode ends a message: LAST or ONLY, with or without immediate."""
    return opcode in LAST_OPCODES


@dataclass(slots=True)
class Bth:
    """Base transport header, 12 bytes."""

    opcode: int
    dest_qp: int
    psn: int
    ack_req: bool = False
    solicited: bool = False
    migreq: bool = True
    pad: int = 0
    tver: int = 0
    pkey: int = DEFAULT_PKEY
    fecn: bool = False
    becn: bool = False
    resv6a: int = 0
    resv7: int = 0

    def encode(self) -> bytes:
        """Return the 12 bytes of the header."""
        return _BTH.pack(
            self.opcode,
            self.solicited << 7 | self.migreq << 6 | self.pad << 4 | self.tver,
            self.pkey,
            (self.fecn << 7 | self.becn << 6 | self.resv6a) << 24 | self.dest_qp,
            (self.ack_req << 7 | self.resv7) << 24 | self.psn,
        )

    @classmethod
    def decode(cls, data: bytes, offset: int = 0) -> Bth:
        """Read a header at ``offset``."""
        opcode, flags, pkey, qp_word, psn_word = _BTH.unpack_from(data, offset)
        return cls(
            opcode=opcode,
            dest_qp=qp_word & 0xFFFFFF,
            psn=psn_word & 0xFFFFFF,
            ack_req=bool(psn_word >> 31),
            solicited=bool(flags >> 7),
            migreq=bool(flags >> 6 & 1),
            pad=flags >> 4 & 3,
            tver=flags & 15,
            pkey=pkey,
            fecn=bool(qp_word >> 31),
            becn=bool(qp_word >> 30 & 1),
            resv6a=qp_word >> 24 & 0x3F,
            resv7=psn_word >> 24 & 0x7F,
        )


_BTH: Final = struct.Struct("!BBHII")
_RETH: Final = struct.Struct("!QII")
_AETH: Final = struct.Struct("!I")


@dataclass(slots=True)
class Reth:
    """RDMA extended transport header, 16 bytes: where a WRITE goes and how long it is."""

    va: int
    rkey: int
    dma_len: int


_AETH_ACK: Final = 0b000
_AETH_RNR_NAK: Final = 0b001
_AETH_NAK: Final = 0b011
_NAK_PSN_SEQUENCE_ERROR: Final = 0
_UNLIMITED_CREDITS: Final = 0x1F


@dataclass(slots=True)
class Aeth:
    """ACK extended transport header, 4 bytes: syndrome (8 bits) and MSN (24 bits)."""

    syndrome: int
    msn: int

    @classmethod
    def ack(cls, msn: int) -> Aeth:
        """Return a positive acknowledge without credit limit."""
        return cls(_AETH_ACK << 5 | _UNLIMITED_CREDITS, msn)

    @classmethod
    def nak_sequence_error(cls, msn: int) -> Aeth:
        """Return a NAK with code 0: a PSN was missed; BTH.PSN tells which is expected."""
        return cls(_AETH_NAK << 5 | _NAK_PSN_SEQUENCE_ERROR, msn)

    @classmethod
    def rnr(cls, msn: int, timer: int) -> Aeth:
        """Return a receiver-not-ready NAK with its 5-bit timer code."""
        return cls(_AETH_RNR_NAK << 5 | timer, msn)

    @property
    def is_ack(self) -> bool:
        """Positive acknowledge."""
        return self.syndrome >> 5 & 3 == _AETH_ACK

    @property
    def is_rnr(self) -> bool:
        """Receiver not ready."""
        return self.syndrome >> 5 & 3 == _AETH_RNR_NAK

    @property
    def is_nak(self) -> bool:
        """Negative acknowledge, RNR apart."""
        return self.syndrome >> 5 & 3 == _AETH_NAK


@dataclass(slots=True)
class RoceFrame:
    """One RoCEv2 frame, field by field. MAC addresses are 48-bit integers."""

    src_mac: int
    dst_mac: int
    src_ip: IpAddress
    dst_ip: IpAddress
    sport: int
    bth: Bth
    payload: bytes = b""
    reth: Reth | None = None
    aeth: Aeth | None = None
    imm: int | None = None
    ecn: int = NOT_ECT
    dscp: int = 0
    ttl: int = 64
    vlan: int | None = None
    """The 16 bits of the 802.1Q tag control information, or None for an untagged frame."""
    flow_label: int = 0
    ident: int = 0
    extra: bytes = field(default=b"", repr=False)
    """Trailer after the IP packet (Ethernet padding of short frames)."""


def build(frame: RoceFrame) -> bytes:
    """Return the whole Ethernet frame, with checksums and ICRC.

    The UDP checksum is 0, as RoCEv2 NICs send it (RFC 6935 allows it over IPv6 for tunnels).

    Raises:
        ValueError: a header that the opcode needs is missing or one it forbids is there, the two
            addresses are of different families, or BTH.pad does not fit the payload.
    """
    bth = frame.bth
    _check_headers(frame)
    body = bytearray(bth.encode())
    if frame.reth is not None:
        body += _RETH.pack(frame.reth.va, frame.reth.rkey, frame.reth.dma_len)
    if frame.aeth is not None:
        body += _AETH.pack(frame.aeth.syndrome << 24 | frame.aeth.msn)
    if frame.imm is not None:
        body += frame.imm.to_bytes(IMM_BYTES, "big")
    body += frame.payload
    body += bytes(bth.pad)
    version, headers = encode_udp(frame, ROCE_UDP_PORT, len(body) + ICRC_BYTES)
    packet = headers + body
    packet += icrc(packet, version).to_bytes(ICRC_BYTES, "little")
    return encode_ethernet(frame, version) + packet + frame.extra


def _check_headers(frame: RoceFrame) -> None:
    opcode = frame.bth.opcode
    wanted = {
        "reth": opcode in RETH_OPCODES,
        "aeth": opcode in AETH_OPCODES,
        "imm": opcode in IMM_OPCODES,
    }
    for name, needed in wanted.items():
        if needed != (getattr(frame, name) is not None):
            verb = "needs" if needed else "does not carry"
            raise ValueError(f"opcode 0x{opcode:02X} {verb} {name.upper()}")
    if frame.src_ip.version != frame.dst_ip.version:
        raise ValueError(f"{frame.src_ip} and {frame.dst_ip} are of different IP versions")
    if opcode in DATA_OPCODES and (len(frame.payload) + frame.bth.pad) % 4:
        raise ValueError(
            f"payload of {len(frame.payload)} bytes needs BTH.pad {-len(frame.payload) % 4}, "
            f"not {frame.bth.pad}"
        )


def parse(data: bytes, check_icrc: bool = True) -> RoceFrame:
    """Take a frame apart.

    Args:
        data: the Ethernet frame without FCS.
        check_icrc: verify the ICRC, as a host must. A switch cannot and does not.

    Raises:
        NotRoce: whole, but something else: another EtherType or protocol, a fragment, IPv4
            options, IPv6 extension headers, another UDP port.
        MalformedFrame: short, lengths that contradict one another, a bad checksum, a bad ICRC.
    """
    try:
        udp = find_udp(data, ROCE_UDP_PORT)
    except OtherTraffic as error:
        raise NotRoce(str(error)) from None
    ip, end = udp.ip, udp.end
    if end - udp.start < BTH_BYTES + ICRC_BYTES:
        raise MalformedFrame(
            f"UDP length {UDP_BYTES + end - udp.start} leaves no room for BTH and ICRC"
        )
    body_end = end - ICRC_BYTES
    if check_icrc:
        found = int.from_bytes(data[body_end:end], "little")
        right = icrc(data[udp.l3 : body_end], ip.version)
        if found != right:
            raise MalformedFrame(f"ICRC 0x{found:08X} is wrong, 0x{right:08X} would be right")
    bth = Bth.decode(data, udp.start)
    at = udp.start + BTH_BYTES
    reth = aeth = imm = None
    if bth.opcode in RETH_OPCODES:
        _need(at + RETH_BYTES <= body_end, "RETH", bth.opcode)
        reth = Reth(*_RETH.unpack_from(data, at))
        at += RETH_BYTES
    if bth.opcode in AETH_OPCODES:
        _need(at + AETH_BYTES <= body_end, "AETH", bth.opcode)
        (word,) = _AETH.unpack_from(data, at)
        aeth = Aeth(word >> 24, word & 0xFFFFFF)
        at += AETH_BYTES
    if bth.opcode in IMM_OPCODES:
        _need(at + IMM_BYTES <= body_end, "ImmDt", bth.opcode)
        imm = int.from_bytes(data[at : at + IMM_BYTES], "big")
        at += IMM_BYTES
    _need(at + bth.pad <= body_end, f"{bth.pad} bytes of padding", bth.opcode)
    return RoceFrame(
        src_mac=int.from_bytes(data[6:12], "big"),
        dst_mac=int.from_bytes(data[0:6], "big"),
        src_ip=ip.src,
        dst_ip=ip.dst,
        sport=udp.sport,
        bth=bth,
        payload=bytes(data[at : body_end - bth.pad]),
        reth=reth,
        aeth=aeth,
        imm=imm,
        ecn=ip.tos & 3,
        dscp=ip.tos >> 2,
        ttl=ip.ttl,
        vlan=udp.vlan,
        flow_label=ip.flow_label,
        ident=ip.ident,
        extra=bytes(data[end:]),
    )


def _need(there: bool, what: str, opcode: int) -> None:
    if not there:
        raise MalformedFrame(f"opcode 0x{opcode:02X} needs {what}, the frame ends before it")


def cnp(
    *,
    src_mac: int,
    dst_mac: int,
    src_ip: IpAddress,
    dst_ip: IpAddress,
    sport: int,
    dest_qp: int,
    dscp: int = 0,
) -> RoceFrame:
    """Return a congestion notification packet for the QP ``dest_qp`` (Annex A17.9.3).

    BECN is set, the PSN is 0, 16 reserved bytes follow, and the packet is not ECN-capable.
    """
    return RoceFrame(
        src_mac=src_mac,
        dst_mac=dst_mac,
        src_ip=src_ip,
        dst_ip=dst_ip,
        sport=sport,
        bth=Bth(opcode=Opcode.CNP, dest_qp=dest_qp, psn=0, becn=True, migreq=False),
        payload=CNP_PADDING,
        ecn=NOT_ECT,
        dscp=dscp,
    )


class FrameTemplate:
    """Renders many frames that differ only in PSN, opcode, AckReq and body: the sender's fast path.

    All frames of a template have the same body length, so IP and UDP headers are computed once.
    A render costs one CRC over the body and a few struct packs.
    """

    __slots__ = (
        "_body_bytes",
        "_bth",
        "_flags",
        "_head",
        "_icrc_head",
        "_pkey",
        "_qp_word",
        "_resv7",
        "size",
    )

    def __init__(self, frame: RoceFrame) -> None:
        """Fix everything but PSN, opcode, AckReq and body from a valid ``frame``."""
        whole = build(frame)
        l3 = ETHERNET_BYTES + (VLAN_BYTES if frame.vlan is not None else 0)
        ip_bytes = IPV4_BYTES if frame.src_ip.version == 4 else IPV6_BYTES
        bth_at = l3 + ip_bytes + UDP_BYTES
        self._head = whole[:bth_at]
        masked = masked_headers(whole[l3:], frame.src_ip.version)
        self._icrc_head = zlib.crc32(masked, LRH_CRC)
        bth = frame.bth
        self._flags = bth.solicited << 7 | bth.migreq << 6 | bth.pad << 4 | bth.tver
        self._pkey = bth.pkey
        self._qp_word = (bth.fecn << 7 | bth.becn << 6 | bth.resv6a) << 24 | bth.dest_qp
        self._resv7 = bth.resv7 << 24
        self._bth = _BTH.pack
        end = len(whole) - ICRC_BYTES - len(frame.extra)
        self._body_bytes = end - bth_at - BTH_BYTES
        self.size = end + ICRC_BYTES
        """Length of every rendered frame in bytes, without FCS."""

    def render(self, psn: int, opcode: int, body: bytes, ack_req: bool = False) -> bytes:
        """Return a frame; ``body`` is all between BTH and ICRC: RETH, AETH, ImmDt, payload, pad.

        Raises:
            ValueError: ``body`` has another length than the template's.
        """
        if len(body) != self._body_bytes:
            raise ValueError(f"body of {len(body)} bytes in a template of {self._body_bytes}")
        qp_word = self._qp_word
        psn_word = psn | self._resv7 | (0x80000000 if ack_req else 0)
        bth = self._bth(opcode, self._flags, self._pkey, qp_word, psn_word)
        masked = self._bth(opcode, self._flags, self._pkey, qp_word | 0xFF000000, psn_word)
        crc = zlib.crc32(body, zlib.crc32(masked, self._icrc_head))
        return b"".join((self._head, bth, body, crc.to_bytes(ICRC_BYTES, "little")))


def encode_reth(reth: Reth) -> bytes:
    """Return the 16 bytes of a RETH, for ``FrameTemplate.render`` bodies."""
    return _RETH.pack(reth.va, reth.rkey, reth.dma_len)


def encode_aeth(aeth: Aeth) -> bytes:
    """Return the 4 bytes of an AETH, for ``FrameTemplate.render`` bodies."""
    return _AETH.pack(aeth.syndrome << 24 | aeth.msn)
