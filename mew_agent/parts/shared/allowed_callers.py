"""The option `--allow` of commands that serve over HTTP."""

from dataclasses import dataclass
from typing import Annotated

from mew_listener.request_guard import Allowed

from mew_agent.cli.app.options import option


@dataclass(frozen=True, slots=True)
class AllowedCallers:
    """The host names and the pages that may use a server, as given on the command line."""

    allow: Annotated[
        list[str] | None,
        option("--allow NAME|URL", "Accept requests to this host, or of web pages of this origin; repeatable."),
    ] = None

    def as_allowed(self) -> Allowed:
        """Return the same for the server."""
        given = self.allow or []
        hosts, origins = ([one for one in given if ("://" in one) is is_origin] for is_origin in (False, True))
        return Allowed(tuple(hosts), tuple(origins))
