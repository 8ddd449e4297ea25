"""[pure] The accounts of one agent's context window, the size of its next request, and its reports.

Owns the order in which an event changes measurement, ledger, next prompt, window and policy state, and the keys of a
report. Does not know the clock, the transport or the model.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from mew_listener.bounded_dict import cached_by_text
from mew_protocol.context_report import (
    ContextReport,
    Injection,
    LastCompaction,
    PartBasis,
    PinReport,
    Progress,
    QueuedMessages,
    SavingSuggestion,
    SenderSpending,
    SessionContext,
    Spending,
    Waiting,
    answer_reserve_tokens,
    pin_hash,
)
from mew_protocol.payloads.participant import Status

from mew_agent.context import policy as policies
from mew_agent.context.archive import UNDO, RestorePoint
from mew_agent.context.cuts import CountedCut, CutOutcome
from mew_agent.context.facts import (
    Appended,
    Cleared,
    Cut,
    CutCounted,
    Described,
    Learnt,
    PromptCounted,
    PutBack,
    Replaced,
    Reported,
    Resumed,
    Summarised,
)
from mew_agent.context.history import History, Item, Summary, pin_line, pinned_text
from mew_agent.context.item_sizes import item_size, summary_size
from mew_agent.context.ledger import Ledger, fold
from mew_agent.context.measurement import KeptReply, Measurement
from mew_agent.context.persisted_state import CallRecord, PromptAnchor, SavedContext
from mew_agent.context.policy import (
    NO_FLAGS,
    ContextSnapshot,
    Decision,
    GenerationFlags,
    Phase,
    Policy,
    level_of,
)
from mew_agent.context.policy.definition import MessageSums
from mew_agent.context.preamble import FixedTexts
from mew_agent.context.reconciliation import Drift, Terms
from mew_agent.model.interface import Window
from mew_agent.model.usage import implausibility
from mew_agent.tokens.projection import Calibration, Units, features

CLOSE_CALL_PART = 20  # a projection within 1/20 of the window from its threshold is a close call


@dataclass
class Tracker:
    """One agent's context accounts. Report events to it; read `report`, `status` and decisions from it."""

    history: History
    policy: Policy
    window: Window
    model: str
    ledger: Ledger = field(default_factory=Ledger)
    measurement: Measurement = field(default_factory=Measurement)
    policy_state: policies.PolicyState = field(default_factory=policies.PolicyState)
    injection: Injection | None = None
    suggestions: tuple[policies.Suggestion, ...] = ()
    """Ways to save tokens, for policies that count messages; emptied when messages are removed."""
    waiting: tuple[Waiting, ...] = ()
    """The agent's waits: part of every report, but not of the accounts."""
    model_wait: Waiting | None = None
    """How the newest main call failed and since when; None if it did not."""
    progress: Progress | None = None
    queued: QueuedMessages | None = None
    """The chats that arrived and are not in the context; None if they are not counted."""
    spent_for: tuple[SenderSpending, ...] = ()
    """The agent's spending for each sender, also part of every report."""
    sessions: tuple[SessionContext, ...] = ()
    """The contexts of the agent's sessions, for every report too."""
    spending: Spending | None = None
    compactions: int = 0
    last_compaction: LastCompaction | None = None
    is_window_awaited: bool = False
    """Whether the server has been asked for its window and has not answered. Reports show no limit until then."""

    limit_tokens: int | None = field(init=False)
    """The window of the policy; None if its size is only assumed and the policy does not allow that."""
    shown_limit_tokens: int | None = field(init=False)
    """The window in reports."""
    lacks_window: bool = field(init=False)
    """Whether the policy cannot work because the size of the window is not known."""
    usable_tokens: int = field(init=False)
    """The window without room for an answer."""

    _recorded_summary: Summary | None = None
    _prefix: object = None
    _sums: MessageSums = field(default_factory=MessageSums)
    _summed: tuple[int, int] = -1, 0
    """The revision of the history, and the number of its items in `_sums`."""

    def __post_init__(self) -> None:
        self.window_changed(self.window)

    def describe_prefix(self, system_prompt: str, tools_text: str) -> None:
        """Set the texts sent before the items. Call it before each request; unchanged texts take no time."""
        prefix = (system_prompt, tools_text, tuple(self.history.pins))
        if prefix != self._prefix:
            self._prefix = prefix
            pins = features(pinned_text(self.history.pins))
            self.ledger.apply(Described(FixedTexts(features(system_prompt) + features(tools_text), pins)))

    def item_added(self, item: Item, counted_tokens: int | None = None, units: Units | None = None) -> None:
        """Add a new item of the history. `counted_tokens` is a tokenizer's count of its text, `units` its features.

        An item of the assistant is the reply of the call just kept, whose reported total includes it.
        """
        size, measurement = item_size(item, counted_tokens, units), self.measurement
        self.ledger.apply(Appended(size))
        if item.role == "assistant" and measurement.reply.identify(size, self.ledger.calibration):
            measurement.reply_seq = item.seq

    def call_kept(self, call: CallRecord, *, last_seq: int, fingerprint: str, backend: str | None = None) -> str | None:
        """Record a successful main call with the items up to `last_seq`; `backend` as in `ModelReply`.

        Returns why its usage is implausible, else None. Implausible usage changes no figure.
        """
        measurement, ledger, usage, problem = self.measurement, self.ledger, call.usage, None
        measurement.reply.is_awaited = False
        if usage is not None:
            # An assumed window is no evidence against a report.
            window_tokens = None if self.window.basis == "assumed" else self.window.max_tokens
            problem = implausibility(
                usage,
                window_tokens=window_tokens,
                before=ledger.prompt_tokens,
                project=lambda: ledger.projected_tokens,
            )
            usage = usage if problem is None else None
        if usage is not None:
            measurement.spent_since_clear += usage.billed.total_tokens
        if call.revision != self.history.revision:
            return problem  # it measured an earlier history, so it only adds to the spent tokens
        measurement.is_undecided = usage is None
        if usage is None:
            measurement.reply = KeptReply()
            if problem is not None:
                measurement.become_unknown("usage_implausible")
            else:
                measurement.record_missing_usage(call.model, keep_last=self.policy.on_missing == "keep_last")
            return problem
        measurement.record(usage, call, last_seq=last_seq, turn=self.history.turn)
        if usage.is_sum:
            return None  # not comparable with other prompts; the next one teaches the items before this call, too
        ledger.apply(Reported(usage.prompt_tokens, Terms(call.model, fingerprint, backend), last_seq))
        return None

    def cut(
        self, first_seq: int, last_seq: int, *, trigger: str, freed_messages: int, summary_counted: int | None = None
    ) -> CutOutcome:
        """Remove the items first_seq..last_seq that left the history, perhaps for a new summary.

        `summary_counted` is a tokenizer's count of the new summary under its heading.
        """
        before, held, next_before = self.measurement.tokens, self._held_tokens, self.ledger.projected_tokens
        price, ledger = self.ledger.price(first_seq, last_seq), self.ledger
        ledger.apply(Cut(first_seq, last_seq))
        is_resummarised = self.history.summary != self._recorded_summary
        gross_basis: PartBasis = price.basis
        if self.measurement.tokens is not None and last_seq > self.measurement.last_seq:
            gross_basis = "projected"  # the reported size does not include all of it, or includes it in another form
        if is_resummarised and self._recorded_summary is not None:
            gross_basis = _with_counted(gross_basis, is_counted=ledger.is_summary_counted)
        summary_tokens = self._record_summary(counted=summary_counted) if is_resummarised else 0
        if self.measurement.reply.is_in(first_seq, last_seq):
            self.measurement.reply = KeptReply()
        freed = self._record_freed(held, next_before)
        basis, gross = gross_basis, freed + summary_tokens
        if is_resummarised and self.history.summary is not None:
            basis = _with_counted(gross_basis, is_counted=ledger.is_summary_counted)
        figures = before, self.measurement.tokens, freed, gross, summary_tokens, freed_messages
        return CutOutcome(trigger, *figures, basis, gross_basis)

    def stubbed(self, items: list[Item], *, trigger: str, counted: Mapping[int, int]) -> CutOutcome:
        """Replace tool results by these stubs, as the history did. `counted` are counted tokens by seq."""
        before, held, next_before = self.measurement.tokens, self._held_tokens, self.ledger.projected_tokens
        stubs = tuple(item_size(item, counted.get(item.seq)) for item in items)
        price = self.ledger.saving(stubs)
        self.ledger.apply(Replaced(stubs))
        freed = self._record_freed(held, next_before)
        return CutOutcome(trigger, before, self.measurement.tokens, freed, freed, 0, 0, price.basis, price.basis)

    def restore_point(self, seqs: Sequence[int]) -> RestorePoint:
        """Return the figures that a cut of these items may change, for `put_back`."""
        prices, kept = self.ledger.item_prices(), self.measurement.reply.figures
        return RestorePoint(
            prices={seq: prices[seq] for seq in seqs if seq in prices},
            booked_until=self.ledger.items.sent_until,
            summary_tokens=self.ledger.preamble.summary_tokens,
            tokens=self.measurement.tokens,
            reply=kept if kept is not None and kept[0] in seqs else None,
            anchor=self.ledger.anchor(self.model),
        )

    def put_back(
        self,
        returned: Sequence[Item],
        replaced: Sequence[Item],
        point: RestorePoint,
        counted: Mapping[int, int],
    ) -> CutOutcome:
        """Restore the items of an undo, and the earlier summary; `point` has their figures."""
        before, held, next_before = self.measurement.tokens, self._held_tokens, self.ledger.projected_tokens
        ledger, was_reported = self.ledger, self.ledger.prompt_tokens is not None
        back, texts = (
            tuple(item_size(item, counted.get(item.seq)) for item in items) for items in (returned, replaced)
        )
        ledger.apply(PutBack(back, texts, point.prices, point.booked_until))
        self._record_summary(point.summary_tokens)
        # If nothing was reported since a clear, the last report belongs to the restored history.
        resumes = not was_reported and self._resume(point.anchor, self.measurement.served_model)
        self._return_reply(point, {size.seq for size in (*back, *texts)})
        self._restore_tokens(point, held, next_before, resumes=resumes)
        grown = ledger.projected_tokens - next_before
        if before is not None and self.measurement.tokens is not None:
            grown = self.measurement.tokens - before
        return CutOutcome(UNDO, before, self.measurement.tokens, -grown, -grown, 0, -len(returned), "projected")

    def _restore_tokens(self, point: RestorePoint, held: int, next_before: int, *, resumes: bool) -> None:
        if self.measurement.tokens is not None:
            self._record_freed(held, next_before)
        elif resumes or self.measurement.reason == "cleared":
            self.measurement.resume(self._tokens_at(point) if resumes else None)

    def _resume(self, anchor: PromptAnchor | None, served_model: str | None) -> bool:
        """Continue from a reported prompt of this model. Returns False if there is none."""
        if anchor is None or anchor.model != self.model:
            return False
        self.ledger.apply(Resumed(anchor, served_model))
        self._prefix = None  # to be weighed again
        return True

    def _tokens_at(self, point: RestorePoint) -> int | None:
        """Return the context's size at a restore point, without a reply whose calls have not returned."""
        if point.tokens is None or point.reply is None or self.measurement.reply.seq is not None:
            return point.tokens
        return point.tokens - point.reply[1]

    def _return_reply(self, point: RestorePoint, returned: set[int]) -> None:
        """Restore the kept reply of a restore point, unless a newer reply or a report replaced it."""
        if point.reply is None or self.measurement.reply.seq is not None:
            return
        if self.ledger.items.sent_until < point.reply[0] in returned:
            seq, tokens, hidden_tokens = point.reply
            self.measurement.reply = KeptReply(tokens, hidden_tokens, seq)

    def correct_cut(
        self, outcome: CutOutcome, counted: CountedCut, *, projected_tokens: int, was_measured: bool
    ) -> CutOutcome:
        """Correct a cut with the server's count; `projected_tokens` is its projected reduction of the next prompt.

        Returns the outcome with the counted figures, unless `was_measured` says that the reported size did not include
        all removed items.
        """
        self.ledger.apply(CutCounted(counted.freed_tokens - projected_tokens, counted.summary_tokens))
        if counted.is_next_prompt:
            self.ledger.apply(PromptCounted(counted.after))
        before = outcome.tokens_before
        if before is not None:
            if not was_measured:
                return outcome
            self.measurement.become(max(0, before - counted.freed_tokens), "server_counted")
        return counted.correct(outcome, self.measurement.tokens)

    def compaction_ended(self, *, progressed: bool, at_seconds: float) -> None:
        """Record the end of a compaction. After several without progress, the policy stops compacting."""
        tokens = self.ledger.next_prompt_tokens
        self.policy_state = policies.after_compaction(
            self.policy_state, progressed=progressed, at_seconds=at_seconds, tokens=tokens
        )

    def compacted(self, outcome: CutOutcome, *, at: str, at_seconds: float, progressed: bool) -> None:
        """Record a complete compaction as `last_compaction`."""
        self.compactions += 1
        self.last_compaction = outcome.as_last_compaction(at)
        self.compaction_ended(progressed=progressed, at_seconds=at_seconds)

    def cleared(self) -> None:
        """Start over after the history was cleared."""
        self.ledger.apply(Cleared())
        self._recorded_summary = None
        self.measurement.clear()
        self.policy_state = policies.after_clear(self.policy_state)
        self.suggestions = ()

    def forget_stalls(self) -> None:
        """Forget failed compactions, because their cause is gone."""
        self.policy_state = replace(self.policy_state, stalls=0)

    def window_changed(self, window: Window) -> None:
        """Set a new window size. Levels change at once; the measured tokens stay."""
        if window.max_tokens > self.window.max_tokens:
            self.forget_stalls()
        self.window = window
        self.usable_tokens = window.max_tokens - answer_reserve_tokens(window.max_tokens)
        may_use = window.basis != "assumed" or self.policy.limit_missing == "assume"
        self.limit_tokens = self.shown_limit_tokens = window.max_tokens if may_use else None
        if self.is_window_awaited and window.basis == "assumed":
            self.shown_limit_tokens = None
        self.lacks_window = self.limit_tokens is None and self.policy.limit_missing == "error"

    def await_window(self, *, is_awaited: bool) -> None:
        """Note that the server was asked for its window, has answered, or has failed."""
        self.is_window_awaited = is_awaited
        self.window_changed(self.window)

    def restored(self, saved: SavedContext, counted: Mapping[int, int]) -> None:
        """Continue from a stored history. `counted` are a tokenizer's counts by seq."""
        self.measurement.restore(saved)
        self.compactions, self.last_compaction = saved.compactions, saved.last_compaction
        self.policy_state, self.spending = saved.policy_state, saved.spending
        learnt = {name: Calibration.restored(figures) for name, figures in saved.calibrations.items()}
        self.ledger.apply(Learnt(learnt, saved.served_model))
        self._record_summary()
        fold((Appended(item_size(item, counted.get(item.seq))) for item in self.history.items), self.ledger)
        self._resume(saved.anchor, saved.served_model)
        if saved.last_reported is not None or len(self.history.items) or self.history.summary is not None:
            self.measurement.become_unknown("restarted")

    def saved(self) -> SavedContext:
        """Return the state to store for `restored`."""
        measurement = self.measurement
        return SavedContext(
            last_reported=measurement.last_reported,
            measured_revision=measurement.revision,
            measured_seq=measurement.last_seq,
            measured_reply_seq=measurement.reply_seq,
            compactions=self.compactions,
            last_compaction=self.last_compaction,
            policy_state=self.policy_state,
            served_model=measurement.served_model,
            calibrations={name: c.saved() for name, c in self.ledger.evidence.learnt.items()},
            spent_tokens=measurement.spent_since_clear,
            spending=self.spending,
            growth=tuple(measurement.trend.growth),
            anchor=self.ledger.anchor(self.model),
        )

    def snapshot(self, at_seconds: float = 0.0) -> ContextSnapshot:
        """Return the current input of the policy."""
        policy, measurement, measure = self.policy, self.measurement, self.policy.measure
        used_tokens, basis = measurement.tokens, measurement.basis
        if measure == "cumulative":
            # The spend is a sum of reports, independent of changes of the window.
            is_missing = measurement.reason in ("usage_unavailable", "model_changed")
            used_tokens = None if is_missing else measurement.spent_since_clear or None
            basis = "unknown" if used_tokens is None else "reported"
        elif used_tokens is not None:
            if measure == "prompt":
                used_tokens -= measurement.reply.tokens
            if policy.counts_messages:
                used_tokens += self.unsent_besides_reply_tokens
        return ContextSnapshot(
            used_tokens,
            basis,
            self.limit_tokens,
            measurement.reason,
            measurement.reply.hidden_tokens if measure == "total" else 0,
            self.ledger.next_prompt_tokens,
            at_seconds,
            measurement.call_id,
            suggestions=self.suggestions,
        )

    def decide(
        self,
        phase: Phase,
        at_seconds: float,
        flags: GenerationFlags = NO_FLAGS,
        *,
        used_tokens: int | None = None,
        tool_result_tokens: int | None = None,
    ) -> Decision:
        """Let the policy decide, and keep its new state. Runs once for a call without usage.

        During a reply, or before a tool result enters, `used_tokens` is the projected size of the context.
        """
        if self.policy.suggests and phase in ("after_call", "message_added", "task_end"):
            window_tokens = self.limit_tokens or self.window.max_tokens
            project = self.ledger.calibration.project
            self.suggestions = self.policy.suggestions(self._message_sums(), project, window_tokens)
        snapshot = self.snapshot(at_seconds)
        if phase == "after_call" and self.measurement.is_undecided:
            # With `keep_last` the snapshot does not say that the usage is missing.
            snapshot, self.measurement.is_undecided = snapshot._replace(reason="usage_unavailable"), False
        if phase == "task_end":
            snapshot = snapshot._replace(
                usual_task_tokens=self.measurement.trend.usual_task_tokens,
                grown_tokens=self.ledger.next_prompt_tokens - (self.policy_state.compacted_to_tokens or 0),
            )
        if used_tokens is not None:
            snapshot = snapshot._replace(used_tokens=used_tokens, basis="projected", reason=None, hidden_tokens=0)
            snapshot = snapshot._replace(tool_result_tokens=tool_result_tokens)
        decision = policies.decide(self.policy, self.policy_state, snapshot, phase, flags)
        self.policy_state = decision.state
        return decision

    @property
    def is_stalled(self) -> bool:
        """Whether compactions by the policy have stopped because they did not help."""
        return policies.is_stalled(self.policy, self.policy_state)

    @property
    def unsent_besides_reply_tokens(self) -> int:
        """The unsent tail without the kept reply: the reported total includes it."""
        unsent, reply = self.ledger.items.unsent_tokens, self.measurement.reply.seq
        return unsent if reply is None else max(0, unsent - self.ledger.projection(reply))

    @property
    def truncation(self) -> Drift | None:
        """The newest report's drift if it shows that the server omitted part of the request; else None."""
        drift = self.ledger.evidence.drift if self.measurement.basis == "reported" else None
        return drift if drift is not None and drift.truncated_by_server else None

    def size_of_summary(self, summary: Summary) -> int:
        """Project the tokens of a summary in a prompt, including its heading and the template's overhead."""
        return summary_size(summary, self.ledger.calibration).project(self.ledger.calibration)

    @property
    def request_key(self) -> object:
        """The identity of the next request. A count is valid while this stays the same."""
        return (self.history.revision, self.history.last_seq, self._prefix)

    def is_close_call(self) -> bool:
        """Return whether the projection's error could change a decision, so that a count is worth a request."""
        projected, window_tokens = self.ledger.projected_tokens, self.window.max_tokens
        if self.ledger.prompt_tokens is None:
            return projected * 2 >= window_tokens
        return abs(projected - self.usable_tokens) * CLOSE_CALL_PART <= window_tokens

    def would_overflow(self, added_tokens: int = 0) -> bool:
        """Return whether the next request exceeds the window with these tokens and room for an answer."""
        return self.ledger.next_prompt_tokens + added_tokens > self.usable_tokens

    def free_tokens(self, kept: tuple[int, int] | None) -> tuple[int, int]:
        """Return the free tokens now, and if only the items with these seqs remained."""
        parts = self.ledger.parts
        fixed_tokens = parts.prefix + parts.summary + parts.pins
        fixed_tokens += 0 if kept is None else self.ledger.price(*kept).tokens
        usable = self.usable_tokens
        return max(0, usable - self.ledger.next_prompt_tokens), max(0, usable - fixed_tokens)

    def report(self) -> ContextReport:
        """Return the current context report (see docs/reference/context-report.md).

        Each figure has its basis. Unknown figures are left out.
        """
        snapshot, policy, measurement = self.snapshot(), self.policy, self.measurement
        level, severity = level_of(policy, snapshot)
        limit_tokens = self.shown_limit_tokens
        known: dict[str, Any] = {
            "measure": policy.measure,
            "max_tokens_basis": None if limit_tokens is None else self.window.basis,
            "level": level,
            "severity": "unknown" if severity is None else severity,
            "policy": policy.name,
            "stale_messages": measurement.stale_messages(self.history.items),
            "measured_at": measurement.measured_at,
            "call_id": measurement.call_id,
            "revision": measurement.revision,
            "compactions": self.compactions,
            "last_compaction": self.last_compaction,
            "injection": self.injection,
            "waiting": (*self.waiting, *filter(None, (self.model_wait,))) or None,
            "progress": self.progress,
            "spending": self.spending,
            "spent_for": self.spent_for or None,
            "queued": self.queued,
            "sessions": self.sessions or None,
            "pins": self.pin_reports() if self.history.pins else None,
            "suggestions": tuple(map(_shown, snapshot.suggestions)) or None,
            "model": self.model,
        }
        if (drift := self.ledger.evidence.drift) is not None:
            known["drift_tokens"] = drift.tokens
        if snapshot.next_prompt_tokens:
            known["next_prompt_tokens"] = snapshot.next_prompt_tokens
            known["next_prompt_basis"] = self.ledger.next_prompt_basis
        self._add_usage(known)
        self._add_outlook(known, snapshot.used_tokens, limit_tokens)
        # Validate the report once: a report follows every call, and building each part alone costs twice as much.
        return ContextReport.model_validate(known)

    def status(self, status: str, latency_ms: int | None = None) -> Status:
        """Return the payload of `participant/status`; leaves out `tokens` if they are unknown."""
        report = self.report()
        return Status(
            tokens=None if report.basis == "unknown" else self.measurement.tokens,
            max_tokens=self.shown_limit_tokens,
            messages_in_context=len(self.history.items),
            status=status,
            latency_ms=latency_ms,
            context=report,
        )

    def _add_usage(self, known: dict[str, Any]) -> None:
        """Add the basis of the size, the valid figures of the newest usage, and the parts."""
        measurement, usage = self.measurement, self.measurement.usage
        basis, reason = measurement.basis, measurement.reason
        if measurement.tokens is not None and self.limit_tokens is None:  # the policy needs a window
            basis, reason = "unknown", "limit_unavailable"
        known["basis"], known["reason"] = basis, reason
        if basis != "reported":
            known["last_reported"] = measurement.last_reported
        if basis in ("reported", "provisional") and usage is not None:
            known["prompt_tokens"], known["cached_tokens"] = usage.prompt_tokens, usage.cached_tokens
            if basis == "reported":
                known["completion_tokens"], known["reasoning_tokens"] = usage.completion_tokens, usage.reasoning_tokens
            elif usage.is_sum:
                return  # it is larger than the context
        if measurement.tokens is not None and basis != "unknown":
            known["breakdown"] = self._breakdown(measurement.tokens)

    def _add_outlook(self, known: dict[str, Any], used_tokens: int | None, limit_tokens: int | None) -> None:
        """Add the spend and its budget, or the trend and the next compaction."""
        # A spend is not part of the window, so no compaction can lower it.
        if self.policy.measure == "cumulative":
            known["spent_tokens"], known["budget_tokens"] = used_tokens, _budget_tokens(self.policy)
            return
        at = known["compact_at_tokens"] = self.policy.marks(limit_tokens).compact_at_tokens
        per_turn = self.measurement.trend.tokens_per_turn
        if per_turn is None:
            return
        known["tokens_per_turn"] = round(per_turn, 1)
        if per_turn > 0 and at is not None and used_tokens is not None:
            known["turns_to_compaction"] = max(0, math.ceil((at - used_tokens) / per_turn))

    def _breakdown(self, tokens: int) -> tuple[dict[str, Any], ...] | None:
        """Return the parts of `tokens` in the form of `BreakdownPart`; None if the accounts do not explain them."""
        prompt_tokens = self.ledger.prompt_tokens
        if prompt_tokens is None or tokens < prompt_tokens:
            return None
        sizes = self.ledger.parts
        rows = (
            ("prefix", sizes.prefix, "projected"),
            ("summary", sizes.summary, "projected"),
            ("pins", sizes.pins, "projected"),
            ("messages", sizes.messages, "exact" if sizes.items_exact and not sizes.tool_results else "projected"),
            ("tool_results", sizes.tool_results, "projected"),
            ("reply", tokens - prompt_tokens, "reported" if self.measurement.basis == "reported" else "projected"),
            ("unsent", self.unsent_besides_reply_tokens if sizes.unsent else 0, "projected"),
        )
        return tuple([{"part": part, "tokens": size, "basis": basis} for part, size, basis in rows if size])

    def pin_reports(self) -> tuple[PinReport, ...]:
        """Return the pins in the form of reports."""
        project = self.ledger.calibration.project
        return tuple(
            PinReport(
                id=pin.id,
                hash=pin_hash(pin.text),
                tokens=project(_features_of(pin_line(pin)), messages=0),
                origin=pin.origin,
            )
            for pin in self.history.pins
        )

    @property
    def _held_tokens(self) -> int:
        """The last reported prompt and its reply, minus later cuts."""
        return (self.ledger.prompt_tokens or 0) + self.measurement.reply.tokens

    def _message_sums(self) -> MessageSums:
        """Return the features of the messages. Adds only new messages."""
        items, sizes, (revision, count) = self.history.items, self.ledger.items.sizes, self._summed
        if revision != self.history.revision:
            self._sums, count = MessageSums(), 0
        self._summed = self.history.revision, len(items)
        # Both lists end with the same items. The policy's own prompts are not a participant's messages.
        for item, size in zip(items[count:], sizes[len(sizes) - len(items) + count :], strict=True):
            self._sums.add(size.features, None if item.notice else item.role)
        return self._sums

    def _record_summary(self, tokens: int | None = None, counted: int | None = None) -> int:
        self._recorded_summary = summary = self.history.summary
        size = None if summary is None else summary_size(summary, self.ledger.calibration, counted)
        self.ledger.apply(Summarised(size, tokens))
        return self.ledger.preamble.summary_tokens

    def _record_freed(self, held_before: int, next_before: int) -> int:
        """Subtract the accounts' reduction from `tokens`, and return it; if `tokens` is unknown, that of the next
        prompt.
        """
        self.measurement.trend.interrupt()
        self.suggestions = ()
        if self.measurement.tokens is None:
            return next_before - self.ledger.projected_tokens
        freed = min(self.measurement.tokens, held_before - self._held_tokens)
        if freed:
            self.measurement.become(self.measurement.tokens - freed, "projected")
        return freed


def _shown(one: policies.Suggestion) -> SavingSuggestion:
    return SavingSuggestion(text=one.text, tokens_saved=one.tokens_saved, impact=one.impact)


def _with_counted(basis: PartBasis, *, is_counted: bool) -> PartBasis:
    """Return the basis of a sum: a figure plus one that is counted by a tokenizer or projected."""
    return "tokenizer" if is_counted and basis != "projected" else "projected"


@cached_by_text(1_000_000)
def _features_of(text: str) -> Units:
    """Return the features of texts, cached because every report needs them and pins rarely change."""
    return features(text)


def _budget_tokens(policy: Policy) -> int | None:
    """Return the smallest spend in the policy's conditions; None without one."""
    marks = (c.tokens for c in policy.conditions() if c.figure == "used" and c.op != "lt")
    return min((tokens for tokens in marks if tokens is not None), default=None)
