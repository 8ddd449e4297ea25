"""[pure] Notices about an agent's context for readers of an answer: their texts and order."""

from typing import Final, Literal, NamedTuple

from mew_agent.participant.peers import PeerContext

PAUSED_TEXT: Final = "paused; the answer comes after the agent is resumed"

Stage = Literal["begun", "ended", "paused"]


class ContextNote(NamedTuple):
    """One notice for the reader, and its stage."""

    stage: Stage
    text: str


class ContextNotes:
    """Derives the notices about one agent from its whole statuses, in order."""

    def __init__(self, known: PeerContext | None = None) -> None:
        """`known` is the agent's last status; earlier events are not announced."""
        self.is_compacting = known is not None and known.status == "compacting"
        self._context = known or PeerContext()

    def update(self, context: PeerContext) -> ContextNote | None:
        """Read a status. Returns the notice to show, None if there is nothing to announce."""
        before, self._context = self._context, context
        match word := context.word.word:
            case "compacting":
                if self.is_compacting:
                    return None
                self.is_compacting = True
                return ContextNote("begun", self.compacting_text())
            case "compacted":
                self.is_compacting = False
                return ContextNote("ended", _ended_text(before, context))
            case "compaction_failed" | "compaction_stalled":
                self.is_compacting = False
                why = context.word.reason or "no reason given"
                return ContextNote("ended", f"{word.replace('_', ' ')}: {why}")
            case "paused":
                is_new = context.is_paused and not before.is_paused
                return ContextNote("paused", PAUSED_TEXT) if is_new else None
            case "waiting_for_approval":
                text = approval_text(context)
                return None if text == approval_text(before) else ContextNote("paused", text)
            case _ if self.is_compacting:
                self.is_compacting = False
                return ContextNote("ended", _ended_text(before, context))
            case _:
                return None

    @property
    def is_paused(self) -> bool:
        """Whether the agent is paused."""
        return self._context.is_paused

    def compacting_text(self) -> str:
        """Return the notice that a compaction began, with the size of the context if it is known."""
        context = self._context
        size = "" if context.tokens is None else f" {context.tokens:,} tokens{_label(context)}"
        return f"compacting{size} ..."


def approval_text(context: PeerContext) -> str:
    """Return the notice that proposals of the agent need a decision, with those that can decide."""
    waits = [one for one in (context.report.waiting if context.report else None) or () if one.kind == "approval"]
    texts = (f"{one.what} ({', '.join(one.who_may_answer) or 'no connected participant'} can decide)" for one in waits)
    return f"waiting for {'; '.join(texts) or 'approval'}"


def _ended_text(before: PeerContext, after: PeerContext) -> str:
    """Return the tokens that a compaction freed, and the size after it."""
    last = after.report.last_compaction if after.report else None
    earlier = before.report.last_compaction if before.report else None
    now = _now(after)
    if last is not None and last != earlier:
        # One label is enough where the size that follows carries the same.
        is_sure = last.basis in ("reported", "exact", "server_counted")
        label = "" if is_sure or last.basis == after.basis else f" ({last.basis.replace('_', ' ')})"
        freed = "an unknown number of tokens" if last.freed_tokens is None else f"{last.freed_tokens:,} tokens{label}"
        return f"freed {freed}{now}"
    return f"compacting freed nothing{now}" if after.report is not None else f"compacted{now}"


def _now(context: PeerContext) -> str:
    """Return the size after it, as a clause; empty if it is unknown."""
    if context.tokens is None:
        return ""
    window = f" of {context.max_tokens:,}" if context.max_tokens else ""
    return f"; now {context.tokens:,}{window}{_label(context)}"


def _label(context: PeerContext) -> str:
    """Return how the size is known, in words; empty if the provider reported it."""
    return "" if context.basis_label == "reported" else f" ({context.basis_label.replace('_', ' ')})"
