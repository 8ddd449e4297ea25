"""What people who watch a reply see of its context: that it is compacted, is stopped, how full it gets."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Literal

NoticeKind = Literal["size", "compacting", "compacted", "not_compacted", "aborted"]


@dataclass(frozen=True, slots=True)
class Notice:
    """One notice. `size` has figures and no text; `basis` says how `tokens` are known."""

    kind: NoticeKind
    text: str = ""
    tokens: int | None = None
    max_tokens: int | None = None
    basis: str | None = None

    def values(self) -> dict[str, object]:
        """What it says beside its kind; what it does not say is left out."""
        said = {"text": self.text or None, "tokens": self.tokens, "max_tokens": self.max_tokens, "basis": self.basis}
        return {key: value for key, value in said.items() if value is not None}


Notify = Callable[[Notice], Awaitable[None]]


async def ignore_notice(_notice: Notice) -> None:
    """Nobody watches."""
