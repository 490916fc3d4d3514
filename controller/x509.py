"""The few facts of an X.509 certificate that an operator must know (RFC 5280, section 4.1).

The standard library tells them only of certificates that the other side of a connection showed.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final

_VERSION: Final = 0xA0
_EXTENSIONS: Final = 0xA3
_UTC_TIME: Final = 0x17
_COMMON_NAME: Final = bytes.fromhex("550403")
_ALT_NAMES: Final = bytes.fromhex("551d11")
_DNS: Final = 0x82
_IP: Final = 0x87


@dataclass(frozen=True, slots=True)
class CertificateFacts:
    """What a certificate says. ``names``: the DNS names and addresses that it is good for."""

    subject: str
    issuer: str
    names: tuple[str, ...]
    not_before: datetime
    not_after: datetime


def read_certificate(der: bytes) -> CertificateFacts:
    """Return what a certificate in DER says.

    Raises:
        ValueError: it is not an X.509 certificate.
    """
    try:
        ((_, certificate),) = _elements(der)
        (_, tbs), *_ = _elements(certificate)
        fields = list(_elements(tbs))
        if fields[0][0] == _VERSION:
            del fields[0]
        _serial, _signature, issuer, validity, subject, _key, *rest = fields
        not_before, not_after = (_time(tag, value) for tag, value in _elements(validity[1]))
        return CertificateFacts(
            _common_name(subject[1]),
            _common_name(issuer[1]),
            tuple(_alt_names(rest)),
            not_before,
            not_after,
        )
    except (ValueError, IndexError, OverflowError):
        raise ValueError("not an X.509 certificate") from None


def _elements(data: bytes) -> Iterator[tuple[int, bytes]]:
    """Yield (tag, content) of the DER elements that stand one after another."""
    at = 0
    while at < len(data):
        tag, length, at = data[at], data[at + 1], at + 2
        if length & 0x80:
            size = length & 0x7F
            length, at = int.from_bytes(data[at : at + size], "big"), at + size
        if at + length > len(data):
            raise ValueError("cut off")
        yield tag, data[at : at + length]
        at += length


def _time(tag: int, value: bytes) -> datetime:
    text = value.decode("ascii")
    if tag == _UTC_TIME:
        # RFC 5280: two digits of the year, from 1950 to 2049.
        text = ("19" if text[:2] >= "50" else "20") + text
    return datetime.strptime(text, "%Y%m%d%H%M%SZ").replace(tzinfo=UTC)


def _common_name(name: bytes) -> str:
    for _, names in _elements(name):
        for _, attribute in _elements(names):
            (_, kind), (_, value) = _elements(attribute)
            if kind == _COMMON_NAME:
                return value.decode("utf-8", "replace")
    return ""


def _alt_names(rest: list[tuple[int, bytes]]) -> Iterator[str]:
    for tag, value in rest:
        if tag != _EXTENSIONS:
            continue
        ((_, extensions),) = _elements(value)
        for _, extension in _elements(extensions):
            (_, kind), *_, (_, content) = _elements(extension)
            if kind == _ALT_NAMES:
                ((_, names),) = _elements(content)
                for form, name in _elements(names):
                    if form == _DNS:
                        yield name.decode("ascii", "replace")
                    elif form == _IP:
                        yield str(ipaddress.ip_address(name))
