"""`mew fit`: whether a text fits into an agent's context, by its last report.

Owns how the text is read and the answer printed. The arithmetic is `mew_protocol.payloads.fit`.
"""

from pathlib import Path
from typing import Annotated, Final

import typer
from mew_protocol.payloads.fit import TextBasis, fit_in
from mew_protocol.payloads.participant import Board

from mew_agent.cli.app import terminal
from mew_agent.cli.app.exit_codes import ExitCode
from mew_agent.cli.app.options import ConnectionOptions, JsonOption, TargetArgument, option, with_option_groups
from mew_agent.cli.remote.request import check_known
from mew_agent.cli.remote.session import open_session
from mew_agent.tokens.projection import Calibration, features

VERDICTS: Final = {True: "fits", False: "does not fit", None: "not known"}


@with_option_groups
def fit(
    target: TargetArgument,
    file: Annotated[
        Path | None, typer.Argument(metavar="FILE", help="File with the text (default: standard input).")
    ] = None,
    tokens: Annotated[int | None, option("--tokens N", "Ask about N tokens instead of a text.", min=0)] = None,
    *,
    as_json: JsonOption = False,
    connection: ConnectionOptions,
) -> int:
    """Ask whether a text fits into an agent's context.

    Exits with code 3 if it does not fit, and with code 1 if that is not known.
    """
    session = open_session(connection)
    entry = check_known(session, Board.model_validate(session.api.board()), target)
    basis: TextBasis = "given"
    if tokens is None:
        tokens, basis = Calibration().project(features(terminal.read_text(file, "FILE"))), "heuristic"
    outcome = fit_in(entry.status, tokens, basis, as_of=entry.received_at)
    known = {"participant": target, **outcome.model_dump(mode="json", exclude_none=True)}
    terminal.print_outcome(f"{target}: {VERDICTS[outcome.fits]}; {outcome}", known, as_json=as_json)
    if outcome.fits is None:
        return ExitCode.FAILED
    return ExitCode.DONE if outcome.fits else ExitCode.SKIPPED
