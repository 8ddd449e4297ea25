"""What happens in the demo: two agents read, one compacts by itself, the other because we ask it to.

Plays the third participant of the space over the wire, sees only what any peer sees, and tells it as events. It does
not know how the space was started nor how events are shown.
"""

from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import anyio
from mew_protocol import kinds
from mew_protocol.context_report import LastCompaction

from mew_agent.cli.demo.texts import Part
from mew_agent.errors import MewAgentError
from mew_agent.participant.participant import Participant
from mew_agent.participant.peers import Peer, PeerContext

ASK_AT = (6, 10)
"""We ask the second agent to compact when it is this full."""

COMPACTS_AT = (9, 10)
OVERSTEP = (1, 40)
"""Part of the window by which the last piece steps over the threshold: far enough, and still short of where a request
would not fit any more."""

SHORTEST_PIECE = 80

MAX_PARTS = 200
ANSWER_TIMEOUT_SECONDS = 60.0
FOLLOW_UP = "Thank you. In one short sentence: what should I remember?"

Tell = Callable[[dict[str, Any]], Awaitable[None]]


@dataclass(frozen=True, slots=True)
class Check:
    """One compaction: the announced net freed tokens beside what the model's next reported prompt shows."""

    participant: str
    trigger: str
    announced_tokens: int
    reported_tokens: int

    @property
    def off_tokens(self) -> int:
        """How far the announcement was off."""
        return self.announced_tokens - self.reported_tokens

    def as_event(self) -> dict[str, Any]:
        """The check as an event."""
        return {
            "event": "check",
            "participant": self.participant,
            "trigger": self.trigger,
            "announced_freed_tokens": self.announced_tokens,
            "reported_freed_tokens": self.reported_tokens,
            "off_tokens": self.off_tokens,
        }


class DemoFailed(MewAgentError):
    """The demo could not show what it is there to show."""


@dataclass
class Story:
    """The plot. `by_itself` and `on_request` are the two agents' ids; `pace_seconds` lets people follow."""

    me: Participant
    by_itself: str
    on_request: str
    tell: Tell
    pace_seconds: float = 0.0
    checks: list[Check] = field(default_factory=list)
    _open: dict[str, LastCompaction] = field(default_factory=dict)
    _said_characters: dict[str, list[int]] = field(default_factory=dict)
    _changed: anyio.Event = field(default_factory=anyio.Event)

    async def play(self, texts: dict[str, Iterator[Part]]) -> list[Check]:
        """Feed both agents until each has compacted and its model has reported since. Returns the checks."""
        self.me.on_context(self._see)
        for agent in (self.by_itself, self.on_request):
            await self._wait_for(partial(self._has_reported, agent), f"'{agent}' did not join")
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self._read_until_it_compacts, self.by_itself, texts[self.by_itself])
            tasks.start_soon(self._read_until_we_ask, self.on_request, texts[self.on_request])
        return self.checks

    async def _read_until_it_compacts(self, agent: str, parts: Iterator[Part]) -> None:
        for _ in range(MAX_PARTS):
            await self._say(agent, next(parts))
            await self._settled(agent)
            if self._compactions(agent):
                await self._follow_up(agent)
                return
        raise DemoFailed(f"'{agent}' did not compact within {MAX_PARTS} parts")

    async def _read_until_we_ask(self, agent: str, parts: Iterator[Part]) -> None:
        numerator, denominator = ASK_AT
        for _ in range(MAX_PARTS):
            await self._say(agent, next(parts))
            context = self._context(agent)
            if context is None or context.tokens is None or context.max_tokens is None:
                continue
            if context.tokens * denominator >= context.max_tokens * numerator:
                await self.tell({"event": "ask", "participant": agent, "kind": kinds.PARTICIPANT_COMPACT})
                done = await self.me.compact(agent, reason="demo", timeout_seconds=ANSWER_TIMEOUT_SECONDS)
                await self.tell(
                    {"event": "compact-done", "participant": agent, **done.model_dump(mode="json", exclude_none=True)}
                )
                if done.skipped:
                    raise DemoFailed(f"'{agent}' did not compact: {done.reason}")
                await self._follow_up(agent)
                return
        raise DemoFailed(f"'{agent}' did not fill up within {MAX_PARTS} parts; did its provider report usage?")

    async def _say(self, agent: str, part: Part) -> None:
        await anyio.sleep(self.pace_seconds)
        await self.tell({"event": "part", "participant": agent, "source": part.source, "number": part.number})
        text = self._fitting(agent, part.text)
        await self._chat(
            agent, f"{part.source}, part {part.number}:\n\n{text}\n\nSay in one short sentence what it is about."
        )

    def _fitting(self, agent: str, text: str) -> str:
        """Near the threshold a shorter piece: one that leaps over it could not be sent at all."""
        said = self._said_characters.setdefault(agent, [])
        context = self._context(agent)
        report = context.report if context else None
        if said and context is not None and report is not None and context.max_tokens and report.tokens_per_turn:
            expected = report.tokens_per_turn * len(text) * len(said) / sum(said)
            room = context.max_tokens * COMPACTS_AT[0] // COMPACTS_AT[1] - (context.tokens or 0)
            if expected > room:
                aim = room + context.max_tokens * OVERSTEP[0] // OVERSTEP[1]
                text = text[: max(SHORTEST_PIECE, int(len(text) * aim / expected))]
        said.append(len(text))
        return text

    async def _follow_up(self, agent: str) -> None:
        """One short question more: its reported prompt shows what the compaction really freed."""
        await self._wait_for(lambda: self._compactions(agent) > 0, f"'{agent}' did not report its compaction")
        if not self._is_checked(agent):
            await self._chat(agent, FOLLOW_UP)
        await self._wait_for(lambda: self._is_checked(agent), f"the model of '{agent}' reported no usage")

    async def _chat(self, agent: str, text: str) -> None:
        answer = await self.me.ask(
            kinds.CHAT, {"text": text}, to=agent, answer=kinds.CHAT, timeout_seconds=ANSWER_TIMEOUT_SECONDS
        )
        await self.tell({"event": "answer", "participant": agent, "text": answer.body.get("text")})
        context = self._context(agent)
        if context is not None and (context.status or "").startswith("model_"):
            raise DemoFailed(f"'{agent}' says: {answer.body.get('text')}")

    async def _settled(self, agent: str) -> None:
        """After a call at the threshold the compaction follows the answer; give it its time, bounded."""
        context = self._context(agent)
        if context is not None and context.severity >= 2 and not self._compactions(agent):
            await self._wait_for(lambda: bool(self._compactions(agent)), f"'{agent}' is full and does not compact")

    # -- what we see -------------------------------------------------------------------------------------

    async def _see(self, peer: Peer, context: PeerContext) -> None:
        report = context.report
        await self.tell(
            {
                "event": "status",
                "participant": peer.id,
                "status": context.status,
                "tokens": context.tokens,
                "max_tokens": context.max_tokens,
                "messages_in_context": context.messages,
                "context": report.model_dump(mode="json", exclude_none=True) if report else None,
            }
        )
        if report is None:
            return
        if context.status == "compacted" and report.last_compaction is not None:
            self._open[peer.id] = report.last_compaction
        elif report.basis == "reported" and report.drift_tokens is not None and peer.id in self._open:
            done = self._open.pop(peer.id)
            # Predicted minus reported is by how much the prompt came out smaller than announced.
            check = Check(peer.id, done.trigger, done.freed_tokens, done.freed_tokens + report.drift_tokens)
            self.checks.append(check)
            await self.tell(check.as_event())
        changed, self._changed = self._changed, anyio.Event()
        changed.set()

    def _context(self, agent: str) -> PeerContext | None:
        peer = self.me.peers.get(agent)
        return peer.context if peer else None

    def _is_checked(self, agent: str) -> bool:
        return any(check.participant == agent for check in self.checks)

    def _has_reported(self, agent: str) -> bool:
        return self._context(agent) is not None

    def _compactions(self, agent: str) -> int:
        context = self._context(agent)
        return context.report.compactions if context and context.report else 0

    async def _wait_for(self, condition: Callable[[], bool], problem: str) -> None:
        with anyio.move_on_after(ANSWER_TIMEOUT_SECONDS):
            while not condition():
                await self._changed.wait()
            return
        raise DemoFailed(problem)
