"""How clients reach the service: TLS, token, retries, keepalive. Shared by all clients here."""

import json
from dataclasses import dataclass
from typing import Any

import grpc

from sandbox_service import limits
from sandbox_service.auth import AuthError, read_file

# Runs have no side effects, so they may be sent again; never at the same time (no hedging).
SERVICE_CONFIG = {
    "methodConfig": [
        {
            "name": [
                {"service": "codea1.sandbox.v1.Sandbox", "method": method}
                for method in ("Run", "GetInfo")
            ],
            "retryPolicy": {
                "maxAttempts": 5,
                "initialBackoff": "0.1s",
                "maxBackoff": "5s",
                "backoffMultiplier": 2,
                "retryableStatusCodes": ["UNAVAILABLE", "RESOURCE_EXHAUSTED"],
            },
        }
    ]
}
_OPTIONS = (
    ("grpc.max_receive_message_length", limits.MAX_MESSAGE_BYTES),
    ("grpc.max_send_message_length", limits.MAX_MESSAGE_BYTES),
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 2000),
    ("grpc.keepalive_time_ms", 20_000),
    ("grpc.keepalive_timeout_ms", 20_000),
    # Two clients in one process have connections of their own.
    ("grpc.use_local_subchannel_pool", 1),
)
_RETRIES = (("grpc.service_config", json.dumps(SERVICE_CONFIG)), ("grpc.enable_retries", 1))


@dataclass(frozen=True)
class Security:
    """How to prove who is who; all empty: plain text and no token.

    Attributes:
      ca_file: certificates (PEM) that the service's one must come from; "system": the machine's.
      cert_file: the client's own certificate (PEM), where the service asks for one.
      key_file: the key of `cert_file`.
      token_file: file with the bearer token, read at every connection.
      server_name: the name in the service's certificate, if it is not the host of the address.
    """

    ca_file: str = ""
    cert_file: str = ""
    key_file: str = ""
    token_file: str = ""
    server_name: str = ""

    def metadata(self) -> tuple[tuple[str, str], ...]:
        """What to send along with every call. Raises AuthError."""
        if not self.token_file:
            return ()
        token = read_file(self.token_file).split()
        if not token:
            raise AuthError(f"{self.token_file} holds no token")
        return (("authorization", f"Bearer {token[0].decode('latin-1')}"),)

    def certificates(self) -> tuple[bytes | None, bytes | None, bytes | None]:
        """What the files hold now: roots to trust, own key, own certificate. Raises AuthError."""
        if bool(self.cert_file) != bool(self.key_file):
            raise AuthError("cert_file and key_file go together; set both or neither")
        if self.cert_file and not self.ca_file:
            raise AuthError("cert_file needs a ca_file (or ca_file='system')")
        return (
            read_file(self.ca_file) if self.ca_file not in ("", "system") else None,
            read_file(self.key_file) if self.key_file else None,
            read_file(self.cert_file) if self.cert_file else None,
        )

    def _credentials(self) -> grpc.ChannelCredentials | None:
        certificates = self.certificates()
        return grpc.ssl_channel_credentials(*certificates) if self.ca_file else None


def open_channel(
    address: str, security: Security | None = None, *, retries: bool = True, is_async: bool = False
) -> Any:
    """A `grpc.Channel`, or a `grpc.aio.Channel` if `is_async`. Raises AuthError.

    `retries` has calls of Run and GetInfo repeated by gRPC itself, by `SERVICE_CONFIG`.
    """
    security = security or Security()
    options = [*_OPTIONS, *(_RETRIES if retries else (("grpc.enable_retries", 0),))]
    if security.server_name:
        options.append(("grpc.ssl_target_name_override", security.server_name))
    credentials = security._credentials()
    module: Any = grpc.aio if is_async else grpc
    if credentials is None:
        return module.insecure_channel(address, options=options)
    return module.secure_channel(address, credentials, options=options)
