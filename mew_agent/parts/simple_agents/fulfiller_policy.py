"""[pure] Decide about a proposal: patterns to allow and deny, and a person's yes or no.

Owns the keys of the policy and their meaning. Sends nothing.
"""

import re
from collections.abc import Sequence
from fnmatch import fnmatchcase
from typing import Annotated, Final, Literal, Self

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, model_validator

TERMINAL: Final = "terminal"
"""As `ask`: the person at the terminal of this program."""

_ANSWER: Final = re.compile(
    r"\s*(?:(?P<yes>yes|y|ok|okay|approved?)|(?P<no>no|n|reject(?:ed)?))\b[\s,.:;!-]*(?P<why>.*)",
    re.IGNORECASE | re.DOTALL,
)

Verdict = Literal["fulfil", "reject", "ask"]


def _check_pattern(text: str) -> str:
    if "/" not in text and text != "*":
        raise ValueError("should be PEER/TOOL or PEER/METHOD, where * matches anything")
    return text


Patterns = tuple[Annotated[str, AfterValidator(_check_pattern)], ...]


class FulfillerPolicy(BaseModel):
    """Decides about a proposal: `deny` is checked first, then `allow`, then `otherwise` applies.

    Patterns are `PEER/TOOL`, or `PEER/METHOD` for methods other than `tools/call`; `*` matches anything. `ask` names
    the participant to ask, or is `terminal`; no answer within `ask_seconds` counts as a no. `proposers` are patterns of
    participants; other proposals are ignored. `reason` is sent with a rejection.
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
            raise ValueError("`otherwise: ask` needs `ask`, the participant to ask")
        return self

    def decide(self, subjects: Sequence[str]) -> Verdict:
        """Decide: one denied subject (`ProposalMade.subjects`) rejects, all must be allowed to fulfil."""
        if any(fnmatchcase(subject, pattern) for subject in subjects for pattern in self.deny):
            return "reject"
        if all(any(fnmatchcase(subject, pattern) for pattern in self.allow) for subject in subjects):
            return "fulfil"
        return self.otherwise or ("ask" if self.ask is not None else "fulfil")

    def applies_to(self, proposer: str) -> bool:
        """Return True if the policy decides this participant's proposals."""
        return any(fnmatchcase(proposer, pattern) for pattern in self.proposers)


def is_answer(text: str) -> bool:
    """Return True if a text is a yes or a no."""
    return _ANSWER.match(text) is not None


def read_answer(text: str) -> str | None:
    """Return a person's answer: None for a yes, otherwise the reason given with the no (default: `disagree`)."""
    answer = _ANSWER.match(text)
    if answer is not None and answer["yes"]:
        return None
    return (answer["why"].strip() if answer is not None else "") or "disagree"
