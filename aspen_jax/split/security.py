"""Who may speak with whom: certificates, tokens, and plain text on this machine alone."""

from __future__ import annotations

import dataclasses
import ipaddress
from pathlib import Path

import grpc

from aspen_jax.errors import InputError
from aspen_jax.files import SMALL, read_file


@dataclasses.dataclass(frozen=True, repr=False)
class Tls:
    """Certificates of one side, PEM.

    A server needs `certificate` and `key`. With `roots` it admits only clients whose certificate these have signed. A client
    needs `roots`, or trusts the system's, and `certificate` and `key` where the server asks for them.

    Attributes:
        certificate: own certificate, and those that lead from it to a root.
        key: own private key.
        roots: certificates of those whose signature is trusted.
    """

    certificate: bytes | None = None
    key: bytes | None = None
    roots: bytes | None = None

    @staticmethod
    def load(certificate: Path | None = None, key: Path | None = None, roots: Path | None = None) -> Tls:
        """Read the files.

        Raises:
            InputError: a file cannot be read.
        """
        try:
            return Tls(*(None if path is None else read_file(path, SMALL) for path in (certificate, key, roots)))
        except OSError as error:
            raise InputError(f"{error.filename!r} cannot be read: {error.strerror}; name a PEM file") from error

    def for_server(self) -> grpc.ServerCredentials:
        """What gRPC's server takes.

        Raises:
            InputError: certificate or key is missing.
        """
        if self.certificate is None or self.key is None:
            raise InputError("a server with TLS needs a certificate and its key; pass both")
        return grpc.ssl_server_credentials([(self.key, self.certificate)], self.roots, self.roots is not None)

    def for_client(self) -> grpc.ChannelCredentials:
        """What gRPC's channel takes."""
        return grpc.ssl_channel_credentials(self.roots, self.key, self.certificate)


def check_plain_text(host: str, plain_text: bool) -> None:
    """See that what is not encrypted stays on this machine, unless the user says otherwise.

    Raises:
        InputError: the host is another machine, and `plain_text` is False.
    """
    if not (plain_text or is_loopback(host)):
        raise InputError(f"{host!r} is not this machine, and without TLS all can read and forge; pass tls=, or plain_text=True")


def is_loopback(host: str) -> bool:
    """Whether a host, as 127.0.0.1, ::1 or localhost, is this machine."""
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return host == "localhost"


def check_address(address: str) -> str:
    """The host of an address, HOST:PORT.

    Raises:
        InputError: it is no such address.
    """
    host, _, port = address.rpartition(":")
    if not (host and port.isascii() and port.isdecimal()):
        raise InputError(f"{address!r} is no address; write HOST:PORT")
    check_port(int(port), least=1)
    return host


def check_port(port: int, *, least: int = 0) -> None:
    """See that there is such a port.

    Raises:
        InputError: there is none.
    """
    if isinstance(port, bool) or not isinstance(port, int) or not least <= port < 1 << 16:
        raise InputError(f"there is no port {port!r}; take an integer from {least} to {(1 << 16) - 1}")


def check_token(token: str | None) -> None:
    """See that a token can be sent.

    Raises:
        InputError: it is empty, or has characters that gRPC cannot send.
    """
    if token is not None and not (token and token.isascii() and token.isprintable() and " " not in token):
        raise InputError("the token must be printable ASCII without spaces; take a long random text, or None to admit all")
