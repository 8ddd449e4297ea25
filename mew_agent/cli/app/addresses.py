"""The addresses that the servers of commands listen on.

Owns the choice of a free port, the errors and warnings about taken ports and reachable servers, the allowed callers,
and the host name for which a certificate is valid. Does not know the servers.
"""

import contextlib
import errno
import socket
import ssl
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

from mew_spaces.errors import PortInUse

from mew_agent.certificates import tls_failure, trust
from mew_agent.cli.app import terminal
from mew_agent.cli.app.options import option
from mew_agent.errors import ConfigError
from mew_agent.gateway_address import is_loopback

if TYPE_CHECKING:  # imports the gateway's code, and most commands here start no gateway
    from mew_listener.listen_address import ListenAddress
    from mew_listener.request_guard import Allowed
    from mew_spaces.gateway.certificate import TlsFiles


@dataclass(frozen=True, slots=True)
class AllowedCallers:
    """The host names and page origins that may use a server, as given on the command line."""

    allow: Annotated[
        list[str] | None,
        option("--allow NAME|URL", "Accept requests to this host, or of web pages of this origin; repeatable."),
    ] = None

    def as_allowed(self) -> "Allowed":
        """Return the same values in the server's form."""
        from mew_listener.request_guard import Allowed

        given = self.allow or []
        hosts, origins = ([one for one in given if ("://" in one) is is_origin] for is_origin in (False, True))
        return Allowed(tuple(hosts), tuple(origins))


def warn_if_reachable(host: str, risk: str) -> None:
    """Warn of a risk if other machines can reach a server on `host`."""
    if not is_loopback(host):
        terminal.warn(f"other machines can reach {host}: {risk}")


@contextlib.contextmanager
def listening_failures(option: str, address: str) -> Iterator[None]:
    """Turn an `OSError` of listening on an address into a `ConfigError` that names the option."""
    try:
        yield
    except OSError as error:
        raise ConfigError(option, f"cannot listen on {address}: {error.strerror or error}") from None


def choose_address(host: str, port: int) -> "ListenAddress":
    """Return the address to listen on; port 0 picks a free port. Raises `PortInUse`, or `ConfigError` for an invalid
    host.
    """
    from mew_listener.listen_address import ListenAddress

    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    # Listen and stop again, to report a port in use at once.
    with listening_failures("--host, --port", f"{host}:{port}"), socket.socket(family, socket.SOCK_STREAM) as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind((host, port))
            listener.listen()
        except OSError as error:
            if error.errno == errno.EADDRINUSE:
                raise PortInUse(host, port) from None
            raise
        return ListenAddress(host, listener.getsockname()[1])


def certified_host(tls: "TlsFiles", address: "ListenAddress") -> str:
    """Return the gateway's host for programs on this machine, one for which its certificate is valid.

    That is the address it listens on, or `localhost`, or for a wildcard address a name in the certificate. Raises
    `ConfigError` if there is none, or if the certificate is not valid now, and `SpacesError` if it cannot be read.
    """
    first = address.connect_host
    hosts = [first, *(["localhost"] if first in ("127.0.0.1", "::1") else [])]
    context = tls.context()
    try:
        names = _names_in_certificate(context, trust(tls.cert), None)
        if first != address.host:
            hosts += [name for name in names if "*" not in name]
        for host in hosts:
            with contextlib.suppress(ssl.SSLCertVerificationError):
                _names_in_certificate(context, trust(tls.cert), host)
                return host
    except ssl.SSLCertVerificationError as error:
        raise ConfigError(str(tls.cert), str(tls_failure(address.http, error))) from None
    problem = f"is for {', '.join(names) or 'no host'}, but programs on this machine connect to {first}"
    raise ConfigError(str(tls.cert), problem, f"a certificate for {first} too, or --host with one of its names")


def _names_in_certificate(server: ssl.SSLContext, client: ssl.SSLContext, host: str | None) -> list[str]:
    """Shake hands in memory as a client that checks this host. Raises `ssl.SSLCertVerificationError`."""
    client.check_hostname = host is not None
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    asking = client.wrap_bio(to_client, to_server, server_hostname=host)
    answering = server.wrap_bio(to_server, to_client, server_side=True)
    for side in (asking, answering, asking):
        with contextlib.suppress(ssl.SSLWantReadError):
            side.do_handshake()
    names: Any = (asking.getpeercert() or {}).get("subjectAltName", ())
    return [str(name) for _, name in names]
