"""The plot of the demo: two agents read a text in parts; one compacts automatically, the other on request.

Acts as the third participant, sees only what peers see, and emits it as events.
"""

import re
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import PurePath
from typing import Any

import anyio
from mew_board.words import failure
from mew_protocol import kinds

from mew_agent.errors import MewAgentError, first_cause
from mew_agent.participant.participant import Participant
from mew_agent.participant.peers import Peer, PeerContext

ASK_AT = (6, 10)
"""How full the second agent is when we ask it to compact."""

COMPACTS_AT = (9, 10)
OVERSTEP = (1, 40)
"""Share of the window by which the last part exceeds the threshold: enough to cross it, and the request still fits."""

PART_CHARS = 900
SHORTEST_PART = 80
_PIECE = re.compile(
    "|".join(rf".{{{PART_CHARS // 4},{PART_CHARS}}}(?<={end})" for end in (r"\. ", "。", "\n", " "))
    + rf"|.{{1,{PART_CHARS}}}",
    re.DOTALL,
)
"""A piece of a long paragraph: up to the last full stop, line or word that leaves it a reasonable size."""

MAX_PARTS = 200
ANSWER_TIMEOUT_SECONDS = 60.0
FOLLOW_UP = "Thank you. In one short sentence: what should I remember?"


@dataclass(frozen=True, slots=True)
class TextPart:
    """A part of a text, small enough for one chat."""

    source: str
    number: int
    text: str


def split_text(source: PurePath, text: str) -> list[TextPart]:
    """Cut a text at paragraphs, else at sentences, else anywhere, into parts of at most `PART_CHARS`."""
    parts: list[str] = []
    for paragraph in filter(None, map(str.strip, re.split(r"\n\s*\n", text))):
        pieces = [paragraph] if len(paragraph) <= PART_CHARS else map(str.strip, _PIECE.findall(paragraph))
        for piece in filter(None, pieces):
            if parts and len(parts[-1]) + len(piece) + 2 <= PART_CHARS:
                parts[-1] = f"{parts[-1]}\n\n{piece}"
            else:
                parts.append(piece)
    return [TextPart(source.name, number, part) for number, part in enumerate(parts, start=1)]


@dataclass(frozen=True, slots=True)
class CompactionCheck:
    """A compaction with the expected and the reported next size of the context.

    The expected size is the one after the compaction plus an estimate of the next question.
    """

    participant: str
    trigger: str
    freed_tokens: int
    expected_tokens: int
    reported_tokens: int

    @property
    def off_tokens(self) -> int:
        """The expected minus the reported size."""
        return self.expected_tokens - self.reported_tokens

    @property
    def off(self) -> str:
        """The difference in words: `2 (0.1%)`."""
        return f"{abs(self.off_tokens):,} ({abs(self.off_tokens) / max(1, self.reported_tokens):.1%})"

    def as_event(self) -> dict[str, Any]:
        return {"event": "check", **asdict(self), "off_tokens": self.off_tokens, "off": self.off}


class DemoFailed(MewAgentError):
    """The demo could not be completed."""


@dataclass
class DemoStory:
    """The demo. `by_itself` and `on_request` are the agents' ids; `pace_seconds` slows the demo down for viewers."""

    me: Participant
    by_itself: str
    on_request: str
    show: Callable[[dict[str, Any]], None]
    """Receives the events of the demo."""
    pace_seconds: float = 0.0
    answer_timeout_seconds: float = ANSWER_TIMEOUT_SECONDS
    checks: list[CompactionCheck] = field(default_factory=list)
    _open: dict[str, tuple[str, int]] = field(default_factory=dict)
    _sent_characters: dict[str, list[int]] = field(default_factory=dict)
    _changed: anyio.Event = field(default_factory=anyio.Event)

    async def play(self, texts: dict[str, Iterator[TextPart]]) -> list[CompactionCheck]:
        """Feed both agents until each has compacted and then had a reported prompt. Returns the checks."""
        self.me.on_context(self._record_report)
        for agent in (self.by_itself, self.on_request):
            await self._wait_for(partial(self._context, agent), f"'{agent}' did not join")
        try:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(self._read_until_it_compacts, self.by_itself, texts[self.by_itself])
                tasks.start_soon(self._read_until_we_ask, self.on_request, texts[self.on_request])
        except ExceptionGroup as failures:  # both agents may fail at once
            raise first_cause(failures) from None
        return self.checks

    async def _read_until_it_compacts(self, agent: str, parts: Iterator[TextPart]) -> None:
        for _ in range(MAX_PARTS):
            await self._send_part(agent, next(parts))
            context = self._context(agent)
            if context is not None and context.severity >= 2:
                await self._wait_for(lambda: self._compactions(agent), f"'{agent}' is full but does not compact")
            if self._compactions(agent):
                await self._follow_up(agent)
                return
        raise DemoFailed(f"'{agent}' did not compact within {MAX_PARTS} parts")

    async def _read_until_we_ask(self, agent: str, parts: Iterator[TextPart]) -> None:
        numerator, denominator = ASK_AT
        for _ in range(MAX_PARTS):
            await self._send_part(agent, next(parts))
            context = self._context(agent)
            if context is None or context.tokens is None or context.max_tokens is None:
                continue
            if context.tokens * denominator >= context.max_tokens * numerator:
                self.show({"event": "ask", "participant": agent, "kind": kinds.PARTICIPANT_COMPACT})
                done = await self.me.compact(agent, reason="demo", timeout_seconds=self.answer_timeout_seconds)
                self.show(
                    {"event": "compact-done", "participant": agent, **done.model_dump(mode="json", exclude_none=True)}
                )
                if done.skipped:
                    raise DemoFailed(f"'{agent}' did not compact: {done.reason}")
                await self._follow_up(agent)
                return
        raise DemoFailed(f"'{agent}' did not fill up within {MAX_PARTS} parts; did its provider report usage?")

    async def _send_part(self, agent: str, part: TextPart) -> None:
        await anyio.sleep(self.pace_seconds)
        self.show({"event": "part", "participant": agent, "source": part.source, "number": part.number})
        text = self._fitting(agent, part.text)
        await self._chat(
            agent, f"{part.source}, part {part.number}:\n\n{text}\n\nIn one short sentence: what is it about?"
        )

    def _fitting(self, agent: str, text: str) -> str:
        """Shorten a part near the threshold, because a part far above it could not be sent."""
        sent = self._sent_characters.setdefault(agent, [])
        context = self._context(agent)
        report = context.report if context else None
        if sent and context is not None and report is not None and context.max_tokens and report.tokens_per_turn:
            expected = report.tokens_per_turn * len(text) * len(sent) / sum(sent)
            room = context.max_tokens * COMPACTS_AT[0] // COMPACTS_AT[1] - (context.tokens or 0)
            if expected > room:
                aim = room + context.max_tokens * OVERSTEP[0] // OVERSTEP[1]
                text = text[: max(SHORTEST_PART, int(len(text) * aim / expected))]
        sent.append(len(text))
        return text

    async def _follow_up(self, agent: str) -> None:
        """Ask one more short question, whose reported size verifies the accounts."""
        await self._wait_for(lambda: self._compactions(agent), f"'{agent}' did not report its compaction")
        if not self._is_checked(agent):
            await self._chat(agent, FOLLOW_UP)
        await self._wait_for(lambda: self._is_checked(agent), f"the model of '{agent}' reported no usage")

    async def _chat(self, agent: str, text: str) -> None:
        answer = await self.me.ask(
            kinds.CHAT, {"text": text}, to=agent, answer=kinds.CHAT, timeout_seconds=self.answer_timeout_seconds
        )
        self.show({"event": "answer", "participant": agent, "text": answer.body.get("text")})
        context = self._context(agent)
        if context is not None and failure(context.as_status()) is not None:
            raise DemoFailed(f"'{agent}' answered: {answer.body.get('text')}")

    # -- reports of the agents ---------------------------------------------------------------------------

    async def _record_report(self, peer: Peer, context: PeerContext) -> None:
        report = context.report
        status = context.as_status()
        assert status is not None  # reports come as statuses
        self.show({"event": "status", "participant": peer.id, **status.model_dump(mode="json", exclude_none=True)})
        if report is None:
            return
        last = report.last_compaction
        if context.status == "compacted" and last is not None and last.freed_tokens is not None:
            self._open[peer.id] = (last.trigger, last.freed_tokens)
        elif report.basis == "reported" and report.drift_tokens is not None and peer.id in self._open:
            reported = context.tokens or 0
            # Drift is expected minus reported.
            check = CompactionCheck(peer.id, *self._open.pop(peer.id), reported + report.drift_tokens, reported)
            self.checks.append(check)
            self.show(check.as_event())
        changed, self._changed = self._changed, anyio.Event()
        changed.set()

    def _context(self, agent: str) -> PeerContext | None:
        peer = self.me.peers.get(agent)
        return peer.context if peer else None

    def _is_checked(self, agent: str) -> bool:
        return any(check.participant == agent for check in self.checks)

    def _compactions(self, agent: str) -> int:
        context = self._context(agent)
        return context.report.compactions if context and context.report else 0

    async def _wait_for(self, condition: Callable[[], object], problem: str) -> None:
        with anyio.move_on_after(self.answer_timeout_seconds):
            while not condition():
                await self._changed.wait()
            return
        raise DemoFailed(problem)
