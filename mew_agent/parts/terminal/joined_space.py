"""A space for the terminal application: its board, its conversation and its attention items.

Owns the connection and the requests over HTTP. It calls `on_change` after each change, and draws nothing.
"""

import logging
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import Any, Final

import anyio
from mew_board import receipt_words
from mew_board.answers import said
from mew_board.attention import aggregate, attention
from mew_board.proposal_text import allowed_calls, ending
from mew_board.quoting import clean
from mew_protocol import kinds
from mew_protocol.codec import StreamFrame
from mew_protocol.envelope import Envelope
from mew_protocol.payloads import read_or_none
from mew_protocol.payloads.attention_items import AttentionAction, AttentionItem
from mew_protocol.payloads.context_history import ParticipantFigures
from mew_protocol.payloads.mcp import UndecidedProposal
from mew_protocol.payloads.participant import Board, BoardEntry, PrefixPart, RequestStatus, Status, report_of
from mew_spaces.launch.run_file import read_run_file
from pydantic import ValidationError

from mew_agent.cli.app import terminal
from mew_agent.cli.app.locate import agents_of, people_of
from mew_agent.cli.board.board_events import apply_event, entry_of
from mew_agent.cli.remote.http_api import GatewayApi
from mew_agent.cli.remote.identity import Identity, configuration_at
from mew_agent.errors import MewAgentError
from mew_agent.participant.gaps import HistoryGap
from mew_agent.participant.participant import Participant
from mew_agent.parts.terminal.feed import ConversationFeed, FeedEntry
from mew_agent.parts.terminal.line_chat import enter_line
from mew_agent.parts.terminal.terminal_chat import TerminalChat

logger = logging.getLogger("mew_agent.parts.terminal")

PAST_CHATS: Final = 100
PAST_ENVELOPES: Final = 1_000
"""How many envelopes the chats are looked for in."""

HISTORY_SECONDS: Final = 3600
PREFIX_SECONDS: Final = 20.0


class _Watcher(Participant):
    """The person as a participant; passes envelopes and stream frames on."""

    def __init__(self, who: Identity, view: "JoinedSpace") -> None:
        super().__init__(who.ws_url, space=who.space, id=who.participant, token=who.token, reports_context=False)
        self._view = view
        self.on(HistoryGap)(view.receive_gap)

    # Not event handlers, because frames would overtake them.

    async def receive(self, envelope: Envelope) -> None:
        """Pass an envelope on."""
        self._view.receive(envelope)

    async def receive_frame(self, frame: StreamFrame) -> None:
        """Pass a frame on."""
        self._view.receive(frame)


class JoinedSpace:
    """A space that a person follows. `run` joins it and returns when the connection has ended for good."""

    def __init__(
        self, who: Identity, targets: tuple[str, ...], on_change: Callable[[Sequence[FeedEntry]], None]
    ) -> None:
        """`on_change` gets the new and changed entries of the conversation."""
        self.who, self.on_change = who, on_change
        self.me = _Watcher(who, self)
        is_open = self.me.events.proposals.is_same
        self.chat = TerminalChat(who.participant, is_open, self.me.unfinished, targets, asks_receipts=True)
        self.feed = ConversationFeed()
        self.board: Board | None = None
        self.clock: Callable[[], datetime] = terminal.now
        """The time of the gateway."""
        self.figures: Mapping[str, ParticipantFigures] = {}
        self.prefixes: dict[str, tuple[PrefixPart, ...]] = {}
        """The prefix of each agent that was asked for it, part by part."""
        config = configuration_at(who.run_path)
        self.agents = agents_of(config) if config is not None else frozenset()
        self.people = frozenset({who.participant, *(people_of(config) if config is not None else ())})
        self.faults: Mapping[str, str] = {}
        """The problems of programs of a space that runs on this machine."""
        self.ended: Mapping[str, str] = {}
        """How programs ended, even without a fault."""
        self._asked_at: dict[str, str | None] = {}
        self._asking: set[str] = set()
        """The agents that still have to answer about their prefix. The conversation does not show these answers."""
        self._expected: tuple[str, ...] = ()
        self._capabilities: Mapping[str, Any] = {}
        """The capabilities of each participant, by the gateway's last message."""
        self._api: GatewayApi | None = None
        self._early: list[Envelope | StreamFrame] | None = []
        """The envelopes that arrived while the past was read."""

    async def run(self) -> None:
        """Join, and pass events on. Raises the `GatewayError` that ended the connection."""
        async with self.me:
            await self._load()
            await self.me.run_forever()

    async def _load(self) -> None:
        """Read the board, and at first the newest chats; another implementation's gateway may have neither."""
        api = GatewayApi(self.who.gateway, space=self.who.space, participant=self.who.participant, token=self.who.token)
        is_first, board = self.board is None, None
        past: list[Envelope] = []
        try:
            if await anyio.to_thread.run_sync(api.is_complete):
                self._api = api
                board, past = await anyio.to_thread.run_sync(_newest, api)
                await self.load_figures()
                await self._load_capabilities()
        except (MewAgentError, ValidationError) as error:
            logger.warning("could not read the history of the space: %s", error)
        if board is None:
            here = [BoardEntry(id=name, connected=True) for name in (self.who.participant, *self.me.peers)]
            board = Board(space=self.who.space, at=terminal.now().isoformat(), participants=tuple(here))
        self.board, self.clock = board, terminal.clock_of_gateway(board.at)
        connected = {one.id for one in board.participants if one.connected}
        lost = self.feed.lose_work(lambda name: name not in connected)
        early, self._early = self._early or [], None
        shown = (self.feed.receive(one) for one in past) if is_first else ()
        self.on_change([*lost, *(entry for entry in shown if entry is not None)])
        for message in early:
            self._show(message)

    async def load_figures(self) -> None:
        """Read the figures of the last hour again."""
        if self._api is None:
            return
        try:
            read = await anyio.to_thread.run_sync(self._api.context_history, HISTORY_SECONDS)
            self.figures = {one.id: one for one in read.participants}
        except (MewAgentError, ValidationError) as error:
            logger.info("could not read the figures of the last hour: %s", error)

    async def _load_capabilities(self) -> None:
        """Read the capabilities again."""
        if self._api is None:
            return
        try:
            found = await anyio.to_thread.run_sync(self._api.participants)
            self._capabilities = {str(one.get("id")): one.get("capabilities") for one in found}
            self.on_change(())
        except MewAgentError as error:
            logger.info("could not read what participants may send: %s", error)

    async def load_prefix(self, name: str, call_id: str | None) -> None:
        """Ask an agent for the parts of its prefix, unless already asked since its call `call_id`."""
        if self._asked_at.get(name, ...) == call_id:
            return
        self._asked_at[name] = call_id
        self._asking.add(name)
        request, answer = RequestStatus(fields=("prefix",)), kinds.PARTICIPANT_STATUS
        try:
            got = await self.me.ask(
                kinds.PARTICIPANT_REQUEST_STATUS, request, to=name, answer=answer, timeout_seconds=PREFIX_SECONDS
            )
            self.prefixes[name] = Status.model_validate(got.body).prefix or ()
            self.on_change(())
        except (MewAgentError, ValidationError) as error:
            logger.info("the prefix of '%s' could not be read: %s", name, error)
        finally:
            self._asking.discard(name)

    # -- what arrives ------------------------------------------------------------------------------------

    def receive(self, message: Envelope | StreamFrame) -> None:
        """Show an envelope or a stream frame, once the history is loaded.

        After an outage, a welcome reloads the board, because changes may have been missed.
        """
        if self.board is not None and isinstance(message, Envelope) and message.kind == kinds.SYSTEM_WELCOME:
            self._early = [*(self._early or ()), message]
            self.me.start_soon(self._load)
        elif self._early is not None:
            self._early.append(message)
        else:
            self._show(message)

    def _show(self, message: Envelope | StreamFrame) -> None:
        if isinstance(message, StreamFrame):
            changed = self.feed.receive_frame(message)
            self.on_change([] if changed is None else [changed])
        else:
            self._show_envelope(message)

    def receive_gap(self, _: HistoryGap) -> None:
        """Note that messages were missed."""
        self.note("some messages were missed and are no longer available")

    def note(self, text: str) -> None:
        """Add a line to the conversation."""
        self.on_change([self.feed.add_note(text)])

    def _show_envelope(self, envelope: Envelope) -> None:
        self.board, _ = apply_event(self.board, "envelope", envelope.as_dict())
        if envelope.kind.startswith("capability/"):
            self.me.start_soon(self._load_capabilities)
        if envelope.kind in (kinds.CHAT, kinds.SYSTEM_PRESENCE):
            self._mark_old_figures()
        line, entry = self.chat.receive(envelope), self.feed.receive(envelope)
        shown = [entry] if entry is not None else []
        if envelope.kind == kinds.SYSTEM_PRESENCE and (told := said(envelope)) is not None:
            if envelope.body.get("event") == "leave":
                shown += self.feed.lose_work(lambda name: name in told.about)
            shown.append(self.feed.add_presence(told.about[0], told.text))
        elif line is not None and envelope.kind != kinds.CHAT and not self._is_in_a_panel(envelope):
            shown.append(self.feed.add_note(line.removeprefix("* ")))
        self.on_change(shown)

    def _mark_old_figures(self) -> None:
        """Mark the figures that a chat or a join has made old, which the participants do not report themselves."""
        old: dict[str, dict[str, str | None]] = {}
        for one in self.board.participants if self.board is not None else ():
            peer = self.me.peers.get(one.id)
            reason = one.outdated if peer is None else peer.context.outdated
            if reason is not None:
                old[one.id] = {"outdated": reason, "figure_at": one.figure_at}
        self.board, _ = apply_event(self.board, "outdated", old)

    def _is_in_a_panel(self, envelope: Envelope) -> bool:
        """Return True for a status with the parts of a prefix or the progress of work."""
        if envelope.kind != kinds.PARTICIPANT_STATUS:
            return False
        is_answer = envelope.sender in self._asking and envelope.names(self.who.participant)
        return is_answer or report_of(read_or_none(Status, envelope.body)).progress is not None

    # -- what the panels show ----------------------------------------------------------------------------

    @property
    def is_joined(self) -> bool:
        """True while connected."""
        return self.me.is_joined

    @property
    def catching_up(self) -> int | None:
        """The number of missed envelopes that have arrived so far; None if nothing is missing."""
        return self.me.messenger.session.client.catching_up

    @property
    def names(self) -> tuple[str, ...]:
        """The participants that are here, except us."""
        return tuple(sorted(self.me.peers))

    def entry(self, name: str | None) -> BoardEntry | None:
        """Return the participant on the board."""
        return None if name is None or self.board is None else entry_of(self.board, name)

    def read_run_file(self) -> None:
        """Reload the programs that should run here, and their problems. Does nothing for a space on another machine."""
        run = read_run_file(self.who.run_path) if self.who.run_path is not None else None
        self.faults = run.faults() if run is not None else {}
        self.ended = run.ended() if run is not None else {}
        self._expected = tuple(run.pids.participants) if run is not None else ()

    def attention(self, now: datetime) -> tuple[AttentionItem, ...]:
        """Return the attention items of this board."""
        if self.board is None:
            return ()
        waiting = [UndecidedProposal.of(one) for one in self.chat.proposals.values()]
        entries = self.board.participants
        return aggregate(attention(entries, waiting, now=now, expected=self._expected, faults=self.faults))

    # -- what the person does ----------------------------------------------------------------------------

    async def enter(self, line: str) -> bool:
        """Run a typed line; problems become notes. Returns whether the person wants to leave."""
        return await enter_line(self.me, self.chat, line, lambda text: self.note(text.removeprefix("* ")))

    async def load_story(self, entry: FeedEntry) -> None:
        """Ask the addressees of a chat for its receipts."""
        lines: list[str] = []
        for name in entry.marks:
            try:
                (receipt,) = await self.me.receipts(name, entry.id, sender=entry.sender)
            except (MewAgentError, ValueError) as error:
                lines.append(clean(f"{name}: {error}"))
            else:
                lines += [
                    receipt_words.line(receipt),
                    *(f"  {one}" for one in receipt_words.story(receipt, self.clock())),
                ]
        entry.story = tuple(lines)
        self.on_change([entry])

    async def act(self, action: AttentionAction) -> bool:
        """Run an action of an attention item. The answer arrives as a note. Returns whether it was sent."""
        if action.envelope is None:
            self.note(f"run in a shell: {action.command}")
            return False
        return await self._send(action.envelope)

    def allowed_calls(self, name: str) -> tuple[str, ...]:
        """Return the calls that a participant may make without approval, and how to revoke them."""
        found = allowed_calls(name, self._capabilities.get(name, ()))
        return tuple(f"{meaning}; `{ending(name, pattern)}` ends it, and so does E" for meaning, pattern in found)

    async def end_allowed_calls(self, name: str) -> bool:
        """Revoke a participant's calls without approval. Returns False if it had none."""
        patterns = [pattern for _, pattern in allowed_calls(name, self._capabilities.get(name, ()))]
        payload = {"recipient": name, "capabilities": patterns, "reason": "no longer always allowed"}
        draft = {"kind": kinds.CAPABILITY_REVOKE, "to": [name], "payload": payload}
        return bool(patterns) and await self._send(draft)

    async def _send(self, draft: Mapping[str, Any]) -> bool:
        """Send an envelope. If that fails, add a note and return False."""
        to, about = tuple(draft.get("to") or ()), tuple(draft.get("correlation_id") or ())
        try:
            await self.me.send(str(draft["kind"]), draft.get("payload") or {}, to=to, correlation_id=about)
        except MewAgentError as error:
            self.note(str(error))
            return False
        return True

    def proposal_of(self, item: AttentionItem) -> Envelope | None:
        """Return the proposal that an item is about."""
        number = self.number_of(item)
        return None if number is None else self.chat.proposals.get(number)

    def number_of(self, item: AttentionItem) -> int | None:
        """Return the number of the proposal that an item is about, for `/reject`."""
        found = (at for at, one in self.chat.proposals.items() if item.id == f"approval:{one.sender}:{one.id}")
        return next(found, None)


def _newest(api: GatewayApi) -> tuple[Board, list[Envelope]]:
    """Return the board, and the newest stored chats, oldest first."""
    board, past = api.newest(PAST_ENVELOPES)
    return board, [one for one in past if one.kind == kinds.CHAT][-PAST_CHATS:]
