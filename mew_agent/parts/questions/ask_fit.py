"""`mew fit`: asks an agent whether a text fits, and prints its figures.

`mew_protocol.payloads.text_fit` computes whether a text fits.
"""

from pathlib import Path
from typing import Annotated, Final

import typer
from mew_protocol import kinds
from mew_protocol.payloads.text_fit import Fit

from mew_agent.cli.app import terminal
from mew_agent.cli.app.exit_codes import ExitCode
from mew_agent.cli.app.options import ConnectionOptions, TargetArgument, option
from mew_agent.cli.remote.identity import find_gateway
from mew_agent.cli.remote.sent_request import ParticipantOffline, check_known, send_request
from mew_agent.errors import NotPermitted, PeerError
from mew_agent.participant.fit_requests import FitRequest
from mew_agent.participant.peer_controls import FIT_SECONDS

_VERDICTS: Final = {True: "fits", False: "does not fit", None: "not known"}

_EXIT_CODES: Final = {True: ExitCode.DONE, False: ExitCode.SKIPPED, None: ExitCode.FAILED}


def _own_answer(connection: ConnectionOptions, target: str, question: FitRequest) -> Fit | None:
    """Ask an agent whether a text fits; None if it does not answer soon or does not know."""
    kind = kinds.PARTICIPANT_REQUEST_STATUS
    try:
        with send_request(connection, target, kind, question.payload, FIT_SECONDS) as sent:
            return question.answer_in(sent.next_status())
    except (ParticipantOffline, PeerError, NotPermitted):
        return None


def fit(
    target: TargetArgument,
    file: Annotated[
        Path | None, typer.Argument(metavar="FILE", help="File with the text (default: standard input).")
    ] = None,
    tokens: Annotated[int | None, option("--tokens N", "Ask about N tokens instead of a text.", min=0)] = None,
    *,
    connection: ConnectionOptions,
) -> int:
    """Check whether a text fits into an agent's context.

    Asks the agent, which knows the tokens of its model. If it does not answer, compares an estimate with its last
    report. Exits with code 3 if the text does not fit, and with code 1 if that is unknown.
    """
    api = find_gateway(connection)
    question = FitRequest.of(terminal.read_text(file, "FILE") if tokens is None else tokens)
    outcome = _own_answer(connection, target, question)
    if outcome is None:
        entry = check_known(api, api.board(), target)
        outcome = question.by_report(entry.status, as_of=entry.received_at, outdated=entry.outdated)
    is_own = not outcome.by_report
    known = {"participant": target, "asked": is_own, **outcome.model_dump(mode="json", exclude_none=True)}
    by = "" if is_own else "; by its last report"
    terminal.print_outcome(f"{target}: {_verdict(outcome)}; {outcome}{by}", known)
    return _EXIT_CODES[outcome.fits]


def _verdict(fit: Fit) -> str:
    verdict = _VERDICTS[fit.fits]
    if fit.fits is False and fit.fits_after_compaction is not None:
        verdict += " now, but after a compaction" if fit.fits_after_compaction else ", not even after a compaction"
    return verdict
