"""Whether a text fits: what follows from a status, for all figures that it may hold or lack."""

from hypothesis import given
from hypothesis import strategies as st
from mew_protocol.context_report import ContextReport, QueuedMessages, answer_reserve_tokens
from mew_protocol.payloads.participant import Status
from mew_protocol.payloads.text_fit import Fit, fit_in

SIZES = st.integers(0, 300_000)
MAYBE = st.none() | SIZES


@given(tokens=SIZES, context=MAYBE, queued=MAYBE, window=st.none() | st.integers(1, 200_000))
def test_an_unknown_figure_is_never_zero_and_never_an_overflow(
    tokens: int, context: int | None, queued: int | None, window: int | None
) -> None:
    waits = None if queued is None else QueuedMessages(messages=1, tokens=queued, basis="projected")
    known: dict[str, object] = (
        {} if context is None else {"next_prompt_tokens": context, "next_prompt_basis": "projected"}
    )
    report = ContextReport.model_validate({"basis": "unknown", "reason": "no_call_yet", "queued": waits, **known})
    fit = fit_in(Status(messages_in_context=0, max_tokens=window, context=report), tokens)
    if context is None or window is None:
        assert (fit.fits, fit.headroom_tokens) == (None, None)
        assert fit.reason is not None
        return
    free = window - answer_reserve_tokens(window) - context
    if tokens > free - (queued or 0):
        assert fit.fits is False  # whatever else waits
    else:
        assert fit.fits is (None if queued is None else True)
        assert fit.reason == ("queue_unknown" if queued is None else None)


def test_a_participant_without_a_report_is_unknown() -> None:
    for status in (None, Status(messages_in_context=3, tokens=7, max_tokens=100)):
        fit = fit_in(status, 1)
        assert (fit.fits, fit.reason) == (None, "no_report")
        assert str(fit) == "1 tokens (given); free: unknown (no report)"


def test_a_foreign_agent_is_judged_by_the_tokens_that_it_reports() -> None:
    report = ContextReport(basis="agent_reported")
    fit = fit_in(Status(messages_in_context=3, tokens=90, max_tokens=100, context=report), 50)
    assert (fit.fits, fit.headroom_tokens, fit.context_basis) == (False, 5, "agent_reported")


def test_each_estimate_of_a_fit_carries_its_mark() -> None:
    sizes = {"tokens": 2_100, "headroom_tokens": 900, "max_tokens": 8_000, "largest_tokens": 6_317}
    counted = {"tokens_basis": "tokenizer", "context_basis": "reported", "max_tokens_basis": "loaded"}

    def shown(**known: object) -> str:
        return str(Fit.model_validate({**sizes, **counted, **known}))

    most = "; at most ~6,317 after a compaction"
    assert shown() == f"2,100 tokens (tokenizer); free: 900 of 8,000 (reported){most}"
    assert shown(tokens_basis="projected") == f"~2,100 tokens (projected); free: 900 of 8,000 (reported){most}"
    assert shown(context_basis="projected") == f"2,100 tokens (tokenizer); free: ~900 of 8,000 (projected){most}"
    assert shown(max_tokens_basis="assumed") == f"2,100 tokens (tokenizer); free: ~900 of ~8,000 (reported){most}"
    waits = {"queued_tokens": 50, "queued_messages": 1}  # chats are not counted by a provider
    assert shown(**waits) == f"2,100 tokens (tokenizer); free: ~900 of 8,000 (reported), 1 chat waiting{most}"
    no_window = {"headroom_tokens": None, "tokens_basis": "heuristic"}
    assert shown(**no_window) == "~2,100 tokens (heuristic); free: unknown (no report)"
