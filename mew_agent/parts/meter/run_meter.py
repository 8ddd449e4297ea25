"""`mew meter`: relays an agent's model calls and reports how full its context is, in the foreground."""

import logging
from typing import Annotated, Final

from mew_agent.cli.app import terminal
from mew_agent.cli.app.addresses import AllowedCallers, listening_failures, warn_if_reachable
from mew_agent.cli.app.options import OUTPUT, LogLevelOption, ProgramConnection, option
from mew_agent.cli.remote.identity import find_identity
from mew_agent.errors import ConfigError
from mew_agent.program import run_until_signal

DEFAULT_LISTEN: Final = "127.0.0.1:8191"


def meter(
    upstream: Annotated[str, option("--upstream URL", "Model server to relay to.")],
    listen: Annotated[
        str, option("--listen HOST:PORT", "Address to listen on; port 0 picks a free port.")
    ] = DEFAULT_LISTEN,
    window: Annotated[int | None, option("--window TOKENS", "Size of the agent's window.", min=1)] = None,
    log_level: LogLevelOption = "info",
    *,
    callers: AllowedCallers,
    connection: ProgramConnection,
) -> None:
    """Report the context of an agent by relaying its model calls.

    The agent uses the printed URL in place of its model server. Requests and responses pass unchanged; API keys and
    texts are neither stored nor logged. With --json, prints one line per call that says whether it counts.
    """
    from mew_agent.participant.participant import Participant
    from mew_agent.parts.meter.meter import run_meter
    from mew_agent.parts.shared.relay import checked_upstream

    terminal.configure_logging(log_level)
    for library in ("httpx2", "httpcore2"):  # at level debug, they would log the headers of answers
        logging.getLogger(library).setLevel(logging.WARNING)
    checked_upstream(upstream)
    host, port = parsed_listen(listen)
    who = find_identity(connection)
    warn_if_reachable(host, "anyone there can call the model server through this meter")

    def ready(url: str) -> None:
        if OUTPUT.is_json:
            terminal.print_json({"url": url, "upstream": upstream, "participant": who.participant})
        else:
            terminal.print_line(f"{who.participant} joined '{who.space}'; in place of {upstream}, use {url}")

    async def run() -> None:
        me = Participant(who.ws_url, space=who.space, id=who.participant, token=who.token)
        on_call = (lambda call: terminal.print_json(call.as_json())) if OUTPUT.is_json else None
        with listening_failures("--listen", f"{host}:{port}"):
            await run_meter(
                me,
                upstream,
                host=host,
                port=port,
                window=window,
                on_call=on_call,
                ready=ready,
                allowed=callers.as_allowed(),
            )

    run_until_signal(run)


def parsed_listen(text: str) -> tuple[str, int]:
    """Return host and port of `--listen`: `HOST:PORT`, `:PORT` or `PORT`. Raises `ConfigError`."""
    host, _, port = text.rpartition(":")
    if not port.isdecimal() or int(port) > 65535:
        raise ConfigError("--listen", f"{text!r} is not an address", "HOST:PORT, such as 127.0.0.1:8191")
    return host.strip("[]") or "127.0.0.1", int(port)
