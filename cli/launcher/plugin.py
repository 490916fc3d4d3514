"""The plugin for NCCL: found where it is built, else built."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from ringstep.cli.launcher.coordinator import Lines, last_words, spawn_tethered
from ringstep.cli.launcher.say import Say
from ringstep.hostlib.native.build import built, missing_tools

_BUILD_S: Final = 180.0
_SAY_S: Final = 2.0


async def find_plugin(env: Mapping[str, str], say: Say) -> tuple[Path | None, str]:
    """Return the plugin's path, or None and why there is none."""
    found = built()
    if found is not None:
        return found.plugin, ""
    missing = missing_tools()
    if missing is not None:
        return None, f"the plugin is not built, and cannot be: {missing}"
    log = Lines()
    # A process, so that it ends with us: compilers run for seconds.
    child = spawn_tethered(["ringstep.hostlib.native.build"], env, log=log.write_fd)
    log.started()
    try:
        await asyncio.wait({child.exited}, timeout=_SAY_S)
        if not child.exited.done():
            say.note("building the plugin for NCCL, once")
            await asyncio.wait({child.exited}, timeout=_BUILD_S)
        if not child.exited.done():
            return None, f"the plugin is not built after {_BUILD_S:g} s"
        await log.ended(1.0)
        found = built() if child.exited.result() == 0 else None
        if found is None:
            said = last_words(log) or f"status {child.exited.result()}"
            return None, f"the plugin cannot be built: {said}"
        return found.plugin, ""
    finally:
        if not child.exited.done():
            child.send_group(signal.SIGKILL)
        log.close()
