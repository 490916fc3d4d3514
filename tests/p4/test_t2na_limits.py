"""What a stateful ALU of Tofino 2 can do, held against the RegisterActions of the source.

The rules are those that p4c's Tofino back end enforces (four actions to a register, four
comparisons and four outputs to an action, two operands from the packet, constants of four bits),
and the one that it cannot: a difference is compared with 0 by its sign only where it is of signed
numbers. That no packet accesses a register twice is what the interpreter watches, in every test.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from typing import Any

import pytest
from p4_source import Node, Parser, StructType, tokens_of
from t2na_program import MARKER, SOURCE, Bench

from ringstep.protocol.limits import MAX_BLOCKS, MAX_JOBS

RELATIONS = ("==", "!=", "<", "<=", ">", ">=")


def local() -> list[Node]:
    return list(Bench().program.declared["Marker"][4])


def instances(prefix: str) -> dict[str, Node]:
    return {
        node[4]: node for node in local() if node[0] == "instance" and node[2][2].startswith(prefix)
    }


REGISTERS = {n: node for n, node in instances("Register").items() if node[2][2] == "Register"}
ACTIONS = instances("RegisterAction")


def walk(node: Any) -> Iterator[Node]:
    """Yield every node below a node, itself included."""
    if isinstance(node, tuple) and node and isinstance(node[0], str):
        yield node
    if isinstance(node, (tuple, list)):
        for part in node:
            yield from walk(part)


def actions_of(register: str) -> dict[str, Node]:
    return {name: node for name, node in ACTIONS.items() if node[3][0][2] == register}


def body(action: Node) -> list[Node]:
    return list(action[5][0][1])


def packet_operands(action: Node) -> set[str]:
    """Return the names that an action reads from the packet."""
    params = {name for _, _, name in action[5][0][0]}
    constants = {"SLACK"}
    members = {id(n[2]) for n in walk(body(action)) if n[0] == "member"}
    found = {
        n[2]
        for n in walk(body(action))
        if n[0] == "name" and n[2] not in params | constants and id(n) not in members
    }
    inner = {id(n[2]) for n in walk(body(action)) if n[0] == "member"}
    for n in walk(body(action)):
        if n[0] != "member" or id(n) in inner:
            continue
        if n[2][0] == "member" and n[2][2][2] == "meta":
            found.add(f"meta.{n[2][3]}.{n[3]}")
        elif n[2][0] == "name" and n[2][2] == "meta":
            found.add(f"meta.{n[3]}")
    return found


@pytest.mark.parametrize("register", REGISTERS)
def test_at_most_four_actions_to_a_register(register: str) -> None:
    assert 1 <= len(actions_of(register)) <= 4


@pytest.mark.parametrize("register", REGISTERS)
def test_at_most_two_operands_from_the_packet(register: str) -> None:
    operands = set().union(*(packet_operands(a) for a in actions_of(register).values()))
    assert len(operands) <= 2, operands


def test_operands_are_found() -> None:
    assert packet_operands(ACTIONS["follow_1"]) == {"new_step", "new_psn"}
    assert packet_operands(ACTIONS["close"]) == {"horizon", "meta.soon"}
    assert packet_operands(ACTIONS["renew"]) == {"meta.params.generation"}


@pytest.mark.parametrize("action", ACTIONS)
def test_at_most_four_comparisons_and_four_outputs(action: str) -> None:
    compared = {
        str(list(n[2:])).replace(n[1], "")
        for n in walk(body(ACTIONS[action]))
        if n[0] == "binary" and n[2] in RELATIONS
    }
    assert len(compared) <= 4
    assert len(ACTIONS[action][5][0][0]) <= 1 + 4


@pytest.mark.parametrize("action", ACTIONS)
def test_constants_need_no_register_file(action: str) -> None:
    bounds = {id(bound) for n in walk(body(ACTIONS[action])) if n[0] == "slice" for bound in n[3:]}
    for n in walk(body(ACTIONS[action])):
        if n[0] == "number" and id(n) not in bounds:
            assert -8 <= n[2] <= 7, n


@pytest.mark.parametrize("action", ACTIONS)
def test_a_difference_is_compared_with_0_and_signed(action: str) -> None:
    program = Bench().program
    signed = (32, True)
    register = program.registers[f"{MARKER}.{ACTIONS[action][3][0][2]}"]
    for n in walk(body(ACTIONS[action])):
        if n[0] == "binary" and n[2] in RELATIONS:
            left, right = n[3], n[4]
            if left[0] == "binary" and left[2] == "-":
                assert (right[0], right[2]) == ("number", 0), n[1]
                element = register.type
                if isinstance(element, StructType):
                    element = element.fields[left[3][3]]
                assert element == signed, n[1]
            assert not (right[0] == "binary" and right[2] in "+-"), n[1]
            # A cast would hide the subtraction from the back end's choice of the comparison.
            assert "cast" not in (left[0], right[0]), n[1]


@pytest.mark.parametrize("register", REGISTERS)
def test_elements_are_what_the_hardware_has(register: str) -> None:
    kind = Bench().program.registers[f"{MARKER}.{register}"].type
    if isinstance(kind, StructType):
        assert [width for width, _ in kind.fields.values()] == [32, 32]
    else:
        assert kind[0] in (8, 16, 32)


def test_registers_hold_every_job_and_every_block() -> None:
    program = Bench().program
    sizes = {
        name: program.expression(node[3][0], program.top, None)[1]()
        for name, node in REGISTERS.items()
    }
    by_job = {name: size for name, size in sizes.items() if name.startswith("anchors_")}
    assert set(by_job.values()) == {MAX_JOBS + 1}
    halved = {name: size for name, size in sizes.items() if name[-2:] in ("_0", "_1")}
    halved = {name: size for name, size in halved.items() if name not in by_job}
    assert halved == dict.fromkeys(
        ("position_0", "position_1", "window_0", "window_1"), MAX_BLOCKS // 2
    )
    rest = sizes.keys() - by_job.keys() - halved.keys()
    assert {sizes[name] for name in rest} == {MAX_BLOCKS}


def test_a_register_fits_half_a_stage() -> None:
    # Of a stage's 48 RAMs for registers one register has those of one half, and one of them is
    # spare: so 23 blocks of 1024 words of 128 bits.
    program = Bench().program
    for name, node in REGISTERS.items():
        size = program.expression(node[3][0], program.top, None)[1]()
        kind = program.registers[f"{MARKER}.{name}"].type
        bits = 64 if isinstance(kind, StructType) else kind[0]
        assert size * bits <= 23 * 1024 * 128, name


def test_the_marker_alone_needs_no_action_to_read() -> None:
    parser = Parser(tokens_of(SOURCE, {"RINGSTEP_MARKER_ONLY": ""}), {"packet_in", "packet_out"})
    texts = [token.text for token in parser.tokens]
    assert "renew" in texts
    assert not [text for text in texts if text.startswith("see_")]


def test_actions_by_register() -> None:
    by_register = defaultdict(set)
    for name, node in ACTIONS.items():
        by_register[node[3][0][2]].add(name)
    for half in (0, 1):
        assert by_register[f"position_{half}"] == {
            f"{name}_{half}" for name in ("follow", "restart", "replace", "see_position")
        }
    assert by_register["block_alpha"] == {"hold", "rise", "fall", "see_alpha"}
