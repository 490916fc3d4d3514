"""Finds Mininet, which Debian installs where a virtual environment does not look.

Nothing here imports Mininet before it is asked to.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
import shutil
import subprocess
import sys
import warnings
from pathlib import Path
from typing import Final

DIST_PACKAGES: Final = (Path("/usr/lib/python3/dist-packages"),)
_PROGRAMS: Final = ("mnexec", "ip", "tc", "ifconfig")
BMV2_VARIABLE: Final = "RINGSTEP_SIMPLE_SWITCH_GRPC"
BMV2: Final = "simple_switch_grpc"
HOW_TO_INSTALL: Final = "apt-get install --no-install-recommends mininet"


class LabUnavailable(RuntimeError):
    """This machine, or this user, cannot run the lab; the text says why and what would help."""


def load_mininet() -> None:
    """Make ``import mininet`` work.

    Where the environment has no Mininet of its own, the distribution's package is put in, and it
    alone: other packages of the distribution stay out of the environment.

    Raises:
        LabUnavailable: it is not installed, or does not fit this Python.
    """
    if "mininet" not in sys.modules and importlib.util.find_spec("mininet") is None:
        for folder in DIST_PACKAGES:
            package = folder / "mininet"
            spec = importlib.util.spec_from_file_location(
                "mininet", package / "__init__.py", submodule_search_locations=[str(package)]
            )
            if (package / "__init__.py").is_file() and spec is not None and spec.loader is not None:
                module = importlib.util.module_from_spec(spec)
                sys.modules["mininet"] = module
                spec.loader.exec_module(module)
                break
        else:
            raise LabUnavailable(f"Mininet is not installed; {HOW_TO_INSTALL}")
    try:
        with warnings.catch_warnings():
            # distutils, which Python 3.11 warns of: see below for what comes after it.
            warnings.simplefilter("ignore", DeprecationWarning)
            importlib.import_module("mininet.net")
    except ImportError as error:
        raise LabUnavailable(
            f"Mininet does not fit Python {sys.version_info.major}.{sys.version_info.minor} "
            f"({error}); with Python 3.12 or newer, `pip install setuptools` brings distutils back"
        ) from None


def why_not() -> str | None:
    """Say why the lab cannot run here, or return None where it can."""
    if not sys.platform.startswith("linux"):
        return f"the lab needs Linux's network namespaces, this is {sys.platform}"
    if os.geteuid() != 0:
        return "the lab needs root, for network namespaces and interfaces; use sudo"
    missing = [program for program in _PROGRAMS if shutil.which(program) is None]
    if missing:
        return f"Mininet is not installed ({', '.join(missing)} not found); {HOW_TO_INSTALL}"
    tried = subprocess.run(
        ["unshare", "--net", "true"], capture_output=True, text=True, check=False
    )
    if tried.returncode:
        return f"this machine gives root no network namespace ({tried.stderr.strip()})"
    try:
        load_mininet()
    except LabUnavailable as error:
        return str(error)
    return None


def require_lab() -> None:
    """Raise LabUnavailable where the lab cannot run."""
    reason = why_not()
    if reason is not None:
        raise LabUnavailable(reason)


def find_bmv2() -> str:
    """Return the path of BMv2's P4Runtime server.

    Raises:
        LabUnavailable: there is none; the text says how to get one.
    """
    named = os.environ.get(BMV2_VARIABLE)
    found = shutil.which(named or BMV2)
    if found is None:
        where = f"${BMV2_VARIABLE} names {named!r}, which" if named else f"{BMV2} on the PATH"
        raise LabUnavailable(
            f"--engine bmv2: {where} cannot be run; build p4lang/behavioral-model with PI and "
            f"name its {BMV2} in ${BMV2_VARIABLE}, or use --engine softswitch"
        )
    return found
