"""The client of a rehearsal model, for tests."""

from typing import Any, Final

from mew_agent.model.openai_client import OpenAIModel
from mew_agent.parts.rehearsal import RehearsalOptions, ScriptedReply
from tests.support.waiting import PATIENCE_SECONDS

ENDLESS: Final[dict[str, Any]] = {
    "script": (ScriptedReply(text=" ".join(f"Stone {number} is grey." for number in range(500))),),
    "chunk_delay_seconds": 0.2,
    "tokens_per_chunk": 6,
}
"""Options for a reply that takes minutes: it never ends before what a test does meanwhile."""


def rehearsal_options(**options: Any) -> RehearsalOptions:
    """Options of a rehearsal model. Each chunk costs every process on its way, so replies have few of them.

    Tests that act between two chunks set a delay or a cut at the start, which leaves the chunks small.
    """
    needs_chunks = options.keys() & {"chunk_delay_seconds", "cut_after_chunks"}
    return RehearsalOptions(**({} if needs_chunks else {"tokens_per_chunk": 24}) | options)


def rehearsal_model(base_url: str, *, model_class: type[OpenAIModel] = OpenAIModel) -> OpenAIModel:
    """A client of the model at `base_url`, with timeouts that a busy machine never reaches."""
    return model_class(
        "rehearsal",
        base_url,
        "key",
        connect_timeout_seconds=PATIENCE_SECONDS,
        window_timeout_seconds=PATIENCE_SECONDS,
        max_retries=0,
    )
