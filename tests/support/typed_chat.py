"""A conversation at a terminal, of a participant that reads each envelope first, as a connected one does."""

from mew_protocol.envelope import Envelope

from mew_agent.participant.participant import Participant
from mew_agent.participant.peers import NO_CHANGES
from mew_agent.parts.terminal.terminal_chat import TerminalChat


class TypedChat(TerminalChat):
    """The conversation of a person."""

    def __init__(self, me: str, *targets: str) -> None:
        self._person = Participant("ws://h", space="demo", id=me, token="t")
        super().__init__(me, self._person.events.proposals.is_same, self._person.unfinished, targets)

    def receive(self, envelope: Envelope) -> str | None:
        self.read_unshown(envelope)
        return super().receive(envelope)

    def read_unshown(self, envelope: Envelope) -> None:
        """Let the participant read an envelope that is not shown yet."""
        self._person.unfinished.receive(envelope)
        tuple(self._person.events.events_in(envelope, NO_CHANGES))
