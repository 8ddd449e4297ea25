"""[pure] What a fulfiller fulfils: patterns of proposals, and how a proposal and a person's answer are read.

Owns the policy's keys and what they mean. It sends nothing and asks nobody.
"""

import json
import re
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Annotated, Any, Final, Literal, Self

from mew_protocol.envelope import Envelope
from pydantic import AfterValidator, BaseModel, ConfigDict, Field, model_validator

TERMINAL: Final = "terminal"
"""As `ask`: whoever sits at the terminal of this program."""

MAX_SHOWN_CHARS: Final = 600
_ANSWER: Final = re.compile(
    r"\s*(?:(?P<yes>yes|y|ok|okay|approved?)|(?P<no>no|n|reject(?:ed)?))\b[\s,.:;!-]*(?P<why>.*)",
    re.IGNORECASE | re.DOTALL,
)

Verdict = Literal["fulfil", "reject", "ask"]


def _pattern(text: str) -> str:
    if "/" not in text and text != "*":
        raise ValueError("should be PEER/TOOL or PEER/METHOD, where * stands for anything")
    return text


Patterns = tuple[Annotated[str, AfterValidator(_pattern)], ...]


class FulfillerPolicy(BaseModel):
    """What becomes of a proposal: `deny` is looked at first, then `allow`, then `otherwise` counts.

    Patterns are `PEER/TOOL`, or `PEER/METHOD` for other methods than `tools/call`; `*` stands for anything. `ask` names
    the participant who is asked, or `terminal`; whoever does not answer in `ask_seconds` has said no.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    allow: Patterns = ()
    deny: Patterns = ()
    otherwise: Verdict | None = None
    ask: str | None = Field(default=None, min_length=1)
    ask_seconds: float = Field(default=240.0, gt=0, allow_inf_nan=False)
    proposers: tuple[str, ...] = ("*",)
    reason: str = Field(default="policy", min_length=1)

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.otherwise == "ask" and self.ask is None:
            raise ValueError("`otherwise: ask` needs `ask`, the participant to be asked")
        return self

    def verdict(self, proposal: "Proposed") -> Verdict:
        """What becomes of a proposal. Of several addressees one that is denied counts, and all must be allowed."""
        subjects = proposal.subjects
        if any(fnmatchcase(subject, pattern) for subject in subjects for pattern in self.deny):
            return "reject"
        if all(any(fnmatchcase(subject, pattern) for pattern in self.allow) for subject in subjects):
            return "fulfil"
        return self.otherwise or ("ask" if self.ask is not None else "fulfil")

    def concerns(self, proposer: str) -> bool:
        """Whether this participant's proposals are ours to decide."""
        return any(fnmatchcase(proposer, pattern) for pattern in self.proposers)


@dataclass(frozen=True, slots=True)
class Proposed:
    """A proposal, taken apart. `tool` is None for other methods than `tools/call`."""

    envelope: Envelope
    method: str
    tool: str | None
    arguments: Any

    @staticmethod
    def read(envelope: Envelope) -> "Proposed":
        """Read a proposal, whatever is in it."""
        method, params = envelope.body.get("method"), envelope.body.get("params")
        inside = params if isinstance(params, dict) else {}
        name = inside.get("name") if method == "tools/call" else None
        shown = inside.get("arguments") if name is not None else params
        return Proposed(envelope, str(method), None if name is None else str(name), shown)

    @property
    def subjects(self) -> tuple[str, ...]:
        """What patterns are compared with, one for each addressee."""
        what = self.tool if self.tool is not None else self.method
        return tuple(f"{peer}/{what}" for peer in self.envelope.addressees or ("",))

    def __str__(self) -> str:
        whom = " and ".join(f"'{peer}'" for peer in self.envelope.addressees) or "everybody"
        what = f"to call '{self.tool}' of {whom}" if self.tool is not None else f"'{self.method}' to {whom}"
        shown = json.dumps(self.arguments, ensure_ascii=False) if self.arguments else ""
        short = shown if len(shown) <= MAX_SHOWN_CHARS else f"{shown[:MAX_SHOWN_CHARS]}..."
        return f"'{self.envelope.sender}' proposes {what}{f' with {short}' if short else ''}"


def is_answer(text: str) -> bool:
    """Whether a text is a yes or a no."""
    return _ANSWER.match(text) is not None


def read_answer(text: str) -> str | None:
    """A person's answer: None for a yes, else the reason that was given with the no, `disagree` without one."""
    said = _ANSWER.match(text)
    if said is not None and said["yes"]:
        return None
    return (said["why"].strip() if said is not None else "") or "disagree"
