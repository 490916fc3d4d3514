"""Certificates and keys in files: checked before use, and turned into gRPC's credentials."""

from __future__ import annotations

import ssl
from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Final

import grpc

from ringstep.controller.channels import ChannelTls
from ringstep.controller.tokens import utc_now
from ringstep.controller.x509 import CertificateFacts, read_certificate

if TYPE_CHECKING:
    # Clients use this module too, and need nothing of the server's configuration.
    from ringstep.controller.config import SwitchTlsConfig, TlsConfig

_BEGIN: Final = "-----BEGIN CERTIFICATE-----"
_MINUTE: Final = "%Y-%m-%d %H:%M"
_END: Final = "-----END CERTIFICATE-----"


class TlsFileError(ValueError):
    """A certificate or key that cannot be used. No message holds anything of a key."""


def read_pem(path: Path, what: str) -> bytes:
    """Return a file's bytes; ``what`` says what it should hold.

    Raises:
        TlsFileError: it cannot be read, or holds no PEM block.
    """
    try:
        data = path.read_bytes()
    except OSError as error:
        raise TlsFileError(
            f"{path}: cannot be read ({error.strerror}); give the PEM file of {what}"
        ) from None
    if b"-----BEGIN " not in data:
        raise TlsFileError(f"{path}: holds no PEM block; give the PEM file of {what}")
    return data


def certificates_in(path: Path, what: str) -> list[CertificateFacts]:
    """Return what the certificates of a PEM file say, in the order of the file.

    Raises:
        TlsFileError: it cannot be read, or holds no certificate.
    """
    text = read_pem(path, what).decode("ascii", "replace")
    blocks = [part.partition(_END)[0] for part in text.split(_BEGIN)[1:]]
    if not blocks:
        raise TlsFileError(f"{path}: holds no certificate; give the PEM file of {what}")
    try:
        return [
            read_certificate(ssl.PEM_cert_to_DER_cert(f"{_BEGIN}{block}{_END}")) for block in blocks
        ]
    except ValueError:
        raise TlsFileError(
            f"{path}: holds a certificate that cannot be read; give the PEM file of {what}"
        ) from None


class _EncryptedKeyError(Exception):
    pass


def _no_password() -> str:
    raise _EncryptedKeyError


def checked_pair(cert: Path, key: Path) -> CertificateFacts:
    """Check that a certificate and a private key belong together; return what the former says.

    Raises:
        TlsFileError: a file cannot be read, or they do not belong together. Being expired is no
            error here: see :func:`refuse_untimely`.
    """
    facts = certificates_in(cert, "a certificate")[0]
    read_pem(key, "a private key")
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(cert, key, password=_no_password)
    except _EncryptedKeyError:
        raise TlsFileError(
            f"{key}: is encrypted, and nobody is there to type its password; give the key "
            "unencrypted, readable to the controller alone"
        ) from None
    except (ssl.SSLError, OSError) as error:
        if getattr(error, "reason", "") == "KEY_VALUES_MISMATCH":
            raise TlsFileError(
                f"{key}: is not the key of the certificate {cert}; give the two that were made "
                "together"
            ) from None
        raise TlsFileError(f"{key}: holds no usable private key; give the key of {cert}") from None
    return facts


def refuse_untimely(path: Path, facts: CertificateFacts, now: datetime) -> None:
    """Check that a certificate is in force.

    Raises:
        TlsFileError: it has expired, or is not in force yet.
    """
    if facts.not_after <= now:
        raise TlsFileError(
            f"{path}: the certificate of {shown(facts)} expired on "
            f"{facts.not_after:{_MINUTE}} UTC; renew it"
        )
    if facts.not_before > now:
        raise TlsFileError(
            f"{path}: the certificate of {shown(facts)} is in force from "
            f"{facts.not_before:{_MINUTE}} UTC on, and it is {now:{_MINUTE}}; is the "
            "clock right?"
        )


def shown(facts: CertificateFacts) -> str:
    """Return whose certificate it is, for a message."""
    return repr(facts.names[0] if facts.names else facts.subject)


def read_server_files(
    tls: TlsConfig, now: datetime
) -> tuple[CertificateFacts, bytes, bytes, bytes | None]:
    """Return what the server's certificate says, and the certificate, key and clients' authority.

    Raises:
        TlsFileError: a file cannot be used, or its certificate is not in force.
    """
    facts = checked_pair(tls.cert, tls.key)
    refuse_untimely(tls.cert, facts, now)
    if not facts.names:
        raise TlsFileError(
            f"{tls.cert}: the certificate names no host (subjectAltName), so that no client would "
            "take it; make one for the DNS names or addresses that clients use"
        )
    authority = None
    if tls.client_ca is not None:
        for each in certificates_in(tls.client_ca, "the authority of the clients' certificates"):
            refuse_untimely(tls.client_ca, each, now)
        authority = tls.client_ca.read_bytes()
    return facts, tls.cert.read_bytes(), tls.key.read_bytes(), authority


class ServerTls:
    """TLS of a server: checked when made, and again at each :meth:`reload`.

    Raises:
        TlsFileError: a file cannot be used; the text says which and what would be right.
    """

    def __init__(self, tls: TlsConfig, now: Callable[[], datetime] = utc_now) -> None:
        self._tls = tls
        self._now = now
        self._changed = False
        self._configuration = self._read()
        self.credentials: grpc.ServerCredentials = grpc.dynamic_ssl_server_credentials(
            self._configuration,
            self._fetch,  # type: ignore[arg-type]
            tls.client_ca is not None,
        )

    def _read(self) -> grpc.ServerCertificateConfiguration:
        _, cert, key, authority = read_server_files(self._tls, self._now())
        return grpc.ssl_server_certificate_configuration([(key, cert)], authority)

    def reload(self) -> None:
        """Read the files again; connections made from now on see the new certificate.

        Raises:
            TlsFileError: a file cannot be used; the old certificate stays in force.
        """
        self._configuration = self._read()
        self._changed = True

    def _fetch(self) -> grpc.ServerCertificateConfiguration | None:
        # gRPC asks at each handshake; None: as before.
        if not self._changed:
            return None
        self._changed = False
        return self._configuration


def channel_tls(
    ca: Path | None,
    cert: Path | None,
    key: Path | None,
    server_name: str = "",
    *,
    now: Callable[[], datetime] = utc_now,
) -> ChannelTls:
    """Return the TLS of connections that we open, from PEM files.

    Raises:
        TlsFileError: a file cannot be used, or our own certificate is not in force.
    """
    if (cert is None) != (key is None):
        missing = "certificate" if cert is None else "key"
        raise TlsFileError(f"the {missing} is missing; a certificate and its key go together")
    roots = None
    if ca is not None:
        certificates_in(ca, "the authority that signed the other side's certificate")
        roots = ca.read_bytes()
    if cert is None or key is None:
        return ChannelTls(roots, server_name=server_name)
    refuse_untimely(cert, checked_pair(cert, key), now())
    return ChannelTls(roots, cert.read_bytes(), key.read_bytes(), server_name)


def switch_tls(tls: SwitchTlsConfig | None) -> ChannelTls | None:
    """Return the TLS of sessions with a switch; see :meth:`P4RuntimeConfig.tls_of`.

    Raises:
        TlsFileError: as :func:`channel_tls`.
    """
    return None if tls is None else channel_tls(tls.ca, tls.cert, tls.key, tls.server_name)
