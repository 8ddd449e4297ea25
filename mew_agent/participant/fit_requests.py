"""The question whether a text fits into an agent's context, and its answer.

Measures the text for the question. Without an answer, uses the agent's last report. Sends nothing.
"""

from typing import NamedTuple, Self

from mew_protocol.context_report import Outdated
from mew_protocol.payloads import read_or_none
from mew_protocol.payloads.participant import FitQuestion, RequestStatus, Status
from mew_protocol.payloads.text_fit import Fit, TextBasis, fit_in

from mew_agent.tokens.projection import NO_UNITS, Calibration, Units, features


class FitRequest(NamedTuple):
    """The question about one text, or about a given number of `tokens`."""

    units: Units
    tokens: int | None = None

    @classmethod
    def of(cls, text: str | int) -> Self:
        """Return the question about a text, or a number of tokens. For long texts, call it in a thread."""
        return cls(NO_UNITS, text) if isinstance(text, int) else cls(features(text))

    @property
    def payload(self) -> RequestStatus:
        """The payload of `participant/request-status`."""
        counts = None if self.tokens is not None else self.units.counts
        return RequestStatus(fields=("tokens", "max_tokens"), fit=FitQuestion(tokens=self.tokens, features=counts))

    def answer_in(self, status: Status) -> Fit | None:
        """Return the agent's answer; None without one, as from agents of other projects."""
        return read_or_none(Fit, (status.model_extra or {}).get("fit"))

    def by_report(self, status: Status | None, *, as_of: str | None, outdated: Outdated | None) -> Fit:
        """Compare the text with the agent's last report (arguments as in `fit_in`)."""
        basis: TextBasis = "heuristic" if self.tokens is None else "given"
        tokens = Calibration().project(self.units) if self.tokens is None else self.tokens
        fit = fit_in(status, tokens, basis, as_of=as_of, outdated=outdated)
        return fit.model_copy(update={"by_report": True})
