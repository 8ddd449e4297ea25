"""[pure] The truth about read receipts, from the prompts that a model got, and every receipt that contradicts it.

Owns the record of chats, prompts, changes, answers and claims. Knows no sockets and no processes, and nothing of how
an agent makes its receipts: `receipts` reports to it. Times are those of the wire, as text.
"""

import re
from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Literal, Protocol

from mew_protocol.payloads.read_receipts import ReadReceipt

MARK = re.compile(r"\bQ\d{5}\b")
"""The word that one chat has, and no other."""

SUMMARY = "[Summary of the conversation so far]"
"""How the message begins that holds a summary."""

CUT = "[... "
"""How the notice begins in the middle of a result that is cut."""

NEVER = "~"
"""Later than any time."""

SHOWN_STORY = 12
"""How many receipts before and after a wrong one are shown."""

Form = Literal["whole", "shortened", "reference", "summary", "named", "out"]
"""What a prompt holds of a message: all of it, a part of a tool's result, a note in its place, a sentence of it in the
summary, only its word or its id in the summary, or nothing."""

ALLOWED: Mapping[Form, frozenset[str]] = {
    "whole": frozenset(("whole",)),
    "shortened": frozenset(("shortened",)),
    "reference": frozenset(("reference",)),
    "summary": frozenset(("summary",)),
    "named": frozenset(("summary", "recoverable", "gone")),
    "out": frozenset(("recoverable", "gone")),
}
"""The words of a receipt that say the same."""


class Recorded(Protocol):
    """What a model recorded of one request; it changes while the reply is sent."""

    received_at: str
    status: int | None
    chunks_sent: int
    completion_tokens: int | None
    is_complete: bool


@dataclass(eq=False)
class Chat:
    """One chat of the run, or one result of a tool. `confirmed_at`: its sender knows that the gateway has it; None if
    that is not known.
    """

    id: str
    sender: str
    agent: str
    mark: str
    text: str
    follows: bool
    confirmed_at: str | None = None
    is_result: bool = False
    names: set[str] = field(default_factory=set)
    """Other ids by which a summary may cite it."""

    @cached_property
    def sentences(self) -> tuple[str, ...]:
        """Its sentences, without their stops; each one has the mark."""
        return tuple(one.rstrip(".") for one in self.text.split(". "))


@dataclass(eq=False)
class Prompt:
    """One main request to a model: which messages stand in it whole or in part, or as the note of a cleared result,
    and its summary.
    """

    record: Recorded
    whole: frozenset[str]
    part: frozenset[str]
    cleared: frozenset[str]
    left_out: frozenset[str]
    """The messages that the agent sent, and the server kept from the model."""
    summary: str
    unmarked: tuple[str, ...] = ()
    """The results of tools without a mark: cut very short, or a note in their place."""

    @property
    def at(self) -> str:
        """When the model got it."""
        return self.record.received_at

    @property
    def has_output(self) -> bool:
        """Whether the model wrote a word of the reply."""
        return self.record.status == 200 and (self.record.is_complete or self.record.chunks_sent > 1)

    @property
    def is_refused(self) -> bool:
        """Whether the provider answered that it did not pass the prompt to the model."""
        return self.record.status is not None and 400 <= self.record.status < 500

    def form(self, chat: Chat) -> Form:
        """Return what it holds of a chat."""
        if chat.mark in self.whole:
            return "whole"
        if chat.mark in self.part:
            return "shortened" if chat.is_result else "reference"
        if chat.mark in self.cleared:
            return "reference"
        if chat.mark not in self.summary:
            is_cited = any(name in self.summary for name in (chat.id, *chat.names))
            return "named" if is_cited else "out"
        return "summary" if any(one in self.summary for one in chat.sentences) else "named"


@dataclass(frozen=True)
class Change:
    """A change of an agent's context: it happened between these two times."""

    begun_at: str
    ended_at: str
    what: str


@dataclass(frozen=True)
class Claim:
    """A receipt that an agent sent: its state was read between these two times. `how`: asked, or told."""

    agent: str
    receipt: ReadReceipt
    begun_at: str
    ended_at: str
    how: str


@dataclass
class AgentLog:
    """What was seen of one agent."""

    name: str
    prompts: list[Prompt] = field(default_factory=list)
    kills: list[str] = field(default_factory=list)
    """When its process was ended, by a signal of any kind."""
    failures: list[str] = field(default_factory=list)
    """When it noted that a main call had failed. It may have given up a call whose whole reply was on its way."""
    changes: list[Change] = field(default_factory=list)
    answers: dict[str, tuple[str, str]] = field(default_factory=dict)
    """Of each chat: the id and the time of its answer."""
    results: dict[str, str] = field(default_factory=dict)
    """The mark of the result of each tool call, by the id of the call."""
    _readings: dict[str, list[int]] = field(default_factory=dict)

    @cached_property
    def times(self) -> list[str]:
        """When each prompt arrived. Read it after the run."""
        return [one.at for one in self.prompts]

    def is_certain(self, number: int) -> bool:
        """Return whether the agent has surely stored that the model read a prompt."""
        one = self.prompts[number]
        until = self.times[number + 1] if number + 1 < len(self.prompts) else NEVER
        return one.record.is_complete and not any(one.at <= at <= until for at in (*self.kills, *self.failures))

    def readings(self, chat: Chat) -> list[int]:
        """Return the prompts that may be the first one that the model read the chat in; the last one is certain.

        Call it after the run: what it found is kept.
        """
        if (known := self._readings.get(chat.id)) is not None:
            return known
        found = self._readings[chat.id] = []
        for number, one in enumerate(self.prompts):
            is_got = chat.mark in one.whole or chat.mark in one.part
            if (is_got or chat.mark in one.left_out) and one.has_output:
                found.append(number)
                if is_got and self.is_certain(number):
                    break
        return found


class ReceiptWitness:
    """Collects a run, and judges every claim."""

    def __init__(self, agents: Sequence[str]) -> None:
        self.agents = {name: AgentLog(name) for name in agents}
        self.chats: dict[str, Chat] = {}
        self._by_mark: dict[str, Chat] = {}
        self.claims: list[Claim] = []
        self.wrong: list[str] = []
        self.states: Counter[str] = Counter()
        self.refused: set[str] = set()
        """The messages whose sender got a refusal, which tells it as a receipt does."""
        self.unknown: Counter[str] = Counter()
        self.not_judged: Counter[str] = Counter()
        self._calls: dict[tuple[str, str], int] = {}
        """The prompt of each call that a receipt named, by agent and id."""
        self._numbers: dict[tuple[str, int], str] = {}
        """The call of each number."""
        self._named: dict[str, str] = {}
        """The call that the receipts of each chat name."""

    def add(self, chat: Chat) -> None:
        """Record a chat, before it is sent."""
        self.chats[chat.id] = self._by_mark[chat.mark] = chat

    def expect(self, result: Chat) -> None:
        """Record a result of a tool before it is sent; `sent` follows."""
        self._by_mark[result.mark] = result

    def sent(self, mark: str, message_id: str, agent: str, at: str) -> None:
        """Record the message in which a result was sent."""
        result = self._by_mark[mark]
        result.id, result.agent, result.confirmed_at = message_id, agent, at
        self.chats[message_id] = result

    def prompt(
        self,
        agent: str,
        record: Recorded,
        texts: Sequence[str],
        results: Sequence[tuple[str, str]] = (),
        left_out: Sequence[str] = (),
    ) -> None:
        """Record a main request: texts of the role `user`, and results of tools by the ids of their calls.

        `left_out` are texts that the server kept from the model.
        """
        log, said = self.agents[agent], [one for one in texts if not one.startswith(SUMMARY)]
        cleared = set[str]()
        for call, text in results:
            if (found := MARK.search(text)) is not None:
                log.results[call] = found[0]
            elif call in log.results:
                cleared.add(log.results[call])
        said += [text for _, text in results]
        marks = {mark for one in said for mark in MARK.findall(one)}
        whole = frozenset(mark for mark in marks if any(self._by_mark[mark].text in one for one in said))
        summary = next((one for one in texts if one.startswith(SUMMARY)), "")
        missing = frozenset(mark for one in left_out for mark in MARK.findall(one)) - marks
        short = tuple(text for _, text in results if MARK.search(text) is None)
        log.prompts.append(Prompt(record, whole, frozenset(marks) - whole, frozenset(cleared), missing, summary, short))

    def item(self, item_id: str, text: str) -> None:
        """Record the id of an agent's item with this text. The notice of a cut names it."""
        for mark in MARK.findall(text):
            if mark in self._by_mark:
                self._by_mark[mark].names.add(item_id)
                for prompt in (one for log in self.agents.values() for one in log.prompts):
                    for short in prompt.unmarked:
                        if item_id in short:
                            held = "part" if CUT in short else "cleared"
                            setattr(prompt, held, getattr(prompt, held) | {mark})

    def judge(self) -> None:
        """Compare every claim with the prompts, in the order in which they were made."""
        for claim in sorted(self.claims, key=lambda one: one.ended_at):
            chat = self.chats[claim.receipt.id]
            self.states[f"{claim.receipt.state} {claim.receipt.in_context}"] += 1
            for problem in self._problems(claim, chat, self.agents[claim.agent]):
                self.wrong.append(f"{problem}\n{self._story(claim, chat)}")
                break
        self.wrong += self.untold()

    # -- one claim -------------------------------------------------------------------------------------

    def _problems(self, claim: Claim, chat: Chat, log: AgentLog) -> Iterator[str]:
        receipt, readings = claim.receipt, log.readings(chat)
        if (receipt.sender, receipt.participant) != (chat.sender, claim.agent):
            yield f"is about {receipt.sender} and {receipt.participant}"
        if receipt.call is None:
            if (first := _surely_read(claim, log, readings)) is not None:
                yield f"names no call, but prompt {first} was read"
        else:
            yield from self._call_problems(claim, chat, log, readings)
        yield from _answer_problems(claim, log)
        if "unknown" in (receipt.state, receipt.in_context):
            yield from self._unknown_problems(claim, chat, log, readings)
        elif receipt.call is None and receipt.in_context in ("whole", "shortened", "reference"):
            yield f"says {receipt.in_context} although no call read it"
        elif receipt.in_context != "no":  # a chat that the provider refused can be found although no model read it
            yield from self._form_problems(claim, chat, log)
        elif receipt.call is not None:
            yield "says no although a call read it"

    def _call_problems(self, claim: Claim, chat: Chat, log: AgentLog, readings: list[int]) -> Iterator[str]:
        call = claim.receipt.call
        assert call is not None
        fitting = [
            number for number in readings if _may_be(call.at, number, log) and log.times[number] <= claim.ended_at
        ]
        if not fitting:
            yield f"call {call.number} of {call.at} is not the first that read it; prompts {readings} are"
            return
        number = self._calls.setdefault((log.name, call.id), fitting[-1])
        if number not in fitting:
            yield f"call {call.number} was named for prompt {number}, and is now named for prompts {fitting}"
        if self._numbers.setdefault((log.name, call.number), call.id) != call.id:
            yield f"two calls have the number {call.number}"
        if self._named.setdefault(chat.id, call.id) != call.id:
            yield f"an earlier receipt named another call, {self._named[chat.id]}"

    def _unknown_problems(self, claim: Claim, chat: Chat, log: AgentLog, readings: list[int]) -> Iterator[str]:
        """Unknown is right where docs/explanation/receipts.md says so, and for a chat that may not have arrived."""
        if chat.confirmed_at is None or chat.confirmed_at > claim.begun_at:
            self.unknown["its sender did not know that it was sent"] += 1
            return
        if chat.is_result and claim.receipt.state == "unknown":
            if any(chat.mark in one.whole | one.part for one in log.prompts if one.at < claim.begun_at):
                yield "the agent does not know it, although a prompt held it"
            else:
                self.unknown["a result that no prompt held"] += 1
            return
        if claim.receipt.state == "unknown":
            yield "the agent does not know it, although the gateway had it"
            return
        if any(chat.mark in one.left_out for one in log.prompts if one.at <= claim.ended_at):
            self.unknown["the server shortened a prompt with it"] += 1
            return
        tried = [
            number
            for number, one in enumerate(log.prompts)
            if (chat.mark in one.whole or chat.mark in one.part) and not one.is_refused and one.at <= claim.ended_at
        ]
        if tried or _call_began(claim, chat, log):
            self.unknown["a call with it had begun, or ended without output"] += 1
        elif any(chat.confirmed_at <= at <= claim.ended_at for at in log.failures):
            self.unknown["a call failed before its model got it"] += 1
        elif any(chat.confirmed_at <= at <= claim.ended_at for at in log.kills):
            self.unknown["the process ended before a call"] += 1
        else:
            yield f"is unknown ({claim.receipt.reason}) without a cause"

    def _form_problems(self, claim: Claim, chat: Chat, log: AgentLog) -> Iterator[str]:
        before = bisect_right(log.times, claim.ended_at) - 1
        after = bisect_right(log.times, claim.ended_at)
        earliest = max(0, bisect_left(log.times, claim.begun_at) - 1)
        if after == len(log.prompts):
            self.not_judged["no later prompt"] += 1
            return
        forms: set[Form] = {log.prompts[number].form(chat) for number in range(earliest, after + 1)}
        between = [one for one in log.changes if one.ended_at >= log.times[before] and one.begun_at <= log.times[after]]
        if earliest == before and len(forms) > 1 and between:
            if all(one.ended_at < claim.begun_at for one in between):
                forms = {log.prompts[after].form(chat)}
            elif all(one.begun_at > claim.ended_at for one in between):
                forms = {log.prompts[before].form(chat)}
        said = claim.receipt.in_context
        if claim.receipt.summary == "quoted":
            forms -= {"named"}
        if any(said in ALLOWED[form] for form in forms):
            return
        if any(chat.mark in log.prompts[number].left_out for number in range(earliest, after + 1)):
            self.not_judged["the server left it out unnoticed"] += 1
            return
        if len(between) > 1:
            self.not_judged["between two changes"] += 1
            return
        shown = ", ".join(f"{number} {log.prompts[number].form(chat)}" for number in (before, after))
        yield f"says {said}, but prompts have it {shown}; changes between: {[one.what for one in between]}"

    # -- afterwards ------------------------------------------------------------------------------------

    def untold(self) -> Iterator[str]:
        """Who follows a message knows in the end what who asks is told."""
        told = {one.receipt.id: one for one in self._in_order("told")}
        for claim in {one.receipt.id: one for one in self._in_order("asked")}.values():
            chat = self.chats[claim.receipt.id]
            last = told.get(chat.id)
            if not chat.follows or (last is not None and last.ended_at > claim.begun_at):
                continue
            if claim.receipt.state == "refused" and chat.id in self.refused:
                continue
            known = None if last is None else (last.receipt.state, _known_form(last.receipt))
            if known != (claim.receipt.state, _known_form(claim.receipt)):
                yield f"its follower was told {known} at last\n{self._story(claim, chat)}"

    def _in_order(self, how: str) -> list[Claim]:
        return sorted((one for one in self.claims if one.how == how), key=lambda one: one.ended_at)

    def _story(self, claim: Claim, chat: Chat) -> str:
        log, receipt = self.agents[claim.agent], claim.receipt
        lines = [(claim.ended_at, f"{claim.how} (since {claim.begun_at}): {_brief(receipt)} <==")]
        lines += [
            (one.ended_at, f"{one.how}: {_brief(one.receipt)}")
            for one in self.claims
            if one.receipt.id == chat.id and one is not claim
        ]
        lines = sorted(lines)
        at = next(place for place, (_, text) in enumerate(lines) if "<==" in text)
        lines = lines[max(0, at - SHOWN_STORY) : at + SHOWN_STORY]
        first, last = lines[0][0], max(lines[-1][0], claim.ended_at)
        lines += [(at, "the process ended") for at in log.kills if first <= at <= last]
        lines += [(one.begun_at, f"{one.what} begins") for one in log.changes if first <= one.begun_at <= last]
        lines += [(one.ended_at, f"{one.what} ends") for one in log.changes if first <= one.ended_at <= last]
        held, near = None, bisect_right(log.times, claim.ended_at)
        for number, one in enumerate(log.prompts):
            now = one.form(chat)
            if now != held or abs(number - near) < 3:
                sent = f"{one.record.status}, {one.record.chunks_sent} chunks, complete: {one.record.is_complete}"
                lines.append((one.at, f"prompt {number} has it {now} ({sent})"))
            held = now
        if chat.id in log.answers:
            lines.append((log.answers[chat.id][1], f"answer {log.answers[chat.id][0]}"))
        lines.append((chat.confirmed_at or "?", f"{chat.mark} of {chat.sender} to {chat.agent} is confirmed"))
        return "\n".join(f"    {at[11:]}  {text}" for at, text in sorted(lines))


def _may_be(began_at: str, number: int, log: AgentLog) -> bool:
    """Return whether a prompt may belong to a call that began then: no complete one arrived in between."""
    if began_at > log.times[number]:
        return False
    first = bisect_left(log.times, began_at)
    return not any(log.prompts[one].record.is_complete and log.times[one] > began_at for one in range(first, number))


def _surely_read(claim: Claim, log: AgentLog, readings: list[int]) -> int | None:
    """Return the prompt that the agent must know as read by the time of a claim: a later one came before it."""
    if not readings or not log.is_certain(readings[-1]) or readings[-1] + 1 >= len(log.prompts):
        return None
    return readings[-1] if log.times[readings[-1] + 1] < claim.begun_at else None


def _answer_problems(claim: Claim, log: AgentLog) -> Iterator[str]:
    receipt = claim.receipt
    name, at = log.answers.get(receipt.id, (None, NEVER))
    if receipt.state == "answered" and receipt.answer is not None and receipt.answer != name:
        yield f"names the answer {receipt.answer}; {name} arrived"
    if receipt.state == "answered" and name is None:
        yield "says answered, but no answer arrived"
    if receipt.state in ("queued", "in_prompt", "unknown") and at < claim.begun_at:
        after = bisect_right(log.times, at)
        if after < len(log.times) and log.times[after] < claim.begun_at:
            yield f"says {receipt.state}, but it was answered, and prompt {after} came later"


def _call_began(claim: Claim, chat: Chat, log: AgentLog) -> bool:
    """Return whether the next prompt holds the chat: the agent may have begun its call."""
    after = bisect_right(log.times, claim.ended_at)
    return after < len(log.prompts) and chat.mark in log.prompts[after].whole | log.prompts[after].part


def _known_form(receipt: ReadReceipt) -> str | None:
    return receipt.in_context if receipt.call is not None else None


def _brief(receipt: ReadReceipt) -> str:
    call = "no call" if receipt.call is None else f"call {receipt.call.number} {receipt.call.id[:8]} {receipt.call.at}"
    summary = "" if receipt.summary is None else f" ({receipt.summary})"
    reason = "" if receipt.reason is None else f": {receipt.reason}"
    return f"{receipt.state}, {receipt.in_context}{summary}, {call}{reason}"
