"""`mew cancel`: cancels chats that have no answer yet, and running turns.

Reads them from the newest envelopes that the gateway keeps. `unfinished` selects the open ones.
"""

from collections import Counter
from typing import Annotated, Final

from mew_board import words
from mew_protocol.payloads.chat import ChatCancel

from mew_agent.cli.app import terminal
from mew_agent.cli.app.exit_codes import ExitCode
from mew_agent.cli.app.locate import people_of
from mew_agent.cli.app.options import ConnectionOptions, ReasonOption, participant_argument
from mew_agent.cli.remote.identity import configuration_at, find_gateway
from mew_agent.cli.remote.sent_request import check_known, new_envelope
from mew_agent.errors import NotPermitted
from mew_agent.participant.unfinished import Unfinished

_READ_ENVELOPES: Final = 1_000
"""How many of the newest envelopes are read; an older chat without an answer is not found."""


def cancel(
    target: Annotated[str | None, participant_argument("Id of the agent (default: all that work for you).")] = None,
    reason: ReasonOption = None,
    *,
    connection: ConnectionOptions,
) -> int:
    """Cancel your open requests to agents.

    Cancels your unanswered chats. With PARTICIPANT, also cancels a turn that it runs for someone else. `mew chat`
    cancels its question at Ctrl-C. Exits with code 3 if there is nothing to cancel.
    """
    api = find_gateway(connection)
    if target is not None:
        check_known(api, api.board(), target)
    done = Counter[str]()
    config = configuration_at(api.run_path)
    people = people_of(config) if config is not None else []
    unfinished = Unfinished(api.participant)
    for envelope in api.newest(_READ_ENVELOPES)[1]:
        unfinished.receive(envelope)
    for one in unfinished.cancellations(target):
        if one.agent in people:
            continue
        payload, about = ChatCancel(reason=reason), one.correlation_id
        envelope = new_envelope(api, one.kind, payload, one.agent, correlation_id=about, context=one.context)
        try:
            api.send(envelope.as_dict())
            done[one.agent] += 1
        except NotPermitted as error:
            terminal.warn(str(error))
    text = "\n".join(f"{agent}: cancelled {words.count_of(number, 'question')}" for agent, number in done.items())
    text = text or f"{f'{target}: ' if target else ''}nothing to cancel"
    outcome = [{"participant": agent, "cancelled": number} for agent, number in done.items()]
    terminal.print_outcome(text, outcome)
    return ExitCode.DONE if done else ExitCode.SKIPPED
