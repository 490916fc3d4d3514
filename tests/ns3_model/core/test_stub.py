"""The stub says what the module has, no more and no less."""

from __future__ import annotations

import ast
from pathlib import Path

from ringstep_ns3 import _core as core

STUB = Path(__file__).parents[3] / "ns3-model" / "ringstep_ns3" / "_core.pyi"


def declared() -> dict[str, set[str] | None]:
    """Names of the stub; of a class, its public members."""
    names: dict[str, set[str] | None] = {}
    for node in ast.parse(STUB.read_text()).body:
        if isinstance(node, ast.ClassDef):
            members = set()
            for item in node.body:
                if isinstance(item, ast.FunctionDef):
                    members.add(item.name)
                elif isinstance(item, ast.AnnAssign) and isinstance(item.target, ast.Name):
                    members.add(item.target.id)
            names[node.name] = {m for m in members if not m.startswith("_")}
        elif isinstance(node, ast.FunctionDef):
            names[node.name] = None
    return names


def public(thing: object) -> set[str]:
    return {name for name in dir(thing) if not name.startswith("_")}


def test_names_agree() -> None:
    assert public(core) - {"NO_VALUE"} == set(declared())


def test_members_agree() -> None:
    for name, members in declared().items():
        if members is not None:
            assert public(getattr(core, name)) == members, name


def test_defaults_of_structs_agree() -> None:
    # The defaults that the stub shows are those that the constructor gives.
    checked = 0
    for node in ast.parse(STUB.read_text()).body:
        if not isinstance(node, ast.ClassDef):
            continue
        init = next(
            (f for f in node.body if isinstance(f, ast.FunctionDef) and f.name == "__init__"), None
        )
        if init is None or not init.args.kwonlyargs or init.args.args[1:]:
            continue
        required = {
            arg.arg: {"kind": "send", "hosts": [0], "ops": []}.get(arg.arg, 1)
            for arg, default in zip(init.args.kwonlyargs, init.args.kw_defaults, strict=True)
            if default is None
        }
        built = getattr(core, node.name)(**required)
        for arg, default in zip(init.args.kwonlyargs, init.args.kw_defaults, strict=True):
            if isinstance(default, ast.Constant) and default.value is not ...:
                assert getattr(built, arg.arg) == default.value, f"{node.name}.{arg.arg}"
                checked += 1
    assert checked > 80
