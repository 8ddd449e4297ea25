"""[pure] The settings of a meter: the keys of `meter:` in a space.yaml."""

import re
from typing import Annotated

from mew_settings.values import SettingsModel, Text, text_as
from pydantic import AfterValidator, Field


def _checked_upstream(text: str) -> str:
    if not re.fullmatch(r"https?://[^/?#@\s]+(/[^?#\s]*)?", text) and "${" not in text:
        raise ValueError("must be the URL of a model server, without a password, like https://api.openai.com/v1")
    return text


class MeterSettings(SettingsModel):
    """A relay between an agent and its model server, `upstream`; the participant represents that agent."""

    upstream: Annotated[str, AfterValidator(_checked_upstream)]
    listen: Text = "127.0.0.1:8191"
    """Address that the agent uses in place of the model server: host and port, or a port alone."""
    window: int | None = Field(default=None, ge=1)
    """Size of the agent's window in tokens."""

    _from_upstream = text_as("upstream")
