"""The tokens file: who may call the controller. It holds hashes, never a token."""

from __future__ import annotations

import hashlib
import hmac
import json
import secrets
import stat
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Final, Self

from pydantic import AfterValidator, ConfigDict, Field, StringConstraints, model_validator

from ringstep.controller.jobs import NAME
from ringstep.fabric.tomlfile import FileError, Problems, TomlTable, parse_toml, read_text

TOKEN_PREFIX: Final = "rs_"
"""Lets people and scanners of repositories see what a leaked string is."""
_TOKEN_BYTES: Final = 32
MAX_TOKEN: Final = 512
_EXAMPLES = {
    "name": 'name = "slurm"',
    "role": 'role = "scheduler"',
    "sha256": 'sha256 = "…", as "ringstep controller token new" prints it',
    "token": "[[token]] with name, role and sha256",
}


class TokensError(FileError):
    """A tokens file that cannot be used; ``problems`` holds one line per mistake."""


class Role(StrEnum):
    """What a caller may do; each one also what those before it may."""

    READER = "reader"
    SCHEDULER = "scheduler"
    OPERATOR = "operator"

    def includes(self, other: Role) -> bool:
        """Say whether this role may do all that another may."""
        return _RANK[self] >= _RANK[other]


_RANK: Final = {role: rank for rank, role in enumerate(Role)}


@dataclass(frozen=True, slots=True)
class Caller:
    """Who calls. ``tenant`` None: for all tenants."""

    name: str
    role: Role
    tenant: str | None = None

    def may_see(self, tenant: str) -> bool:
        """Say whether jobs of a tenant may be shown to the caller."""
        return self.tenant is None or self.tenant == tenant


LOCAL: Final = Caller("local", Role.OPERATOR)
"""The caller where nobody is asked who he is."""


def generate_token() -> str:
    """Return a new random token; show it once, and keep only its :func:`token_digest`."""
    return TOKEN_PREFIX + secrets.token_urlsafe(_TOKEN_BYTES)


def token_digest(token: str) -> str:
    """Return what the tokens file holds of a token: its SHA-256 in hex."""
    return hashlib.sha256(token.encode()).hexdigest()


def token_entry(name: str, role: Role, tenant: str, token: str) -> str:
    """Return what a tokens file holds of a token.

    Raises:
        ValueError: no name, or a tenant that is none.
    """
    for what, value in (("--name", name), ("--tenant", tenant)):
        if (value or what == "--name") and not NAME.match(value):
            raise ValueError(
                f"{what} {value!r}: use a letter, then letters, digits, '_', '-' or '.'"
            )
    lines = ["[[token]]", f"name = {json.dumps(name)}", f"role = {json.dumps(role.value)}"]
    if tenant:
        lines.append(f"tenant = {json.dumps(tenant)}")
    lines.append(f'sha256 = "{token_digest(token)}"')
    return "\n".join(lines) + "\n"


def _aware(value: datetime | None) -> datetime | None:
    if value is not None and value.tzinfo is None:
        raise ValueError(
            f"{value.isoformat()} has no time zone; write for example 2030-01-31T00:00:00Z"
        )
    return value


def _named(value: str) -> str:
    if not value or not value.isprintable():
        raise ValueError(f"{value!r} is not a name; write what tells the callers apart")
    return value


class _TokenTable(TomlTable):
    # A token put where its hash belongs must not come back in a message.
    model_config = ConfigDict(hide_input_in_errors=True)

    name: Annotated[str, AfterValidator(_named)]
    role: Role
    tenant: Annotated[str, StringConstraints(min_length=1)] | None = None
    sha256: str = Field(repr=False)
    expires: Annotated[datetime | None, AfterValidator(_aware)] = None

    @model_validator(mode="after")
    def _usable(self) -> Self:
        if len(self.sha256) != 64 or not set(self.sha256.lower()) <= set("0123456789abcdef"):
            raise ValueError(
                "sha256 is not a SHA-256 in hex (64 digits); 'ringstep controller token new' "
                "prints a token and its hash: only the hash belongs here"
            )
        if self.role is Role.OPERATOR and self.tenant is not None:
            raise ValueError(
                f"an operator commands the whole fabric, not only tenant {self.tenant!r}; leave "
                "tenant out, or use role scheduler"
            )
        return self


class _TokensFile(TomlTable):
    token: Annotated[list[_TokenTable], Field(min_length=1)]


@dataclass(frozen=True, slots=True)
class Tokens:
    """The callers of one tokens file. ``warnings``: what is unwise about the file."""

    source: str
    entries: Sequence[_TokenTable]
    warnings: tuple[str, ...] = ()

    def caller(self, token: str, now: datetime) -> Caller | None:
        """Return whose token it is, or None where it is nobody's or has expired.

        Every hash is compared, each in constant time: how long it takes tells nothing.
        """
        digest = token_digest(token[:MAX_TOKEN])
        found: _TokenTable | None = None
        for entry in self.entries:
            if hmac.compare_digest(digest, entry.sha256.lower()):
                found = entry
        if found is None or (found.expires is not None and found.expires <= now):
            return None
        return Caller(found.name, found.role, found.tenant)

    def expired(self, now: datetime) -> list[str]:
        """Return the names of the callers whose token has expired."""
        return [each.name for each in self.entries if each.expires and each.expires <= now]


def load_tokens(path: Path) -> Tokens:
    """Read and check a tokens file.

    Raises:
        TokensError: it cannot be read, anyone may write to it, or it has mistakes. No message
            repeats a token or a hash.
    """
    text = read_text(path, "a tokens file", TokensError)
    file = parse_toml(text, str(path), _TokensFile, _EXAMPLES, TokensError)
    problems = Problems(text, str(path), TokensError)
    for what in ("name", "sha256"):
        seen: set[str] = set()
        for index, entry in enumerate(file.token):
            if (value := str(getattr(entry, what)).lower()) in seen:
                shown = f"{entry.name!r} " if what == "name" else ""
                problems.add(
                    ("token", index, what), f"{shown}is there twice; each caller has a token of his"
                )
            seen.add(value)
    problems.raise_if_any()
    return Tokens(str(path), tuple(file.token), _permissions(path))


def _permissions(path: Path) -> tuple[str, ...]:
    mode = stat.S_IMODE(path.stat().st_mode)
    if mode & stat.S_IWOTH:
        raise TokensError(
            str(path),
            [f"{path}: everybody may write to it, and so add a token; chmod 640 {path}"],
        )
    if mode & (stat.S_IROTH | stat.S_IWGRP):
        return (
            f"{path}: others may read it or its group may write to it (mode {mode:03o}); "
            f"chmod 640 {path}",
        )
    return ()


def utc_now() -> datetime:
    """Return the time, with its zone."""
    return datetime.now(UTC)
