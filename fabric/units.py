"""Rates, delays, sizes and MAC addresses as people write them."""

from __future__ import annotations

import re
from decimal import Decimal

_RATE = re.compile(r"^\s*(\d+(?:\.\d+)?)\s*([kKMGT]?)\s*(?:bps|bit/s|b/s)?\s*$")
_DELAY = re.compile(r"^\s*(\d+(?:\.\d+)?)\s*(ns|us|µs|ms|s)\s*$")
_SIZE = re.compile(r"^\s*(\d+(?:\.\d+)?)\s*([kKMGT]i?B|B)\s*$")
_RATE_FACTOR = {"": 1, "k": 10**3, "K": 10**3, "M": 10**6, "G": 10**9, "T": 10**12}
_DELAY_FACTOR_NS = {"ns": 1, "us": 10**3, "µs": 10**3, "ms": 10**6, "s": 10**9}
_SIZE_FACTOR = {"B": 1, "kB": 1000, "kiB": 1024}
for _power, _letter in enumerate("KMGT", start=1):
    _SIZE_FACTOR[f"{_letter}B"] = 1000**_power
    _SIZE_FACTOR[f"{_letter}iB"] = 1024**_power
_MAC = re.compile(r"^[0-9A-Fa-f]{2}(?:[:-][0-9A-Fa-f]{2}){5}$")


def parse_rate_bps(value: object) -> int:
    """Return a link rate in bit/s from ``"10G"``, ``"400 Mbps"`` or a number of bit/s.

    Raises:
        ValueError: not a rate, or not above zero.
    """
    if isinstance(value, int) and not isinstance(value, bool):
        rate = value
    else:
        match = _RATE.match(value) if isinstance(value, str) else None
        if match is None:
            raise ValueError(
                f'{value!r} is not a rate; write a number with k, M, G or T, such as "10G" '
                'or "40M", or a whole number of bit/s'
            )
        rate = int(Decimal(match.group(1)) * _RATE_FACTOR[match.group(2)])
    if rate <= 0:
        raise ValueError(f'{value!r} is not above zero; a link needs a rate, such as "10G"')
    return rate


def parse_delay_ns(value: object) -> int:
    """Return a propagation delay in nanoseconds from ``"1us"``, ``"500ns"`` or a number of ns.

    Raises:
        ValueError: not a delay, or negative.
    """
    if isinstance(value, int) and not isinstance(value, bool):
        if value < 0:
            raise ValueError(f"{value!r} is negative; a delay is 0 ns or more")
        return value
    match = _DELAY.match(value) if isinstance(value, str) else None
    if match is None:
        raise ValueError(
            f'{value!r} is not a delay; write a number with ns, us, ms or s, such as "1us", '
            "or a whole number of nanoseconds"
        )
    return int(Decimal(match.group(1)) * _DELAY_FACTOR_NS[match.group(2)])


def parse_size_bytes(value: object) -> int:
    """Return bytes, zero or more, from ``"8MiB"`` (2**20), ``"50KB"`` (1000) or a whole number.

    Raises:
        ValueError: not a size.
    """
    if isinstance(value, int) and not isinstance(value, bool):
        if value < 0:
            raise ValueError(f'{value!r} is negative; write a size such as "8MiB"')
        return value
    match = _SIZE.match(value) if isinstance(value, str) else None
    if match is None:
        raise ValueError(
            f'{value!r} is not a size; write "8MiB" (MiB = 2**20 B), "50KB" (KB = 1000 B) or a '
            "whole number of bytes"
        )
    exact = Decimal(match.group(1)) * _SIZE_FACTOR[match.group(2)]
    if exact != int(exact):
        raise ValueError(f"{value!r} is not a whole number of bytes")
    return int(exact)


def parse_mac(value: object) -> int:
    """Return a unicast MAC address as a 48-bit integer from ``"02:00:00:00:00:01"``.

    Raises:
        ValueError: not six pairs of hexadecimal digits, all zero, or a group address.
    """
    if not isinstance(value, str) or not _MAC.match(value):
        raise ValueError(
            f"{value!r} is not a MAC address; write six pairs of hexadecimal digits, "
            'such as "02:00:00:00:00:01"'
        )
    mac = int(value.replace("-", ":").replace(":", ""), 16)
    if mac == 0 or mac >> 40 & 1:
        raise ValueError(
            f"{value!r} is not a unicast address; the first octet must be even and the "
            'address not all zero, such as "02:00:00:00:00:01"'
        )
    return mac


def format_mac(mac: int) -> str:
    """Return a 48-bit integer as ``02:00:00:00:00:01``."""
    return ":".join(f"{mac >> shift & 0xFF:02x}" for shift in range(40, -1, -8))


def format_rate(rate_bps: int) -> str:
    """Return a rate in bit/s the short way a topology file writes it, such as ``10G``."""
    for suffix in "TGMk":
        factor = _RATE_FACTOR[suffix]
        if rate_bps >= factor:
            return f"{Decimal(rate_bps) / factor:f}{suffix}"
    return str(rate_bps)
