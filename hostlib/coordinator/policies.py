"""Names of policies: ``nccl``, ``fixed:FILE``, ``autoccl``, ``dynamic``, ``module:factory``."""

from __future__ import annotations

import importlib
import re
from typing import Final

from ringstep.hostlib.coordinator.policy import (
    CallKey,
    Factory,
    Options,
    Policy,
    PolicyError,
    Sample,
)
from ringstep.hostlib.shm import Decision

__all__ = ["Nccl", "make", "names"]


class Nccl:
    """Leaves NCCL alone."""

    name = "nccl"
    version = 1
    static = True

    def observe(self, sample: Sample) -> None:
        """Nothing to learn."""

    def process(self, key: CallKey) -> Decision | None:
        """NCCL decides."""


_KNOWN: Final[dict[str, str]] = {
    "nccl": "ringstep.hostlib.coordinator.policies:nccl",
    "fixed": "ringstep.hostlib.coordinator.fixed:make",
    "autoccl": "ringstep.hostlib.coordinator.autoccl:make",
    "dynamic": "ringstep.hostlib.dynamic:make",
}
"""Name and where its factory is: a function that takes :class:`policy.Options`."""

_PLACE: Final = re.compile(r"[A-Za-z_][\w.]*\.[\w.]+:[A-Za-z_]\w*|[A-Za-z_]\w*:[A-Za-z_]\w*")


def nccl(options: Options) -> Policy:
    """Return the policy that leaves NCCL alone."""
    if options.argument:
        raise PolicyError(f"policy nccl takes nothing after a colon, not {options.argument!r}")
    return Nccl()


def names() -> tuple[str, ...]:
    """Return the names of the policies that come with Ringstep."""
    return tuple(_KNOWN)


def make(wanted: str, options: Options) -> Policy:
    """Return the policy named on a command line.

    Args:
        wanted: ``nccl``, ``fixed:FILE``, ``autoccl``, ``autoccl:FILE`` (start from a saved table),
            ``dynamic``, or ``module:factory`` of a module that can be imported.
        options: everything else.

    Raises:
        PolicyError: there is none of this name, or it cannot be made.
    """
    name, _, argument = wanted.partition(":")
    place = _KNOWN.get(name)
    if place is None:
        if not _PLACE.fullmatch(wanted):
            raise PolicyError(
                f"policy {wanted!r}: choose {', '.join(_KNOWN)} (fixed:FILE), or module:factory"
            )
        place, argument = wanted, ""
    factory = _factory(name, place)
    try:
        policy = factory(Options(argument, options.explore_share, options.seed, options.folder))
    except PolicyError:
        raise
    except Exception as error:
        raise PolicyError(f"policy {wanted!r} cannot be made: {error!r}") from error
    missing = [part for part in ("observe", "process") if not callable(getattr(policy, part, None))]
    if missing:
        raise PolicyError(f"policy {wanted!r}: its factory's answer has no {missing[0]}()")
    for attribute, default in (("name", wanted), ("version", 1), ("static", False)):
        if not hasattr(policy, attribute):
            setattr(policy, attribute, default)
    return policy  # type: ignore[no-any-return]


def _factory(name: str, place: str) -> Factory:
    module_name, _, attribute = place.partition(":")
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name is not None and module_name.startswith(error.name):
            raise PolicyError(
                f"policy {name!r} is not installed: there is no module {module_name}"
            ) from error
        raise PolicyError(f"policy {name!r} needs the module {error.name}: install it") from error
    except Exception as error:
        raise PolicyError(
            f"policy {name!r}: {module_name} cannot be imported: {error!r}"
        ) from error
    factory = getattr(module, attribute, None)
    if not callable(factory):
        raise PolicyError(f"policy {name!r}: {module_name} has no function {attribute}")
    return factory  # type: ignore[no-any-return]
