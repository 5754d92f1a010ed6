"""Who may ask: bearer tokens from a file, TLS and mutual TLS.

The file has one token a line, with options after it; empty lines and `#` comments are skipped:

    3f0c5e...  name=trainer  weight=4
    9a77d1...  name=tools    max_in_flight=8  runs_per_s=20

It is read again when it changes. A file that has become unreadable leaves the old tokens in force.
"""

import hashlib
import hmac
import logging
import math
import os
import ssl
import time
from collections.abc import Iterable

import grpc

from sandbox_service.scheduler import Tenant

log = logging.getLogger(__name__)

_MIN_TOKEN_CHARS = 16
_CHECK_EVERY_S = 1.0


class AuthError(ValueError):
    """A file of tokens, keys or certificates cannot be used; the message names it."""


class Unauthenticated(Exception):
    """The caller showed no token that is known."""


class TokenFile:
    """The tokens of a file and the tenants that they stand for."""

    def __init__(self, path: str) -> None:
        """Raises AuthError."""
        self._path = path
        self._version = _version(path)
        self._tenants = _read(path)
        self._checked_s = time.monotonic()

    def tenant(self, metadata: Iterable[tuple[str, str | bytes]] | None) -> Tenant:
        """The tenant of a call. Raises Unauthenticated."""
        if time.monotonic() - self._checked_s > _CHECK_EVERY_S:
            self._reload()
        header = next((value for key, value in metadata or () if key == "authorization"), "")
        if isinstance(header, bytes):
            header = header.decode("latin-1")
        scheme, _, token = header.partition(" ")
        if scheme.lower() != "bearer" or not token:
            raise Unauthenticated(
                "this service wants a token: send the metadata `authorization: Bearer TOKEN`"
            )
        shown, found = token.strip().encode("latin-1", "replace"), None
        for known, tenant in self._tenants.items():  # all of them: the time tells nothing
            if hmac.compare_digest(known, shown):
                found = tenant
        if found is None:
            raise Unauthenticated("the token is not one of this service's; ask for a new one")
        return found

    def _reload(self) -> None:
        self._checked_s = time.monotonic()
        try:
            version = _version(self._path)
            if version != self._version:
                self._tenants = _read(self._path)
                self._version = version
                log.warning("read %d tokens again", len(self._tenants))
        except AuthError as error:
            log.error("the old tokens stay in force: %s", error)


def _version(path: str) -> tuple[int, int, int]:
    try:
        status = os.stat(path)
    except OSError as error:
        raise AuthError(f"cannot read {path}: {error.strerror}") from None
    return status.st_mtime_ns, status.st_size, status.st_ino


def _read(path: str) -> dict[bytes, Tenant]:
    try:
        with open(path, encoding="utf-8") as file:
            lines = file.read().split("\n")
    except (OSError, UnicodeDecodeError) as error:
        raise AuthError(f"cannot read the tokens: {error}") from None
    tenants = {}
    for number, line in enumerate(lines, 1):
        words = line.partition("#")[0].split()
        if words:
            token, *options = words
            if len(token) < _MIN_TOKEN_CHARS or not token.isascii():
                raise AuthError(
                    f"{path}, line {number}: a token needs {_MIN_TOKEN_CHARS} or more ASCII "
                    f"characters, for example from `openssl rand -hex 32`"
                )
            tenants[token.encode()] = _tenant(token, options, f"{path}, line {number}")
    if not tenants:
        raise AuthError(f"{path} holds no token")
    return tenants


def _tenant(token: str, options: list[str], where: str) -> Tenant:
    name = hashlib.sha256(token.encode()).hexdigest()[:8]
    weight, max_in_flight, runs_per_s = 1.0, 0, 0.0
    for option in options:
        key, _, value = option.partition("=")
        try:
            match key:
                case "name":
                    name = value
                case "weight":
                    weight = float(value)
                case "max_in_flight":
                    max_in_flight = int(value)
                case "runs_per_s":
                    runs_per_s = float(value)
                case _:
                    raise AuthError(
                        f"{where}: unknown option {key!r}; known: name, weight, max_in_flight, "
                        f"runs_per_s"
                    )
        except ValueError as error:
            if isinstance(error, AuthError):
                raise
            raise AuthError(f"{where}: {option!r} is not a number") from None
    is_finite = math.isfinite(weight) and math.isfinite(runs_per_s)
    if not is_finite or weight <= 0 or max_in_flight < 0 or runs_per_s < 0 or not name:
        raise AuthError(f"{where}: weights are above 0, quotas not below 0, names not empty")
    return Tenant(name, weight, max_in_flight, runs_per_s)


def server_credentials(
    cert_file: str, key_file: str, client_ca_file: str = ""
) -> grpc.ServerCredentials:
    """TLS with the service's certificate; with `client_ca_file`, clients must show one as well.

    The files are looked at again for every new connection. Files that cannot be used leave the old
    ones in force. Raises AuthError naming the file that cannot be used.
    """
    certificates = _Certificates(cert_file, key_file, client_ca_file)
    return grpc.dynamic_ssl_server_credentials(
        certificates.read(), certificates.read_again, bool(client_ca_file)
    )


class _Certificates:
    """The files of a service's TLS."""

    def __init__(self, cert_file: str, key_file: str, client_ca_file: str) -> None:
        self._cert_file, self._key_file, self._ca_file = cert_file, key_file, client_ca_file
        self._versions: list[tuple[int, int, int]] = []

    def read(self) -> grpc.ServerCertificateConfiguration:
        """Raises AuthError."""
        self._versions = self._read_versions()
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        try:
            context.load_cert_chain(self._cert_file, self._key_file)
            if self._ca_file:
                context.load_verify_locations(self._ca_file)
        except (OSError, ssl.SSLError) as error:
            names = " and ".join(filter(None, (self._cert_file, self._key_file, self._ca_file)))
            raise AuthError(
                f"cannot use {names}: the files must be PEM and belong together ({error})"
            ) from None
        return grpc.ssl_server_certificate_configuration(
            [(read_file(self._key_file), read_file(self._cert_file))],
            root_certificates=read_file(self._ca_file) if self._ca_file else None,
        )

    def read_again(self) -> grpc.ServerCertificateConfiguration | None:
        """For a new connection, in a thread of gRPC: None if nothing has changed."""
        try:
            if self._read_versions() == self._versions:
                return None
            configuration = self.read()
        except AuthError as error:
            log.error("the old certificates stay in force: %s", error)
            return None
        log.warning("read the certificates again")
        return configuration

    def _read_versions(self) -> list[tuple[int, int, int]]:
        paths = (self._key_file, self._cert_file, self._ca_file)
        return [_version(path) for path in paths if path]


def read_file(path: str) -> bytes:
    """The content of a file of keys or certificates. Raises AuthError."""
    try:
        with open(path, "rb") as file:
            return file.read()
    except OSError as error:
        raise AuthError(f"cannot read {path}: {error.strerror}") from None
