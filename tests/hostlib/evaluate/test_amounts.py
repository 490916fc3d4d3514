from __future__ import annotations

import pytest

from ringstep.hostlib.evaluate.amounts import parse_bytes, parse_levels, parse_rate


@pytest.mark.parametrize(
    ("text", "value"),
    [("65536", 65536), ("64K", 65536), ("4M", 4 << 20), ("4MiB", 4 << 20), ("4mb", 4 << 20),
     ("1.5M", 3 << 19), ("1G", 1 << 30), ("17B", 17)],
)  # fmt: skip
def test_bytes_are_powers_of_1024_as_in_nccl_tests(text: str, value: int) -> None:
    assert parse_bytes(text) == value


@pytest.mark.parametrize("text", ["", "M", "4X", "-4M", "0", "1.3", "4 M M", "1e6"])
def test_what_are_no_bytes_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="bytes"):
        parse_bytes(text)


@pytest.mark.parametrize(
    ("text", "value"),
    [("100G", 1e11), ("2.5Gbit/s", 2.5e9), ("200Mb", 2e8), ("25gbps", 25e9), ("1000000", 1e6)],
)
def test_rates_are_decimal_bits_per_second(text: str, value: float) -> None:
    assert parse_rate(text) == value


@pytest.mark.parametrize("text", ["", "0", "0G", "100GB/h", "fast", "-1G"])
def test_what_is_no_rate_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="bits per second"):
        parse_rate(text)


def test_levels_come_sorted_and_once() -> None:
    assert parse_levels("0.8, 0,0.5,0.8") == (0.0, 0.5, 0.8)


@pytest.mark.parametrize(
    ("text", "why"),
    [("0.5", "0 is missing"), ("0,1", "below 1"), ("0,-0.1", "below 1"), ("0,nan", "below 1"),
     ("0,much", "'much'"), ("", "''")],
)  # fmt: skip
def test_what_are_no_levels_is_refused(text: str, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        parse_levels(text)
