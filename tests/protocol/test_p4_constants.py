"""The numbers that P4 and Python share are the same."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

from ringstep.protocol import limits, p4constants, rocev2

CONSTANTS = Path(__file__).resolve().parents[2] / "p4src" / "include" / "constants.p4"
T2NA_CONSTANTS = CONSTANTS.parent / "t2na" / "constants.p4"


def test_committed_file_is_what_the_package_renders() -> None:
    assert CONSTANTS.read_text() == p4constants.render(), (
        "run python -m ringstep.protocol.p4constants > p4src/include/constants.p4"
    )


def test_committed_file_of_tofino_2_is_what_the_package_renders() -> None:
    assert T2NA_CONSTANTS.read_text() == p4constants.render_t2na(), (
        "run python -m ringstep.protocol.p4constants --t2na > p4src/include/t2na/constants.p4"
    )


def test_command_prints_the_files() -> None:
    command = [sys.executable, "-m", "ringstep.protocol.p4constants"]
    result = subprocess.run(command, capture_output=True, text=True, check=True)
    assert result.stdout == p4constants.render()
    result = subprocess.run([*command, "--t2na"], capture_output=True, text=True, check=True)
    assert result.stdout == p4constants.render_t2na()


def constants() -> dict[str, tuple[str, int]]:
    found = re.findall(r"const (\S+) (\w+) = (\d+);", CONSTANTS.read_text())
    return {name: (kind, int(value)) for kind, name, value in found}


def widths() -> dict[str, int]:
    found = re.findall(r"typedef bit<(\d+)> (\w+);", CONSTANTS.read_text())
    return {name: int(bits) for bits, name in found}


def test_every_constant_fits_its_type() -> None:
    for name, (kind, value) in constants().items():
        bits = re.fullmatch(r"bit<(\d+)>", kind)
        assert value < 1 << (int(bits[1]) if bits else widths()[kind]), name


def test_values_of_the_wire() -> None:
    values = {name: value for name, (_, value) in constants().items()}
    assert values["ROCE_UDP_PORT"] == 4791
    assert values["UDP_SPORT_BASE"] == 0xC000
    assert (values["ETHERTYPE_IPV4"], values["ETHERTYPE_IPV6"]) == (0x0800, 0x86DD)
    assert (values["ECN_ECT1"], values["ECN_ECT0"], values["ECN_CE"]) == (1, 2, 3)
    assert values["MIN_ROCE_UDP_BYTES"] == 24
    assert values["CPU_PORT"] == 510
    assert (values["UEC_UDP_PORT"], values["MIN_UEC_UDP_BYTES"]) == (4793, 32)


def test_sizes_belong_together() -> None:
    values = {name: value for name, (_, value) in constants().items()}
    assert values["MAX_JOB_SLOTS"] == 1 << widths()["job_t"] == limits.MAX_JOBS + 1
    assert values["MAX_BLOCKS"] == 1 << widths()["block_t"]
    assert values["MAX_ANCHORS"] == values["MAX_JOB_SLOTS"] * limits.ANCHORS_PER_JOB
    # An anchor register holds generation, step and base in 48 bits.
    assert widths()["generation_t"] + widths()["step_t"] + widths()["psn_t"] == 48
    assert 1 << widths()["k_t"] > 1 << limits.K_FRACTION_BITS


def test_parser_recognises_the_data_opcodes() -> None:
    parser = (CONSTANTS.parent / "v1model" / "parser.p4").read_text()
    (body,) = re.findall(r"state parse_bth \{.*?select\(hdr\.bth\.opcode\) \{(.*?)\}", parser, re.S)
    rules = [
        (int(value, 16), int(mask, 16), state)
        for value, mask, state in re.findall(r"(0x\w+) &&& (0x\w+): (\w+);", body)
    ]
    for opcode in range(256):
        state = next((s for value, mask, s in rules if opcode & mask == value), "accept")
        if not rocev2.is_data(opcode):
            assert state == "accept", opcode
        else:
            assert state == ("data_last" if rocev2.is_last(opcode) else "data"), opcode
