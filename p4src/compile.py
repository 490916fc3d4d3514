#!/usr/bin/env python3
"""Compiles the P4 programs with p4c and records what was compiled from what.

Usage: python p4src/compile.py [--target v1model|tofino2] [--check]

``v1model`` (the default) writes BMv2 JSON and P4Info, ``tofino2`` a report of what the program
takes of a pipe, and its P4Info; both write ``build/MANIFEST.json`` (SHA-256 of every source and
artefact, compiler version). p4c is found as ``$P4C_BM2`` or ``p4c-bm2-ss`` on the PATH, its Tofino
back end as ``$P4C_TOFINO`` or ``p4c-barefoot``, with its headers in ``$P4C_TOFINO_INCLUDE``. With
``--check`` nothing is compiled: the exit status is 1 when sources or artefacts differ from the
manifest.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import tofino_report

HERE = Path(__file__).resolve().parent
BUILD = HERE / "build"
MANIFEST = BUILD / "MANIFEST.json"

V1MODEL: dict[str, tuple[str, ...]] = {
    "ringstep_v1model": (),
    "ringstep_v1model_uec": ("RINGSTEP_UEC",),
}
"""Stem of the output -> macros."""
TOFINO2: dict[str, tuple[str, ...]] = {"whole": (), "marker_only": ("RINGSTEP_MARKER_ONLY",)}
"""Key of the report -> macros."""


def sha256(path: Path) -> str:
    """Return the SHA-256 of a file as hex digits."""
    return hashlib.sha256(path.read_bytes()).hexdigest()


def sources(program: str) -> dict[str, str]:
    """Return path below p4src/ -> SHA-256 of a program and of everything that it includes."""
    found: dict[str, str] = {}
    open_ = [HERE / program]
    while open_:
        path = open_.pop()
        name = path.relative_to(HERE).as_posix()
        if name not in found:
            found[name] = sha256(path)
            included = re.findall(r'^\s*#\s*include\s+"(.+)"', path.read_text(), re.MULTILINE)
            open_ += [(path.parent / other).resolve() for other in included]
    return dict(sorted(found.items()))


def read_manifest() -> dict[str, dict[str, object]]:
    """Return what is recorded per target: compiler, sources, artefacts."""
    manifest: dict[str, dict[str, object]] = json.loads(MANIFEST.read_text())
    return manifest


def differences() -> list[str]:
    """Say in which files the checkout differs from what was compiled; empty when it does not."""
    found = []
    for target, record in read_manifest().items():
        kinds = {
            "sources": sources(f"ringstep_{PROGRAMS[target]}.p4"),
            "artefacts": {
                name: sha256(BUILD / name) if (BUILD / name).exists() else "nothing"
                for name in dict(record["artefacts"])  # type: ignore[call-overload]
            },
        }
        for kind, now in kinds.items():
            then = dict(record[kind])  # type: ignore[call-overload]
            found += [
                f"{target}, {kind}: {name} differs from MANIFEST.json; run "
                f"`python p4src/compile.py --target {target}` where p4c is installed"
                for name in sorted(then.keys() | now.keys())
                if then.get(name) != now.get(name)
            ]
    return found


def find_compiler(variable: str, command: str) -> Path:
    """Return a back end of p4c.

    Raises:
        SystemExit: it is not installed.
    """
    found = os.environ.get(variable) or shutil.which(command)
    if not found:
        raise SystemExit(
            f"{command} is not on the PATH and ${variable} is not set. Build p4c from "
            "github.com/p4lang/p4c; only who changes a P4 program needs it."
        )
    return Path(found)


def attempt(command: list[str], limit: float | None = None) -> subprocess.CompletedProcess[str]:
    """Run p4c in the source folder and show what it says; for ``limit`` seconds at most."""
    try:
        result = subprocess.run(
            command, cwd=HERE, capture_output=True, text=True, check=False, timeout=limit
        )
    except subprocess.TimeoutExpired:
        said = f"error: no result within {limit:g} s\n"
        result = subprocess.CompletedProcess(command, 124, "", said)
    sys.stderr.write(result.stderr)
    return result


def run(command: list[str]) -> None:
    """Run p4c in the source folder.

    Raises:
        SystemExit: it failed; it has said why.
    """
    result = attempt(command)
    if result.returncode:
        raise SystemExit(f"{Path(command[0]).name} failed with status {result.returncode}")


def errors_of(said: str) -> list[str]:
    """Return the errors among what p4c says, each without the source that it quotes."""
    return [line.strip() for line in said.splitlines() if re.search(r"(^|\s)error: ", line)]


def version_of(compiler: Path) -> str:
    """Return "p4c VERSION (SHA ...)" as a back end names itself."""
    said = subprocess.run([compiler, "--version"], capture_output=True, text=True, check=False)
    if said.returncode:
        raise SystemExit(f"{compiler} --version failed with status {said.returncode}")
    return "p4c " + (said.stdout + said.stderr).partition("Version ")[2].strip()


def compile_v1model(out: Path) -> tuple[str, list[str]]:
    """Compile for BMv2 into ``out``; return (compiler, names of what was written)."""
    compiler = find_compiler("P4C_BM2", "p4c-bm2-ss")
    include = os.environ.get("P4C_INCLUDE")
    written = []
    for stem, macros in V1MODEL.items():
        artefacts = [f"{stem}.json", f"{stem}.p4info.txtpb"]
        run(
            [
                str(compiler), "--std", "p4-16", "--Werror",
                "--p4runtime-files", str(out / artefacts[1]),
                "-o", str(out / artefacts[0]),
                *(["-I", include] if include else []),
                *(f"-D{macro}" for macro in macros),
                "ringstep_v1model.p4",
            ]
        )  # fmt: skip
        written += artefacts
    return version_of(compiler), written


def compile_tofino2(out: Path) -> tuple[str, list[str]]:
    """Compile for Tofino 2 and reduce the compiler's logs; return as compile_v1model.

    A variant that does not compile while another does, within ``$P4C_TOFINO_LIMIT_S`` seconds
    (an hour), is in the report with the compiler's errors (``failed``) and without numbers.

    Raises:
        SystemExit: no variant compiles, or the compiler's logs are not as its schemas say.
    """
    compiler = find_compiler("P4C_TOFINO", "p4c-barefoot")
    include = os.environ.get("P4C_TOFINO_INCLUDE")
    report_name, info_name = "tofino2/report.json", "tofino2/ringstep_t2na.p4info.txtpb"
    # Counters and the action profile as P4Runtime has them: of the back end's own messages a reader
    # of P4Info has no definition.
    info_options = ["--p4runtime-force-std-externs", "--p4runtime-files", str(out / info_name)]
    (out / "tofino2").mkdir()
    constants = HERE / "include" / "constants.p4"
    report: dict[str, object] = {"compiler": version_of(compiler)}
    written = [report_name]
    statuses = []
    for key, macros in TOFINO2.items():
        logs = out / key
        result = attempt(
            [
                str(compiler), "--std", "p4-16", "--target", "tofino2", "--arch", "t2na", "-g",
                "--display-power-budget",
                *(info_options if key == "whole" else []),
                "-o", str(logs),
                *(["-I", include] if include else []),
                "-D__TARGET_TOFINO__=2",
                *(f"-D{macro}" for macro in macros),
                "ringstep_t2na.p4",
            ],
            limit=float(os.environ.get("P4C_TOFINO_LIMIT_S", 3600)),
        )  # fmt: skip
        statuses.append(result.returncode)
        if result.returncode:
            report[key] = {"failed": errors_of(result.stderr)}
            continue
        if key == "whole":
            written.append(info_name)
        try:
            report[key] = tofino_report.reduce(logs) | {
                "jobs": tofino_report.constant(constants, "MAX_JOB_SLOTS"),
                "blocks": tofino_report.constant(constants, "MAX_BLOCKS"),
            }
        except tofino_report.ReportError as error:
            raise SystemExit(f"no report: {error}") from None
    if all(statuses):
        raise SystemExit(f"{compiler.name} failed with status {statuses[0]}")
    (out / report_name).write_text(json.dumps(report, indent=2) + "\n")
    return version_of(compiler), written


def compile_target(target: str) -> None:
    """Compile one target and put its output and the manifest in place, all or nothing."""
    with tempfile.TemporaryDirectory() as scratch:
        out = Path(scratch)
        compiler, written = TARGETS[target](out)
        for name in written:
            (BUILD / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(out / name, BUILD / name)
    manifest = read_manifest() if MANIFEST.exists() else {}
    manifest[target] = {
        "compiler": compiler,
        "sources": sources(f"ringstep_{PROGRAMS[target]}.p4"),
        "artefacts": {name: sha256(BUILD / name) for name in sorted(written)},
    }
    MANIFEST.write_text(json.dumps(dict(sorted(manifest.items())), indent=2) + "\n")


PROGRAMS = {"v1model": "v1model", "tofino2": "t2na"}
"""Target -> which of the programs."""
TARGETS: dict[str, Callable[[Path], tuple[str, list[str]]]] = {
    "v1model": compile_v1model,
    "tofino2": compile_tofino2,
}


def main() -> None:
    """Compile, or check what is committed."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--check", action="store_true", help="compare with MANIFEST.json only")
    parser.add_argument("--target", choices=sorted(TARGETS), default="v1model")
    args = parser.parse_args()
    if args.check:
        problems = differences()
        for target in sorted(TARGETS.keys() - read_manifest().keys()):
            print(f"{target}: never compiled, so there is nothing to compare")
        print("\n".join(problems) or "sources and artefacts match MANIFEST.json")
        raise SystemExit(1 if problems else 0)
    compile_target(args.target)


if __name__ == "__main__":
    main()
