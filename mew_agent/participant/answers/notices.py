"""[pure] What a reader of an answer is told of the agent's context meanwhile: compacting, compacted, paused.

Owns the words and the order: a start, then how it ended. Fed with every whole status of one agent. The rule of
the report holds here: what was not reported says how it is known.
"""

from dataclasses import dataclass
from typing import Literal

from mew_agent.participant.peers import PeerContext

Stage = Literal["begun", "ended", "paused"]


@dataclass(frozen=True, slots=True)
class Notice:
    """One line for the reader."""

    stage: Stage
    text: str


class Notices:
    """The notices of one agent, from its statuses in order."""

    def __init__(self, known: PeerContext | None = None) -> None:
        """`known` is the agent's last status, if there is one: what happened before it is nobody's news."""
        self.is_compacting = known is not None and known.status == "compacting"
        self._context = known or PeerContext()

    def hear(self, context: PeerContext) -> Notice | None:
        """Take in a status. Returns the notice it is worth, if it is worth one."""
        before, self._context = self._context, context
        word, _, detail = context.status.partition(":")
        match word:
            case "compacting":
                if self.is_compacting:
                    return None
                self.is_compacting = True
                return Notice("begun", self.begun_text())
            case "compacted":
                self.is_compacting = False
                return Notice("ended", _ended_text(before, context))
            case "compaction_failed" | "compaction_stalled":
                self.is_compacting = False
                return Notice("ended", f"{word.replace('_', ' ')}: {_line(detail) or 'no reason given'}")
            case "paused":
                return None if before.status.startswith("paused") else Notice("paused", self.paused_text())
            case _:
                return None

    @property
    def is_paused(self) -> bool:
        """Whether the agent keeps silent until somebody resumes it."""
        return self._context.status.partition(":")[0] == "paused"

    def begun_text(self) -> str:
        """That it compacts now, and how much."""
        size = _size(self._context)
        return f"compacting {size} ..." if size else "compacting ..."

    @staticmethod
    def paused_text() -> str:
        """That no answer comes before somebody acts."""
        return "paused; the answer comes when somebody resumes the agent"


def _ended_text(before: PeerContext, after: PeerContext) -> str:
    """What a compaction freed, and the size now."""
    last = after.report.last_compaction if after.report else None
    earlier = before.report.last_compaction if before.report else None
    now = _now(after)
    if last is not None and last != earlier:
        # One label is enough where the size that follows carries the same.
        label = "" if last.basis in ("reported", "exact") or last.basis == after.basis else f" ({last.basis})"
        return f"freed {last.freed_tokens:,} tokens{label}{now}"
    return f"compacting freed nothing{now}" if after.report is not None else f"compacted{now}"


def _now(context: PeerContext) -> str:
    """The size after it, as a clause; empty when it is not known."""
    if context.tokens is None:
        return ""
    window = f" of {context.max_tokens:,}" if context.max_tokens else ""
    return f"; now {context.tokens:,}{window}{_label(context)}"


def _size(context: PeerContext) -> str:
    """The size with its basis, unless that is a report; empty when it is not known."""
    return "" if context.tokens is None else f"{context.tokens:,} tokens{_label(context)}"


def _label(context: PeerContext) -> str:
    """How the size is known, unless its provider reported it."""
    return {"reported": "", None: " (unlabelled)"}.get(context.basis, f" ({context.basis})")


def _line(text: str) -> str:
    return " ".join(text.split())
