"""Rates, times, sizes and shares as people write them in a scenario, as pydantic types.

Each type reads what a person writes and is written back the same way, so that an effective
configuration can be read again. Rates and times are those of a topology file.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from decimal import Decimal
from fractions import Fraction
from typing import Annotated, Any

from pydantic import BeforeValidator, PlainSerializer

from ringstep.fabric.units import format_rate, parse_delay_ns, parse_rate_bps, parse_size_bytes

_TIME_UNITS = (("s", 10**9), ("ms", 10**6), ("us", 10**3))
_NAME = re.compile(r"^[A-Za-z0-9][A-Za-z0-9_.-]{0,62}$")
_LARGEST = 2**62


def _refuse_bool(value: object, what: str) -> None:
    if isinstance(value, bool):
        raise ValueError(f"{str(value).lower()} is not {what}")


def parse_rate(value: object) -> int:
    """Return bit/s from ``"10G"`` or a whole number.

    Raises:
        ValueError: not a rate above zero.
    """
    _refuse_bool(value, 'a rate; write for example "10G"')
    return parse_rate_bps(value)


def parse_time(value: object) -> int:
    """Return nanoseconds from ``"1us"`` or a whole number of ns.

    Raises:
        ValueError: not a time, or negative.
    """
    _refuse_bool(value, 'a time; write for example "1us"')
    time = parse_delay_ns(value)
    if time >= _LARGEST:
        raise ValueError(f"{value!r} is beyond what the simulator counts (146 years); write less")
    return time


def parse_duration(value: object) -> int:
    """Return nanoseconds, above zero.

    Raises:
        ValueError: not a time above zero.
    """
    time = parse_time(value)
    if time == 0:
        raise ValueError(f'{value!r} is no duration; write a time above zero, such as "1ms"')
    return time


def parse_bytes(value: object) -> int:
    """Return bytes, zero or more, from ``"8MiB"`` (2**20), ``"50KB"`` (1000) or a whole number.

    Raises:
        ValueError: not a size.
    """
    size = parse_size_bytes(value)
    if size >= _LARGEST:
        raise ValueError(f"{value!r} is beyond what the simulator counts (4 EiB); write less")
    return size


def parse_size(value: object) -> int:
    """Return bytes, above zero.

    Raises:
        ValueError: not a size, or zero.
    """
    size = parse_bytes(value)
    if size == 0:
        raise ValueError(f'{value!r} is no size; write one above zero, such as "8MiB"')
    return size


def parse_count(value: object) -> int:
    """Return a whole number from 1.

    Raises:
        ValueError: anything else.
    """
    if not isinstance(value, int) or isinstance(value, bool) or not 1 <= value < 2**31:
        raise ValueError(f"{value!r} is not a count; write a whole number from 1")
    return value


def parse_whole(value: object) -> int:
    """Return a whole number from 0.

    Raises:
        ValueError: anything else.
    """
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value < 2**63:
        raise ValueError(f"{value!r} is not usable; write a whole number from 0")
    return value


def parse_share(value: object) -> float:
    """Return a share in 0..1.

    Raises:
        ValueError: not a number in that range.
    """
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value <= 1:
        raise ValueError(f"{value!r} is not a share; write a number from 0 to 1")
    return float(value)


def parse_link_rate(value: object) -> int:
    """Return the rate of a link in bit/s.

    Raises:
        ValueError: not a rate from 1 Mb/s to 10 Tb/s.
    """
    rate = parse_rate(value)
    if not 10**6 <= rate <= 10**13:
        raise ValueError(
            f'{value!r} is no rate of a link; write one from "1M" to "10000G", such as "10G" (a '
            "bare number counts bit/s)"
        )
    return rate


def parse_loss(value: object) -> float:
    """Return a chance of loss from 0 to below 1.

    Raises:
        ValueError: not a number in that range.
    """
    loss = parse_share(value)
    if loss == 1:
        raise ValueError(f"{value!r} loses everything; write a number below 1, such as 0.0001")
    return loss


def parse_mtu(value: object) -> int:
    """Return the payload of a packet in bytes.

    Raises:
        ValueError: not a size from 64 B to 65,000 B.
    """
    size = parse_size(value)
    if not 64 <= size <= 65_000:
        raise ValueError(f"{value!r} is no MTU; write a size from 64 to 65000, such as 1000")
    return size


def parse_positive(value: object) -> float:
    """Return a finite number above 0.

    Raises:
        ValueError: anything else.
    """
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 < value < 1e18:
        raise ValueError(f"{value!r} is not usable; write a number above 0")
    return float(value)


def parse_ratio(value: object) -> Fraction:
    """Return a fraction in 0..1 with a denominator up to 255, from ``"1/4"`` or a number.

    Raises:
        ValueError: not such a fraction.
    """
    try:
        ratio = Fraction(str(value)) if not isinstance(value, bool) else None
    except (ValueError, ZeroDivisionError):
        ratio = None
    if ratio is None or not 0 <= ratio <= 1:
        raise ValueError(f'{value!r} is not a share; write "1/4" or a number from 0 to 1')
    return ratio.limit_denominator(255)


def parse_oversubscription(value: object) -> Fraction:
    """Return how much more may come from below than can go up, from ``"1:4"``, ``"4:1"`` or 4.

    Raises:
        ValueError: not a ratio, or below one.
    """
    ratio: Fraction | None = None
    if isinstance(value, str) and (match := re.match(r"^\s*(\d+)\s*:\s*(\d+)\s*$", value)):
        left, right = int(match.group(1)), int(match.group(2))
        if left and right:
            ratio = Fraction(max(left, right), min(left, right))
    elif isinstance(value, (int, float)) and not isinstance(value, bool) and 1 <= value < 1e6:
        ratio = Fraction(str(value))
    if ratio is None:
        raise ValueError(
            f'{value!r} is not an oversubscription; write "1:4" for one unit up per four from below'
        )
    return ratio


def parse_name(value: object) -> str:
    """Return a name.

    Raises:
        ValueError: not letters, digits, ``_``, ``.``, ``-``, or longer than 63 characters.
    """
    if not isinstance(value, str) or not _NAME.match(value):
        raise ValueError(
            f"{value!r} is not a name; write letters, digits, '_', '-' or '.', at most 63 "
            "characters, the first a letter or digit"
        )
    return value


def format_time(time_ns: int) -> str:
    """Return nanoseconds the short way: ``1us``, ``2.5ms``."""
    for unit, factor in _TIME_UNITS:
        if time_ns >= factor and time_ns % (factor // 1000) == 0:
            return f"{Decimal(time_ns) / factor:f}{unit}"
    return f"{time_ns}ns"


def format_size(size: int) -> str:
    """Return bytes the short way: ``8MiB``, ``50KB``, ``1037B``."""
    for power in (4, 3, 2, 1):
        if size and size % 1024**power == 0:
            return f"{size // 1024**power}{' KMGT'[power]}iB"
    for power in (3, 2, 1):
        if size >= 10_000 and size % 1000**power == 0:
            return f"{size // 1000**power}{' KMG'[power]}B"
    return f"{size}B"


def _format_oversubscription(ratio: Fraction) -> str:
    return f"{ratio.denominator}:{ratio.numerator}"


def _or_word(parse: Callable[[object], Any], word: str) -> Callable[[object], Any]:
    def read(value: object) -> Any:
        if value is None or value == word:
            return None
        try:
            return parse(value)
        except ValueError as error:
            raise ValueError(f'{error}; or "{word}"') from None

    return read


def _or_word_back(write: Callable[[Any], Any], word: str) -> Callable[[Any], Any]:
    return lambda value: word if value is None else write(value)


def _same(value: Any) -> Any:
    return value


def _optional(parse: Callable[[object], Any], write: Callable[[Any], Any], word: str) -> Any:
    return (
        BeforeValidator(_or_word(parse, word)),
        PlainSerializer(_or_word_back(write, word)),
    )


_AUTO_RATE = _optional(parse_rate, format_rate, "auto")
_AUTO_LINK_RATE = _optional(parse_link_rate, format_rate, "auto")
_AUTO_TIME = _optional(parse_time, format_time, "auto")
_OFF_TIME = _optional(parse_duration, format_time, "off")
_OFF_COUNT = _optional(parse_whole, _same, "off")
_AUTO_COUNT = _optional(parse_count, _same, "auto")
_AUTO_WHOLE = _optional(parse_whole, _same, "auto")
_AUTO_SIZE = _optional(parse_size, format_size, "auto")
_UNLIMITED_SIZE = _optional(parse_size, format_size, "unlimited")
_OFF_SIZE = _optional(parse_size, format_size, "off")
_OFF_NUMBER = _optional(parse_positive, _same, "off")
_PRESET_NUMBER = _optional(parse_positive, _same, "preset")

Rate = Annotated[int, BeforeValidator(parse_rate), PlainSerializer(format_rate)]
LinkRate = Annotated[int, BeforeValidator(parse_link_rate), PlainSerializer(format_rate)]
Mtu = Annotated[int, BeforeValidator(parse_mtu), PlainSerializer(format_size)]
Time = Annotated[int, BeforeValidator(parse_time), PlainSerializer(format_time)]
Duration = Annotated[int, BeforeValidator(parse_duration), PlainSerializer(format_time)]
Size = Annotated[int, BeforeValidator(parse_size), PlainSerializer(format_size)]
Bytes = Annotated[int, BeforeValidator(parse_bytes), PlainSerializer(format_size)]
Count = Annotated[int, BeforeValidator(parse_count)]
Whole = Annotated[int, BeforeValidator(parse_whole)]
Share = Annotated[float, BeforeValidator(parse_share)]
Loss = Annotated[float, BeforeValidator(parse_loss)]
Positive = Annotated[float, BeforeValidator(parse_positive)]
Name = Annotated[str, BeforeValidator(parse_name)]
Ratio = Annotated[Fraction, BeforeValidator(parse_ratio), PlainSerializer(str)]
AutoRate = Annotated[int | None, *_AUTO_RATE]
AutoLinkRate = Annotated[int | None, *_AUTO_LINK_RATE]
AutoTime = Annotated[int | None, *_AUTO_TIME]
AutoSize = Annotated[int | None, *_AUTO_SIZE]
AutoCount = Annotated[int | None, *_AUTO_COUNT]
AutoWhole = Annotated[int | None, *_AUTO_WHOLE]
OffTime = Annotated[int | None, *_OFF_TIME]
OffSize = Annotated[int | None, *_OFF_SIZE]
OffCount = Annotated[int | None, *_OFF_COUNT]
UnlimitedSize = Annotated[int | None, *_UNLIMITED_SIZE]
Oversubscription = Annotated[
    Fraction | None,
    *_optional(parse_oversubscription, _format_oversubscription, "auto"),
]
