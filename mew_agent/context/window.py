"""[pure] How large the context window is, and how that is known.

Order of belief: what the user configured, what the server's running instance says, the model's trained maximum,
our default. What a server says in an overflow error is what its running instance enforces, so it counts as loaded.
"""

from mew_agent.model.interface import Window

DEFAULT_WINDOW_TOKENS = 128_000

_ORDER = ("assumed", "trained", "loaded", "configured")


def resolve_window(configured_tokens: int | None = None, discovered: Window | None = None) -> Window:
    """The window to reckon with before the first call. A server that tells 0 or less told nothing.

    Raises `ValueError` for a configured window without room for a token.
    """
    if configured_tokens is not None:
        if configured_tokens <= 0:
            raise ValueError(f"a context window holds at least 1 token, configured are {configured_tokens:,}")
        return Window(configured_tokens, "configured", "configuration")
    if discovered is not None and discovered.max_tokens > 0:
        return discovered
    return Window(DEFAULT_WINDOW_TOKENS, "assumed", "default")


def learn_from_overflow(current: Window, limit_tokens: int | None) -> Window:
    """An overflow error named the real limit: believe it where it is smaller, or where we only assumed.

    A configured window may be deliberately smaller than the server's and is then kept.
    """
    if limit_tokens is None or limit_tokens <= 0:
        return current
    weaker = _ORDER.index(current.basis) < _ORDER.index("loaded")
    if limit_tokens < current.max_tokens or weaker:
        return Window(limit_tokens, "loaded", "overflow error")
    return current
