"""Ultra Ethernet (UEC 1.0) frames over UDP, as far as a switch looks into them.

Ethernet / [VLAN] / IPv4 or IPv6 / UDP port 4793 / PDS / SES / ... What the marker needs is there
already: the SES header carries the job (JobID, 24 bits) and says where a message ends (EOM), the
PDS header has a PSN and the number of the packet delivery context (PDCID). The step is the source
PDCID: that is a host contract, since a PDCID is the initiator's to choose. It opens a context per
step, in order of steps, with the same Start_PSN on all hosts of the job.

Looked at are RUD and ROD requests (PDS types 2 and 3) that carry a SES request of WRITE, SEND or
TAGGED_SEND. Requests with congestion control state (types 13 and 14), encrypted ones (type 1),
RUDI and UUD, which have no context, and everything else pass untouched.

Sources: Ultra Ethernet Specification 1.0, tables 2-39 (SES common header) and 3-33 (RUD/ROD
request); values cross-checked with the headers of the open xdp2 parser.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Final

from ringstep.protocol.limits import PSN_BITS
from ringstep.protocol.udpip import (
    NOT_ECT,
    UDP_BYTES,
    IpAddress,
    MalformedFrame,
    OtherTraffic,
    encode_ethernet,
    encode_udp,
    find_udp,
)

UEC_UDP_PORT: Final = 4793
PDS_BYTES: Final = 12
SES_BYTES: Final = 12
"""The part of the SES header that all requests have in common."""
JOB_ID_BITS: Final = 24
PDC_BITS: Final = 16
SES_VERSION: Final = 0


class NotUec(OtherTraffic):
    """The frame is whole but no RUD or ROD request over UEC; the text says what it is instead."""


class PdsType(IntEnum):
    """Packet types of the packet delivery sublayer."""

    TSS = 1
    RUD_REQUEST = 2
    ROD_REQUEST = 3
    RUDI_REQUEST = 4
    RUDI_RESPONSE = 5
    UUD_REQUEST = 6
    ACK = 7
    ACK_CC = 8
    ACK_CCX = 9
    NACK = 10
    CONTROL = 11
    NACK_CCX = 12
    RUD_CC_REQUEST = 13
    ROD_CC_REQUEST = 14


class NextHeader(IntEnum):
    """What follows the PDS header."""

    NONE = 0
    REQUEST_SMALL = 1
    REQUEST_MEDIUM = 2
    REQUEST_STANDARD = 3
    RESPONSE = 4
    RESPONSE_DATA = 5
    RESPONSE_DATA_SMALL = 6


class SesOpcode(IntEnum):
    """Opcodes of a SES request."""

    NO_OP = 0x0
    WRITE = 0x1
    READ = 0x2
    ATOMIC = 0x3
    FETCHING_ATOMIC = 0x4
    SEND = 0x5
    RENDEZVOUS_SEND = 0x6
    DATAGRAM_SEND = 0x7
    DEFERRABLE_SEND = 0x8
    TAGGED_SEND = 0x9
    RENDEZVOUS_TAGGED_SEND = 0xA
    DEFERRABLE_TAGGED_SEND = 0xB
    READY_TO_RESTART = 0xC
    TAGGED_SEND_ATOMIC = 0xD
    TAGGED_SEND_FETCHING_ATOMIC = 0xE
    MESSAGE_ERROR = 0xF


REQUEST_TYPES: Final = frozenset({PdsType.RUD_REQUEST, PdsType.ROD_REQUEST})
REQUEST_HEADERS: Final = frozenset(
    {NextHeader.REQUEST_SMALL, NextHeader.REQUEST_MEDIUM, NextHeader.REQUEST_STANDARD}
)
DATA_OPCODES: Final = frozenset({SesOpcode.WRITE, SesOpcode.SEND, SesOpcode.TAGGED_SEND})
"""What the marker counts."""

_PDS: Final = struct.Struct("!HHIHH")
_SES: Final = struct.Struct("!BBHIHH")
_PID_BITS: Final = 12


@dataclass(slots=True)
class Pds:
    """Header of a RUD or ROD request, 12 bytes."""

    psn: int
    """32 bits; starts anywhere, wraps."""
    spdcid: int
    """Source PDCID, 16 bits: the step."""
    dpdcid: int = 0
    """Destination PDCID; with ``syn`` {pdc_info, psn_offset} instead."""
    type: int = PdsType.RUD_REQUEST
    next_header: int = NextHeader.REQUEST_STANDARD
    retransmit: bool = False
    ack_request: bool = False
    syn: bool = False
    clear_psn_offset: int = 0

    def encode(self) -> bytes:
        """Return the 12 bytes of the header."""
        flags = self.retransmit << 4 | self.ack_request << 3 | self.syn << 2
        return _PDS.pack(
            self.type << 11 | self.next_header << 7 | flags,
            self.clear_psn_offset,
            self.psn,
            self.spdcid,
            self.dpdcid,
        )

    @classmethod
    def decode(cls, data: bytes, offset: int = 0) -> Pds:
        """Read a header at ``offset``; reserved bits are dropped."""
        first, clear, psn, spdcid, dpdcid = _PDS.unpack_from(data, offset)
        return cls(
            psn=psn,
            spdcid=spdcid,
            dpdcid=dpdcid,
            type=first >> 11,
            next_header=first >> 7 & 15,
            retransmit=bool(first >> 4 & 1),
            ack_request=bool(first >> 3 & 1),
            syn=bool(first >> 2 & 1),
            clear_psn_offset=clear,
        )


@dataclass(slots=True)
class Ses:
    """What all SES requests begin with, 12 bytes."""

    job_id: int
    """24 bits."""
    opcode: int = SesOpcode.WRITE
    version: int = SES_VERSION
    delivery_complete: bool = False
    initiator_error: bool = False
    relative_addressing: bool = False
    header_data_present: bool = False
    end_of_message: bool = False
    start_of_message: bool = False
    message_id: int = 0
    ri_generation: int = 0
    pid_on_fep: int = 0
    resource_index: int = 0

    def encode(self) -> bytes:
        """Return the 12 bytes of the header."""
        flags = (
            self.version << 6
            | self.delivery_complete << 5
            | self.initiator_error << 4
            | self.relative_addressing << 3
            | self.header_data_present << 2
            | self.end_of_message << 1
            | self.start_of_message
        )
        return _SES.pack(
            self.opcode,
            flags,
            self.message_id,
            self.ri_generation << JOB_ID_BITS | self.job_id,
            self.pid_on_fep,
            self.resource_index,
        )

    @classmethod
    def decode(cls, data: bytes, offset: int = 0) -> Ses:
        """Read a header at ``offset``; reserved bits are dropped."""
        opcode, flags, message_id, job, pid, index = _SES.unpack_from(data, offset)
        low = (1 << _PID_BITS) - 1
        return cls(
            job_id=job & (1 << JOB_ID_BITS) - 1,
            opcode=opcode & 0x3F,
            version=flags >> 6,
            delivery_complete=bool(flags >> 5 & 1),
            initiator_error=bool(flags >> 4 & 1),
            relative_addressing=bool(flags >> 3 & 1),
            header_data_present=bool(flags >> 2 & 1),
            end_of_message=bool(flags >> 1 & 1),
            start_of_message=bool(flags & 1),
            message_id=message_id,
            ri_generation=job >> JOB_ID_BITS,
            pid_on_fep=pid & low,
            resource_index=index & low,
        )


@dataclass(slots=True)
class UecFrame:
    """One UEC frame, field by field. MAC addresses are 48-bit integers."""

    src_mac: int
    dst_mac: int
    src_ip: IpAddress
    dst_ip: IpAddress
    sport: int
    """UDP source port: entropy for ECMP, no more."""
    pds: Pds
    ses: Ses
    body: bytes = b""
    """The rest of the SES header, the payload, the CRC: what no switch looks at."""
    ecn: int = NOT_ECT
    dscp: int = 0
    ttl: int = 64
    vlan: int | None = None
    """The 16 bits of the 802.1Q tag control information, or None for an untagged frame."""
    flow_label: int = 0
    ident: int = 0
    extra: bytes = field(default=b"", repr=False)
    """Trailer after the IP packet (Ethernet padding of short frames)."""


@dataclass(frozen=True, slots=True)
class UecTag:
    """What the marker takes from a frame."""

    job_id: int
    """The job's number on the wire; a table of the switch gives the Job_ID for it."""
    pdc: int
    """The source PDCID, of which the step is the low S bits."""
    psn: int
    """The low 24 bits of the PSN."""
    last: bool


def tag_of(frame: UecFrame) -> UecTag | None:
    """Return what the marker takes from a frame, or None where it does not look at it."""
    if (
        frame.pds.type not in REQUEST_TYPES
        or frame.pds.next_header not in REQUEST_HEADERS
        or frame.ses.opcode not in DATA_OPCODES
        or frame.ses.version != SES_VERSION
    ):
        return None
    psn = frame.pds.psn & (1 << PSN_BITS) - 1
    return UecTag(frame.ses.job_id, frame.pds.spdcid, psn, frame.ses.end_of_message)


def build(frame: UecFrame) -> bytes:
    """Return the whole Ethernet frame, with the IPv4 checksum.

    Raises:
        ValueError: the two addresses are of different families.
    """
    if frame.src_ip.version != frame.dst_ip.version:
        raise ValueError(f"{frame.src_ip} and {frame.dst_ip} are of different IP versions")
    body = frame.pds.encode() + frame.ses.encode() + frame.body
    version, headers = encode_udp(frame, UEC_UDP_PORT, len(body))
    return encode_ethernet(frame, version) + headers + body + frame.extra


def parse(data: bytes) -> UecFrame:
    """Take apart a frame that has a PDS request header and a SES header.

    Raises:
        NotUec: whole, but something else: another EtherType, protocol or port, a fragment, options,
            a PDS type that is no RUD or ROD request, no SES request behind it.
        MalformedFrame: short, lengths that contradict one another, a bad checksum.
    """
    try:
        udp = find_udp(data, UEC_UDP_PORT)
    except OtherTraffic as error:
        raise NotUec(str(error)) from None
    room = udp.end - udp.start
    if room < PDS_BYTES:
        raise MalformedFrame(f"UDP length {UDP_BYTES + room} leaves no room for a PDS header")
    pds = Pds.decode(data, udp.start)
    if pds.type not in REQUEST_TYPES:
        raise NotUec(f"PDS type {pds.type} is no RUD or ROD request")
    if pds.next_header not in REQUEST_HEADERS:
        raise NotUec(f"PDS next header {pds.next_header} is no SES request")
    if room < PDS_BYTES + SES_BYTES:
        raise MalformedFrame(f"UDP length {UDP_BYTES + room} leaves no room for a SES header")
    return UecFrame(
        src_mac=int.from_bytes(data[6:12], "big"),
        dst_mac=int.from_bytes(data[0:6], "big"),
        src_ip=udp.ip.src,
        dst_ip=udp.ip.dst,
        sport=udp.sport,
        pds=pds,
        ses=Ses.decode(data, udp.start + PDS_BYTES),
        body=bytes(data[udp.start + PDS_BYTES + SES_BYTES : udp.end]),
        ecn=udp.ip.tos & 3,
        dscp=udp.ip.tos >> 2,
        ttl=udp.ip.ttl,
        vlan=udp.vlan,
        flow_label=udp.ip.flow_label,
        ident=udp.ip.ident,
        extra=bytes(data[udp.end :]),
    )
