"""The page and the terminal say the same about a status: share, basis, reason, parts, skipped compactions."""

from datetime import UTC, datetime
from typing import Any, Final

import pytest
from mew_board import words
from mew_board.composition import composition
from mew_board.view import ParticipantView
from mew_protocol.board_words import PART_NAMES, REASONS, SKIPPED
from mew_protocol.payloads.participant import BoardEntry, CompactDone, Status
from mew_spaces.gateway.gateway import RunningGateway

from tests.browser.conftest import Tab

NOW: Final = datetime(2026, 11, 3, 14, 0, tzinfo=UTC)


def status(context: dict[str, Any] | None = None, **figures: int) -> dict[str, Any]:
    report = None if context is None else {"level": "healthy", "severity": 0, "revision": 1, **context}
    return {"messages_in_context": 3, **figures, **({} if report is None else {"context": report})}


STATUSES: Final = (
    status(tokens=98_412, max_tokens=128_000, context={"basis": "reported"}),
    status(tokens=1_005, max_tokens=100_000, context={"basis": "projected", "max_tokens_basis": "assumed"}),
    status(tokens=500, max_tokens=1_000),
    status(tokens=900, max_tokens=1_000, context={"basis": "server_counted", "compact_at_tokens": 800}),
    *(status(max_tokens=8_192, context={"basis": "unknown", "reason": reason}) for reason in REASONS),
    status(
        tokens=6_000,
        max_tokens=10_000,
        context={
            "basis": "reported",
            "compact_at_tokens": 9_000,
            "breakdown": [
                {"part": "prefix", "tokens": 2_000, "basis": "exact"},
                {"part": "unsent", "tokens": 300, "basis": "projected"},
            ],
        },
    ),
)

SHOWN: Final = """async (statuses) => {
  const text = await import("/dashboard/text.js");
  const { readStatus } = await import("/dashboard/board.js");
  return statuses.map((one) => {
    const status = readStatus(one);
    return {
      percent: text.percentOf(status) ?? null,
      basis: text.basisOf(status),
      counted: text.isCounted(text.basisOf(status)),
      reason: status.tokens === undefined ? text.basisWord(status) : null,
      parts: text.composition(status).map(({ part, tokens, basis }) => [part, tokens, basis]),
    };
  });
}"""


def in_the_terminal(given: dict[str, Any]) -> dict[str, Any]:
    read = Status.model_validate(given)
    view = ParticipantView(BoardEntry(id="coder", connected=True, status=read), NOW)
    return {
        "percent": view.percent,
        "basis": words.basis(read),
        "counted": view.is_counted,
        "reason": view.reason if read.tokens is None else None,
        "parts": [[one.part, one.tokens, one.basis] for one in composition(read)],
    }


@pytest.fixture
async def page(gateway: RunningGateway, tab: Tab) -> Any:
    """The page before anybody signs in."""
    await tab.page.goto(f"{gateway.url}/dashboard")
    return tab.page


async def test_page_and_terminal_show_the_same_of_a_status(page: Any) -> None:
    assert await page.evaluate(SHOWN, STATUSES) == [in_the_terminal(one) for one in STATUSES]


async def test_page_and_terminal_name_parts_and_skipped_compactions_alike(page: Any) -> None:
    names = await page.evaluate(
        'async (parts) => { const { partName } = await import("/dashboard/text.js"); return parts.map(partName); }',
        [*PART_NAMES, "tool_results"],
    )
    assert names == [*PART_NAMES.values(), words.words("tool_results")]
    answers = await page.evaluate(
        """async (reasons) => {
          const { compactAnswer } = await import("/dashboard/text.js");
          return reasons.map((reason) => compactAnswer({ skipped: true, reason }));
        }""",
        [*SKIPPED],
    )
    for reason, answer in zip(SKIPPED, answers, strict=True):
        said = words.compaction(CompactDone(status="skipped", skipped=True, reason=reason)).removeprefix("skipped, ")
        assert said in answer, (said, answer)
