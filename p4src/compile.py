#!/usr/bin/env python3
"""Compiles the P4 programs with p4c and records what was compiled from what.

Usage: python p4src/compile.py [--check]

Writes ``build/ringstep_v1model.json``, ``build/ringstep_v1model.p4info.txtpb`` and
``build/MANIFEST.json`` (SHA-256 of every source and artefact, compiler version). p4c is found as
``$P4C_BM2`` or ``p4c-bm2-ss`` on the PATH. With ``--check`` nothing is compiled: the exit status
is 1 when sources or artefacts differ from the manifest.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).resolve().parent
BUILD = HERE / "build"
MANIFEST = BUILD / "MANIFEST.json"
PROGRAM = "ringstep_v1model"
ARTEFACTS = (f"{PROGRAM}.json", f"{PROGRAM}.p4info.txtpb")


def sha256(path: Path) -> str:
    """Return the SHA-256 of a file as hex digits."""
    return hashlib.sha256(path.read_bytes()).hexdigest()


def sources() -> dict[str, str]:
    """Return path below p4src/ -> SHA-256 for every P4 source."""
    return {
        str(path.relative_to(HERE)): sha256(path)
        for path in sorted(HERE.rglob("*.p4"))
        if BUILD not in path.parents
    }


def differences() -> list[str]:
    """Say in which files the checkout differs from what was compiled; empty when it does not."""
    manifest = json.loads(MANIFEST.read_text())
    found = []
    for kind, now in (
        ("sources", sources()),
        ("artefacts", {name: sha256(BUILD / name) for name in ARTEFACTS}),
    ):
        then = manifest[kind]
        found += [
            f"{kind}: {name} differs from MANIFEST.json; run `make p4` where p4c is installed"
            for name in sorted(then.keys() | now.keys())
            if then.get(name) != now.get(name)
        ]
    return found


def find_compiler() -> Path:
    """Return p4c's BMv2 back end.

    Raises:
        SystemExit: it is not installed.
    """
    found = os.environ.get("P4C_BM2") or shutil.which("p4c-bm2-ss")
    if not found:
        raise SystemExit(
            "p4c-bm2-ss is not on the PATH and $P4C_BM2 is not set. Build p4c from "
            "github.com/p4lang/p4c; only changing the P4 program needs it, its output is committed."
        )
    return Path(found)


def compile_program(compiler: Path) -> None:
    """Run p4c and put its output and the manifest in place, all or nothing."""
    version = subprocess.run([compiler, "--version"], capture_output=True, text=True, check=True)
    include = os.environ.get("P4C_INCLUDE")
    with tempfile.TemporaryDirectory() as scratch:
        out = Path(scratch)
        command = [
            str(compiler), "--std", "p4-16", "--Werror",
            "--p4runtime-files", str(out / f"{PROGRAM}.p4info.txtpb"),
            "-o", str(out / f"{PROGRAM}.json"),
            *(["-I", include] if include else []),
            f"{PROGRAM}.p4",
        ]  # fmt: skip
        result = subprocess.run(command, cwd=HERE, capture_output=True, text=True, check=False)
        sys.stderr.write(result.stderr)
        if result.returncode:
            raise SystemExit(f"p4c failed with status {result.returncode}")
        BUILD.mkdir(exist_ok=True)
        for name in ARTEFACTS:
            shutil.copyfile(out / name, BUILD / name)
    manifest = {
        "compiler": "p4c " + (version.stdout + version.stderr).partition("Version ")[2].strip(),
        "sources": sources(),
        "artefacts": {name: sha256(BUILD / name) for name in ARTEFACTS},
    }
    MANIFEST.write_text(json.dumps(manifest, indent=2) + "\n")


def main() -> None:
    """Compile, or check what is committed."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--check", action="store_true", help="compare with MANIFEST.json only")
    if parser.parse_args().check:
        problems = differences()
        print("\n".join(problems) or "sources and artefacts match MANIFEST.json")
        raise SystemExit(1 if problems else 0)
    compile_program(find_compiler())


if __name__ == "__main__":
    main()
