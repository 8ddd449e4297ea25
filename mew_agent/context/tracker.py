"""[pure] The state of one agent's context window, and the report it gives of it at any moment.

Brings together the ledger (prices), the window (limit) and the policy (levels and decisions) and holds the rules
of the report's table: what `tokens` is after a call, a cut, a clear, a restart. Every surface reads `report`.
It knows no clock, no transport and no model; times come as arguments.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from operator import attrgetter

from mew_protocol.context_report import (
    Basis,
    ContextReport,
    Injection,
    LastCompaction,
    LastReported,
    NextPromptBasis,
    UnknownReason,
)
from mew_protocol.payloads.participant import Status

from mew_agent.context.history import History, Item, Summary, summary_text
from mew_agent.context.kept_reply import KeptReply
from mew_agent.context.ledger import Drift, Ledger, Measure
from mew_agent.context.measures import measure_of
from mew_agent.context.outcomes import CutOutcome, SavedContext
from mew_agent.context.policy import (
    NO_FLAGS,
    ContextSnapshot,
    Decision,
    GenerationFlags,
    Phase,
    Policy,
    PolicyState,
    Suggestion,
    after_clear,
    after_compaction,
    decide,
    is_stalled,
    output_reserve_tokens,
)
from mew_agent.context.report import report_of
from mew_agent.context.trend import Trend
from mew_agent.model.interface import Window
from mew_agent.model.usage import Usage
from mew_agent.tokens.projection import Calibration, Units, features

NOTHING_COUNTED: Mapping[int, int] = {}

CLOSE_CALL_PART = 20
"""A projection within a twentieth of the window from where it decides is a close call."""

_SEQ: Callable[[Item], int] = attrgetter("seq")


@dataclass
class Tracker:
    """One agent's context accounting. Feed it what happens, ask it for `report`, `status` and `decide`."""

    history: History
    policy: Policy
    window: Window
    model: str
    ledger: Ledger = field(default_factory=Ledger)
    policy_state: PolicyState = field(default_factory=PolicyState)
    injection: Injection | None = None
    suggestions: tuple[Suggestion, ...] = ()
    """Ways to save tokens, for policies that look at the messages; none where these have changed since."""

    tokens: int | None = None
    basis: Basis = "unknown"
    reason: UnknownReason | None = "no_call_yet"
    usage: Usage | None = None
    measured_at: str | None = None
    call_id: str | None = None
    measured_revision: int = 0
    drift: Drift | None = None
    compactions: int = 0
    last_compaction: LastCompaction | None = None
    served_model: str | None = None
    spent_tokens: int = 0
    """What all main calls since the last clear reported together: a budget, and no part of any window."""

    _last_reported: tuple[int, str, str] | None = None
    _described: object = None
    _counted: tuple[int, object] | None = None
    _measured_seq: int = -1
    _measured_reply_seq: int | None = None
    _is_unmeasured: bool = False
    """Whether the newest call reported nothing, and the policy has not heard of that yet."""
    _reply: KeptReply = field(default_factory=KeptReply)
    _booked_summary: Summary | None = None
    _trend: Trend = field(default_factory=Trend)

    # -- what happens ------------------------------------------------------------------------------------

    def describe_prefix(self, system_prompt: str, tools_text: str) -> None:
        """Say what is sent beside the items; call it before each request (cheap when nothing changed)."""
        described = (system_prompt, tools_text, tuple(self.history.pins))
        if described != self._described:
            self._described = described
            pins = sum(features(pin.text) for pin in self.history.pins)
            self.ledger.describe_prefix(features(system_prompt) + features(tools_text), pins)

    def server_counted(self, tokens: int) -> None:
        """The model's server counted the next request; that holds until the request becomes another one."""
        self._counted = (tokens, self._request_key())

    def item_added(self, item: Item, counted_tokens: int | None = None, units: Units | None = None) -> None:
        """Something entered the history that no reported call has sent yet.

        `counted_tokens` is what the model's tokenizer counted in `item.text()`, where there is one, and `units` its
        features where they were weighed already.
        """
        self.ledger.add(measure_of(item, counted_tokens, units))

    def item_counted(self, seq: int, counted_tokens: int) -> None:
        """The model's tokenizer counted the text of an item that was added without a count."""
        self.ledger.count(seq, counted_tokens)

    def call_kept(
        self,
        usage: Usage | None,
        *,
        call_id: str,
        at: str,
        last_seq: int,
        revision: int,
        served_model: str,
        fingerprint: str,
    ) -> None:
        """A main call ended well. `last_seq` is the newest item it sent, `revision` the history it was made from."""
        self._reply.is_awaited = False
        self.spent_tokens += usage.total_tokens if usage is not None else 0
        if revision != self.history.revision:
            return
        self._is_unmeasured = usage is None
        self._reply.forget()
        if usage is None and self.policy.on_missing == "keep_last" and self.tokens is not None:
            self.basis, self.reason = "projected", None
            return
        if usage is None:
            self._become_unknown("usage_unavailable")
            return
        self.drift = self.ledger.record(usage, served_model=served_model, fingerprint=fingerprint, last_seq=last_seq)
        self.served_model = served_model
        self.usage, self.call_id, self.measured_at = usage, call_id, at
        self.measured_revision, self._measured_seq, self._measured_reply_seq = revision, last_seq, None
        self.tokens, self.basis, self.reason = usage.total_tokens, "reported", None
        self._last_reported = usage.total_tokens, at, call_id
        self._reply.reported(usage)
        self._trend.note(usage.total_tokens, turn=self.history.turn)

    def reply_added(self, item: Item, counted_tokens: int | None = None, units: Units | None = None) -> None:
        """The reply of the call just kept entered the history; its tokens are part of the reported total."""
        measure = measure_of(item, counted_tokens, units)
        self.ledger.add(measure)
        if self._reply.enter(measure, self.ledger.calibration):
            self._measured_reply_seq = item.seq

    def cut(self, first_seq: int, last_seq: int, *, trigger: str, freed_messages: int) -> CutOutcome:
        """The history evicted first_seq..last_seq (and maybe took a summary): book it. See `stubbed` for stubs."""
        before, held, next_before = self.tokens, self._held_tokens, self.ledger.next_prompt_tokens
        price = self.ledger.cut(first_seq, last_seq)
        resummarised = self.history.summary != self._booked_summary
        summary_tokens = self._book_summary() if resummarised else 0
        if self._reply.is_in(first_seq, last_seq):
            self._reply.forget()
        freed = self._book_freed(held, next_before)
        return CutOutcome(
            trigger,
            before,
            self.tokens,
            freed,
            freed + summary_tokens,
            summary_tokens,
            freed_messages,
            "exact" if price.basis == "exact" and not resummarised else "projected",
        )

    def stubbed(self, items: list[Item], *, trigger: str, counted: Mapping[int, int] = NOTHING_COUNTED) -> CutOutcome:
        """The history replaced these tool results by notes: book it. `counted` as in `restored`."""
        before, held, next_before = self.tokens, self._held_tokens, self.ledger.next_prompt_tokens
        self.ledger.replace_items(measure_of(item, counted.get(item.seq)) for item in items)
        freed = self._book_freed(held, next_before)
        return CutOutcome(trigger, before, self.tokens, freed, freed, 0, 0, "projected")

    def compacted(self, outcome: CutOutcome, *, at: str, at_seconds: float, progressed: bool) -> None:
        """A whole compaction ended: it becomes `last_compaction`."""
        self.compactions += 1
        self.last_compaction = outcome.as_last_compaction(at)
        self.policy_state = after_compaction(self.policy_state, progressed=progressed, at_seconds=at_seconds)

    def compaction_failed(self, *, at_seconds: float) -> None:
        """A self-compaction changed nothing; enough of these and the policy stops trying."""
        self.policy_state = after_compaction(self.policy_state, progressed=False, at_seconds=at_seconds)

    def cleared(self) -> None:
        """The history was emptied by a message."""
        self.ledger.clear()
        self._booked_summary = None
        self._become_unknown("cleared")
        self._reply.forget()
        self.policy_state = after_clear(self.policy_state)
        self.spent_tokens = 0
        self.suggestions = ()
        self._trend.forget()

    def window_changed(self, window: Window) -> None:
        """The limit is another one now; levels follow at once, tokens stay."""
        if window.max_tokens > self.window.max_tokens:
            self.policy_state = replace(self.policy_state, stalls=0)
        self.window = window

    def model_changed(self, model: str, window: Window) -> None:
        """Another model serves from now on; the old model's count says nothing about it."""
        self.model, self.window = model, window
        self._reply.forget()
        if self.reason != "no_call_yet":
            self._become_unknown("model_changed")
        self._trend.forget()

    def restored(self, saved: SavedContext, counted: Mapping[int, int] = NOTHING_COUNTED) -> None:
        """The process restarted with a stored history: what was reported then is old news, and says so.

        `counted` are tokens by the seq of the item, where the model's tokenizer counted its text.
        """
        last = saved.last_reported
        if last is not None:
            self.measured_at, self.call_id = last.measured_at, last.call_id
            self._last_reported = last.tokens, last.measured_at, last.call_id
        self.measured_revision, self._measured_seq = saved.measured_revision, saved.measured_seq
        self._measured_reply_seq = saved.measured_reply_seq
        self.compactions, self.last_compaction = saved.compactions, saved.last_compaction
        self.policy_state = saved.policy_state
        self.served_model, self.spent_tokens = saved.served_model, saved.spent_tokens
        self.ledger.learnt = {name: Calibration.restored(c) for name, c in saved.calibrations.items()}
        if saved.served_model in self.ledger.learnt:
            self.ledger.calibration = self.ledger.learnt[saved.served_model]
        self._book_summary()
        for item in self.history.items:
            self.ledger.add(measure_of(item, counted.get(item.seq)))
        if saved.anchor is not None and saved.anchor.model == self.model:
            self.ledger.resume(saved.anchor, saved.served_model)
            self._described = None
        if saved.last_reported is not None or len(self.history) or self.history.summary is not None:
            self._become_unknown("restarted")

    def saved(self) -> SavedContext:
        """What to store so that `restored` can take up from here."""
        return SavedContext(
            last_reported=self.last_reported,
            measured_revision=self.measured_revision,
            measured_seq=self._measured_seq,
            measured_reply_seq=self._measured_reply_seq,
            compactions=self.compactions,
            last_compaction=self.last_compaction,
            policy_state=self.policy_state,
            served_model=self.served_model,
            calibrations={name: c.saved() for name, c in self.ledger.learnt.items()},
            spent_tokens=self.spent_tokens,
            anchor=self.ledger.anchor(self.model),
        )

    # -- what can be asked -------------------------------------------------------------------------------

    def snapshot(self, at_seconds: float = 0.0) -> ContextSnapshot:
        """What the policy looks at now."""
        policy, used_tokens, basis = self.policy, self.tokens, self.basis
        if policy.measure == "cumulative":
            # Spend is a sum of reports, whatever happened to the window since.
            used_tokens = None if self.reason == "usage_unavailable" else self.spent_tokens or None
            basis = "unknown" if used_tokens is None else "reported"
        elif used_tokens is not None:
            if policy.measure == "prompt":
                used_tokens -= self._reply.tokens
            if policy.counts_messages:
                used_tokens += self.unsent_beside_reply_tokens
        return ContextSnapshot(
            used_tokens,
            basis,
            self.limit_tokens,
            self.reason,
            self._reply.hidden_tokens if policy.measure == "total" else 0,
            self.next_prompt_tokens,
            at_seconds,
            self.call_id,
            suggestions=self.suggestions,
        )

    def decide(self, phase: Phase, at_seconds: float, flags: GenerationFlags = NO_FLAGS) -> Decision:
        """Ask the policy, and keep the state it answers with. It hears once of a call that reported nothing."""
        snapshot = self.snapshot(at_seconds)
        if phase == "after_call" and self._is_unmeasured:
            snapshot, self._is_unmeasured = snapshot._replace(reason="usage_unavailable"), False
        return self.decide_on(snapshot, phase, flags)

    def decide_while(self, phase: Phase, used_tokens: int, *, tool_result_tokens: int | None = None) -> Decision:
        """Ask the policy in the middle of something, when the context holds so much by projection."""
        snapshot = self.snapshot()._replace(
            used_tokens=used_tokens,
            basis="projected",
            reason=None,
            hidden_tokens=0,
            tool_result_tokens=tool_result_tokens,
        )
        return self.decide_on(snapshot, phase)

    def decide_on(self, snapshot: ContextSnapshot, phase: Phase, flags: GenerationFlags = NO_FLAGS) -> Decision:
        """Ask the policy about a moment, and keep the state it answers with."""
        decision = decide(self.policy, self.policy_state, snapshot, phase, flags)
        self.policy_state = decision.state
        return decision

    @property
    def shown_basis(self) -> tuple[Basis, UnknownReason | None]:
        """How `tokens` is known; where a policy cannot work without a window, nothing is without one."""
        if self.tokens is not None and self.limit_tokens is None:
            return "unknown", "limit_unavailable"
        return self.basis, self.reason

    @property
    def limit_tokens(self) -> int | None:
        """The window the policy reckons with; None where it is only assumed and the policy assumes nothing."""
        if self.window.basis == "assumed" and self.policy.limit_missing != "assume":
            return None
        return self.window.max_tokens

    @property
    def last_reported(self) -> LastReported | None:
        """The newest figure that a provider reported; None before the first one."""
        if self._last_reported is None:
            return None
        tokens, measured_at, call_id = self._last_reported
        return LastReported(tokens=tokens, measured_at=measured_at, call_id=call_id)

    @property
    def next_prompt_tokens(self) -> int:
        """What the next request will hold if nothing else arrives."""
        counted = self._current_count()
        return self.ledger.next_prompt_tokens if counted is None else counted

    @property
    def is_close_call(self) -> bool:
        """Whether the projection decides something that its error could turn, so that counting is worth a request."""
        limit, projected = self.window.max_tokens, self.ledger.next_prompt_tokens
        if self.ledger.prompt_tokens is None:
            return projected * 2 >= limit
        return abs(projected + output_reserve_tokens(limit) - limit) * CLOSE_CALL_PART <= limit

    @property
    def is_stalled(self) -> bool:
        """Whether self-compaction has stopped because it did not help."""
        return is_stalled(self.policy, self.policy_state)

    @property
    def next_prompt_basis(self) -> NextPromptBasis:
        """How that is known."""
        return self.ledger.next_prompt_basis if self._current_count() is None else "server_counted"

    @property
    def tokens_per_turn(self) -> float | None:
        """Growth of the reported total over the recent turns; None until two calls can be compared."""
        return self._trend.tokens_per_turn

    @property
    def unsent_beside_reply_tokens(self) -> int:
        """The unsent tail without the kept reply, which the reported total holds already."""
        unsent, reply = self.ledger.unsent_tokens, self._reply.seq
        return unsent if reply is None else max(0, unsent - self.ledger.unsent_price(reply))

    @property
    def stale_messages(self) -> int:
        """How many items of the history the newest measurement does not cover."""
        items, reply = self.history.items, self._measured_reply_seq
        if not items or items[-1].seq <= self._measured_seq:
            return 0
        count = len(items) - bisect_right(items, self._measured_seq, key=_SEQ)
        if reply is None:
            return count
        place = bisect_left(items, reply, key=_SEQ)
        return count - (place < len(items) and items[place].seq == reply)

    def size_of_summary(self, summary: Summary) -> int:
        """Tokens that a summary will probably take in a prompt, with its heading and the template's overhead."""
        return self._measure_summary(summary).project(self.ledger.calibration)

    @property
    def is_truncated_by_server(self) -> bool:
        """Whether the newest reported prompt shows that the server left out part of what we sent."""
        return self.basis == "reported" and self.drift is not None and self.drift.truncated_by_server

    def report(self) -> ContextReport:
        """The context report of this moment (architecture of the report: docs/context-report.md)."""
        return report_of(self)

    def status(self, status: str, latency_ms: int | None = None) -> Status:
        """The payload of `participant/status`; `tokens` is left out when it is not known."""
        return Status(
            tokens=None if self.shown_basis[0] == "unknown" else self.tokens,
            max_tokens=self.limit_tokens,
            messages_in_context=len(self.history),
            status=status,
            latency_ms=latency_ms,
            context=self.report(),
        )

    # -- inside ------------------------------------------------------------------------------------------

    def _request_key(self) -> object:
        return (self.history.revision, self.history.last_seq, self._described)

    def _current_count(self) -> int | None:
        return self._counted[0] if self._counted is not None and self._counted[1] == self._request_key() else None

    @property
    def _held_tokens(self) -> int:
        """The last reported prompt and its reply, minus what was cut since."""
        return (self.ledger.prompt_tokens or 0) + self._reply.tokens

    def _become_unknown(self, reason: UnknownReason) -> None:
        self.tokens, self.basis, self.reason = None, "unknown", reason
        self._reply.hidden_tokens = 0

    def _book_summary(self) -> int:
        self._booked_summary = summary = self.history.summary
        return self.ledger.summarised(None if summary is None else self._measure_summary(summary))

    def _measure_summary(self, summary: Summary) -> Measure:
        known = None if summary.known_tokens is None else summary.known_tokens + self._heading_tokens()
        return Measure(-1, features(summary_text(summary.text)), known)

    def _heading_tokens(self) -> int:
        return self.ledger.calibration.project(features(summary_text("")), messages=0)

    def _book_freed(self, held_before: int, next_before: int) -> int:
        """Move `tokens` by what the books lost. Returns that; what the next prompt lost where `tokens` is unknown."""
        self._trend.interrupt()
        self.suggestions = ()
        if self.tokens is None:
            return next_before - self.ledger.next_prompt_tokens
        freed = min(self.tokens, held_before - self._held_tokens)
        if freed:
            self.tokens, self.basis, self.reason = self.tokens - freed, "projected", None
        return freed
