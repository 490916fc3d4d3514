"""What a wheel holds, proven outside the checkout."""

import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


def tracked_files() -> list[str]:
    if shutil.which("git") is None or not (ROOT / ".git").exists():
        pytest.skip("needs a git checkout; clone the repository to enable")
    listed = subprocess.run(
        ["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, check=True, text=True
    )
    return [name for name in listed.stdout.split("\0") if name]


@pytest.mark.slow
def test_wheel_built_from_tracked_files_alone_runs_elsewhere(tmp_path: Path) -> None:
    clone = tmp_path / "clone"
    for name in tracked_files():
        source, target = ROOT / name, clone / name
        if not source.is_symlink() and not source.exists():
            continue  # Deleted in the working tree.
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(source, target, follow_symlinks=False)
    subprocess.run(
        [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation",
         "--wheel-dir", str(tmp_path), str(clone)],
        check=True, cwd=tmp_path,
    )  # fmt: skip
    (wheel,) = tmp_path.glob("ringstep-*.whl")
    names = set(zipfile.ZipFile(wheel).namelist())
    assert "ringstep/p4build/ringstep_v1model.json" in names
    assert "ringstep/p4build/ringstep_v1model.p4info.txtpb" in names
    assert "ringstep/protocol/marker.py" in names
    assert "ringstep/fabric/guidance.json" in names
    assert not [name for name in names if name.startswith(("tests/", "docs/"))]

    unpacked = tmp_path / "site"
    zipfile.ZipFile(wheel).extractall(unpacked)
    script = f"""
import sys
# An editable installation of this checkout answers before any path.
sys.meta_path[:] = [f for f in sys.meta_path if type(f).__module__ != "_editable_skbc_ringstep"]
import importlib.resources
import ringstep
assert ringstep.__file__.startswith({str(unpacked)!r}), ringstep.__file__
program = importlib.resources.files("ringstep") / "p4build" / "ringstep_v1model.json"
assert program.is_file()
from ringstep.cli.main import compose
compose()
"""
    subprocess.run(
        [sys.executable, "-c", script],
        check=True, cwd=tmp_path, env={"PYTHONPATH": str(unpacked), "PATH": "/usr/bin:/bin"},
    )  # fmt: skip
