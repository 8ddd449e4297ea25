"""[pure] The environment variables that a program inherits from the program that starts it.

Owns the allow-list for a space's programs and their child programs. It has no keys and tokens: settings name the
further variables of a program.
"""

from collections.abc import Iterable, Mapping
from typing import Final

INHERITED: Final = frozenset(
    {
        *("PATH", "HOME", "USER", "LOGNAME", "SHELL", "TMPDIR", "TERM", "COLORTERM", "NO_COLOR", "TZ"),
        *("LANG", "LANGUAGE"),
        *("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "NO_PROXY", "http_proxy", "https_proxy", "all_proxy", "no_proxy"),
        *("SSL_CERT_FILE", "SSL_CERT_DIR", "REQUESTS_CA_BUNDLE", "NODE_EXTRA_CA_CERTS", "VIRTUAL_ENV", "MEW_RUN"),
        *("XDG_CONFIG_HOME", "XDG_DATA_HOME", "XDG_STATE_HOME", "XDG_CACHE_HOME", "XDG_RUNTIME_DIR"),
        *("PYTHONPATH", "PYTHONUNBUFFERED", "PYTHONUTF8", "LD_LIBRARY_PATH", "NODE_PATH"),
        *("MEW_DEBUG", "MEW_PYTHON", "MEW_LOG_FORMAT"),
        *("APPDATA", "LOCALAPPDATA", "PATHEXT", "SYSTEMROOT", "SYSTEMDRIVE", "TEMP", "TMP", "USERNAME", "USERPROFILE"),
        *("HOMEDRIVE", "HOMEPATH", "PROCESSOR_ARCHITECTURE", "COMSPEC", "PROGRAMDATA"),
    }
)
"""Variables that programs need to run."""

COMPAT_VARIABLE: Final = "MEW_COMPAT"
"""With the value `reference`, gateways and agents behave as the TypeScript reference where that is less strict."""


def inherited(environ: Mapping[str, str], also: Iterable[str] = ()) -> dict[str, str]:
    """Return the part of an environment that a program inherits, and the set variables in `also`.

    Includes OpenTelemetry's variables, except headers, which contain keys.
    """
    names = INHERITED.union(also)
    return {
        key: value
        for key, value in environ.items()
        if key in names or key.startswith("LC_") or (key.startswith("OTEL_") and "HEADERS" not in key)
    }
