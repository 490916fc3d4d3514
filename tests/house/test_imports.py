"""A part imports only what the architecture allows (docs/architecture.md)."""

import ast
import functools
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
ALL = {"protocol", "fabric", "softswitch", "controller", "hostlib", "lab", "cli"}
SIMULATOR = "ns3-model"
"""A distribution of its own; it may use protocol and fabric."""
MAY_USE = {
    "protocol": set(),
    "fabric": {"protocol"},
    "softswitch": {"protocol"},
    "controller": {"protocol", "fabric"},
    "hostlib": {"protocol"},
    "lab": ALL,
    "cli": ALL,
    SIMULATOR: {"protocol", "fabric"},
}
THIRD_PARTY = {
    "protocol": set(),
    "fabric": {"numpy", "pydantic", "pydantic_core"},
    "softswitch": {"finsy", "google", "grpc", "rich", "typer"},
    "controller": {
        "finsy", "google", "grpc", "grpc_health", "grpc_reflection", "matplotlib",
        "prometheus_client", "pydantic", "pydantic_core", "rich", "sqlalchemy", "typer",
    },
    "hostlib": {"mpi4py", "numpy", "pynvml", "rich", "safetensors", "torch", "typer"},
    "lab": {"google", "grpc", "matplotlib", "mininet", "numpy", "rich", "typer"},
    "cli": {"rich", "typer", "ringstep_ns3"},
    SIMULATOR: {
        "dask", "dask_jobqueue", "distributed", "google", "matplotlib", "numpy", "pyarrow",
        "pydantic", "pydantic_core", "rich", "ringstep_ns3", "typer",
    },
}  # fmt: skip


@functools.cache
def imported_modules(path: Path) -> set[str]:
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
            found.add(node.module)
            found |= {f"{node.module}.{alias.name}" for alias in node.names}
    return found


def sources(part: str) -> list[Path]:
    return sorted((ROOT / part).rglob("*.py"))


@pytest.mark.parametrize("part", sorted(MAY_USE))
def test_part_imports_only_the_parts_it_may_use(part: str) -> None:
    allowed = MAY_USE[part] | {part}
    wrong = []
    for path in sources(part):
        for name in imported_modules(path):
            pieces = name.split(".")
            if pieces[0] == "ringstep" and len(pieces) > 1 and pieces[1] in ALL - allowed:
                wrong.append(f"{path.relative_to(ROOT)} imports {name}")
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize("part", sorted(MAY_USE))
def test_part_imports_only_its_libraries(part: str) -> None:
    allowed = THIRD_PARTY[part] | set(sys.stdlib_module_names) | {"ringstep"}
    wrong = []
    for path in sources(part):
        if "proto" in path.relative_to(ROOT / part).parts:
            continue  # The generator of the committed stubs is a developer's tool.
        for name in imported_modules(path):
            if name.split(".")[0] not in allowed:
                wrong.append(f"{path.relative_to(ROOT)} imports {name}")
    assert not wrong, "\n".join(wrong)


def test_every_folder_of_the_house_is_linked() -> None:
    for part in sorted(ALL):
        link = ROOT / "ringstep" / part
        assert link.is_symlink()
        assert link.resolve() == ROOT / part
