"""What a client shows the controller: its TLS files and its token."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from ringstep.controller.channels import ChannelTls, is_loopback

ENV_TOKEN: Final = "RINGSTEP_TOKEN"
ENV_TOKEN_FILE: Final = "RINGSTEP_TOKEN_FILE"
ENV_CA: Final = "RINGSTEP_CA"
ENV_CERT: Final = "RINGSTEP_CERT"
ENV_KEY: Final = "RINGSTEP_KEY"
ENV_SERVER_NAME: Final = "RINGSTEP_SERVER_NAME"
ENV_TLS: Final = "RINGSTEP_TLS"
ENV_PLAINTEXT_TOKEN: Final = "RINGSTEP_PLAINTEXT_TOKEN"
_YES: Final = frozenset({"1", "true", "yes"})


class CredentialsError(ValueError):
    """Credentials that cannot be used, or must not be sent. Never holds the token."""


@dataclass(frozen=True, slots=True, repr=False)
class ClientCredentials:
    """``tls`` None: plaintext. ``token`` None: the controller is told nothing about the caller.

    ``plaintext_token``: send the token without TLS beyond loopback, where anyone on the way reads
    it.
    """

    tls: ChannelTls | None = None
    token: str | None = None
    plaintext_token: bool = False

    def __repr__(self) -> str:
        return (
            f"ClientCredentials(tls={self.tls is not None}, token={'***' if self.token else None})"
        )


def load_credentials(
    ca: Path | None = None,
    cert: Path | None = None,
    key: Path | None = None,
    token_file: Path | None = None,
    server_name: str = "",
    env: Mapping[str, str] = os.environ,
    *,
    tls: bool = False,
    plaintext_token: bool = False,
) -> ClientCredentials:
    """Return the credentials of options, and of the environment where an option is not given.

    Any of the files, and ``server_name``, makes it TLS; ``tls`` does so without one, with the
    system's authorities.

    Raises:
        CredentialsError: a file cannot be read or used, or holds no token.
    """
    ca, cert, key = (
        ca or _path(env, ENV_CA),
        cert or _path(env, ENV_CERT),
        key or _path(env, ENV_KEY),
    )
    server_name = server_name or env.get(ENV_SERVER_NAME, "")
    channel = None
    if ca or cert or key or server_name or tls or env.get(ENV_TLS, "").lower() in _YES:
        # Commands without TLS need none of this, and start the sooner.
        from ringstep.controller.tlsfiles import TlsFileError, channel_tls

        try:
            channel = channel_tls(ca, cert, key, server_name)
        except TlsFileError as error:
            raise CredentialsError(str(error)) from None
    return ClientCredentials(
        channel,
        _token(token_file, env),
        plaintext_token or env.get(ENV_PLAINTEXT_TOKEN, "").lower() in _YES,
    )


def _path(env: Mapping[str, str], name: str) -> Path | None:
    value = env.get(name, "")
    return Path(value) if value else None


def _token(file: Path | None, env: Mapping[str, str]) -> str | None:
    """Return the token: an option beats the variables, and the token itself beats its file."""
    source = str(file) if file is not None else f"${ENV_TOKEN}"
    token = env.get(ENV_TOKEN, "") if file is None else ""
    if not token:
        file = file or _path(env, ENV_TOKEN_FILE)
        if file is None:
            return None
        source = str(file)
        try:
            token = file.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            reason = error.strerror if isinstance(error, OSError) else "not text"
            raise CredentialsError(
                f"{source}: cannot be read ({reason}); give a file that holds the token"
            ) from None
    token = token.strip()
    if not token or not token.isascii() or not token.isprintable() or " " in token:
        raise CredentialsError(
            f"{source}: does not hold a token; it is one line, as 'ringstep controller token new' "
            "prints it"
        )
    return token


def metadata(credentials: ClientCredentials, target: str) -> tuple[tuple[str, str], ...]:
    """Return the metadata of calls to ``HOST:PORT``.

    Raises:
        CredentialsError: the token would go to another machine in plaintext.
    """
    if credentials.token is None:
        return ()
    if credentials.tls is None and not is_loopback(target) and not credentials.plaintext_token:
        raise CredentialsError(
            f"the token is not sent to {target} without TLS, where anyone on the way could read "
            "it; give --ca (or --tls for the system's authorities), or set "
            f"{ENV_PLAINTEXT_TOKEN}=1 if you accept that"
        )
    return (("authorization", f"Bearer {credentials.token}"),)


_HINTS: Final = (
    ("certificate has expired", "the controller's certificate has expired: renew it there"),
    (
        "certificate is not yet valid",
        "the controller's certificate is not in force yet: compare the two clocks",
    ),
    (
        "Hostname Verification Check failed",
        "the controller's certificate is not for this name: give a name that it carries, as the "
        "address or with --server-name",
    ),
    (
        "CERTIFICATE_VERIFY_FAILED",
        "the controller's certificate is of another authority: give the one that signed it, with "
        "--ca",
    ),
    (
        "WRONG_VERSION_NUMBER",
        "there is no TLS there: leave out --ca and --tls, or mend the address",
    ),
)
_CLOSED: Final = "Socket closed"


def connection_hint(details: str, tls: ChannelTls | None) -> str:
    """Return what is wrong with the certificates where a call was UNAVAILABLE with ``details``.

    Empty where these do not speak of certificates. ``tls``: what the call was made with.
    """
    for sign, hint in _HINTS:
        if sign in details:
            return hint
    if _CLOSED not in details:
        return ""
    # All that a client sees of a refusal by the other side.
    if tls is None:
        return "the connection was closed at once: if the controller speaks TLS, give --ca"
    if tls.cert is None:
        return (
            "the connection was closed at once: if the controller asks for certificates, give "
            "--cert and --key"
        )
    return (
        "the connection was closed at once: our certificate may be of another authority than the "
        "controller's client_ca, or have expired"
    )
