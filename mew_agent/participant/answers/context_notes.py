"""[pure] Notices about an agent's context for readers of an answer: their texts and order."""

from typing import Final, Literal, NamedTuple

from mew_board.figures import basis_words, figure, freed_words, known_figure, size_after

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
        """Read a status. Returns the notice to show, or None."""
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
        """Return the notice for the start of a compaction, with the context's size if known."""
        context = self._context
        if context.tokens is None:
            return "compacting ..."
        label = context.basis_label
        how = "" if label == "reported" else f" ({basis_words(label)})"
        return f"compacting {known_figure(context.tokens, label)} tokens{how} ..."


def approval_text(context: PeerContext) -> str:
    """Return the notice about an agent's undecided proposals, with the participants that can decide."""
    waits = [one for one in (context.report.waiting if context.report else None) or () if one.kind == "approval"]
    texts = (f"{one.what} ({', '.join(one.who_may_answer) or 'no connected participant'} can decide)" for one in waits)
    return f"waiting for {'; '.join(texts) or 'approval'}"


def _ended_text(before: PeerContext, after: PeerContext) -> str:
    """Return the tokens that a compaction freed, and the size after it."""
    last = after.report.last_compaction if after.report else None
    earlier = before.report.last_compaction if before.report else None
    size = size_after(after.tokens, figure(after.max_tokens), after.basis_label) if after.tokens is not None else ""
    now = f"; now {size}" if size else ""
    if last is not None and last != earlier:
        return f"{freed_words(last.freed_tokens, last.basis)}{now}"
    return f"compacting freed nothing{now}" if after.report is not None else f"compacted{now}"
