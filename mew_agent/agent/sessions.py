"""Our own engine: an agent's main conversation, and separate sessions for clients that request one.

Owns the shared parts (model, window, policy, most tools, rules for compactions), the parts of each conversation
(history, accounts, store and their tools), and the limits: a participant with too many sessions loses its least
recently used one. `turn` makes answers.
"""

import hashlib
import json
import logging
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from itertools import takewhile
from pathlib import Path

import anyio
from mew_listener.bounded_dict import Shares
from mew_protocol.context_report import ContextReport, SessionContext
from mew_protocol.envelope import Envelope
from mew_protocol.payloads.chat import MAIN_SESSION, SESSION_NAME, client_of
from mew_protocol.payloads.participant import Status
from mew_protocol.payloads.system import SpaceFacts
from mew_protocol.payloads.text_fit import DELIVERIES, Fit
from mew_protocol.status_word import status_word
from mew_settings.plugins import load_only
from pydantic import TypeAdapter

from mew_agent.agent.engine import Engine
from mew_agent.agent.peer_tools import PeerTools, ToolRoom
from mew_agent.agent.recall import RecallTools
from mew_agent.agent.turn import MAIN, AgentSession, ConversationAnswer, SessionKey
from mew_agent.config.agent_config import AgentConfig, chosen_policy
from mew_agent.config.policy_choice import server_refusal
from mew_agent.context.history import History
from mew_agent.context.message_facts import MessageKey
from mew_agent.context.sqlite_store import MemoryStore, SqliteStore, Store
from mew_agent.context.store import StoredChat, StoreLimits, StoreUnusable
from mew_agent.context.tracker import Tracker
from mew_agent.context.window import resolve_window
from mew_agent.conversation.conversation import Conversation
from mew_agent.conversation.conversation_events import ConversationEvent, HistoryChanged, PromptRead, StatusChanged
from mew_agent.conversation.fit import fit_of_text
from mew_agent.conversation.message_forms import Holding, ReadRecord
from mew_agent.conversation.model_calls import CALL_BOUND_SECONDS, ConversationOptions
from mew_agent.conversation.pins import SETTINGS_ORIGIN, SPACE_ORIGIN, PinTools, pins_of_space
from mew_agent.conversation.texts import DEFAULT_SYSTEM_PROMPT
from mew_agent.errors import ConfigError, MewAgentError
from mew_agent.model.builtin import builtin_model
from mew_agent.model.interface import Model
from mew_agent.participant.compaction_driver import CompactionDriver
from mew_agent.participant.participant import Participant
from mew_agent.participant.reasoning_stream import Reasoning
from mew_agent.tokens.projection import Calibration
from mew_agent.tokens.sizes import Size
from mew_agent.tokens.tokenizers import TextCounter, chosen_counter
from mew_agent.tools.bounds import ResultBound
from mew_agent.tools.sources import AgentTools, ToolSource

logger = logging.getLogger("mew_agent.agent.sessions")

CLOSE_SECONDS = 3.0


@dataclass(frozen=True, slots=True)
class AgentResources:
    """The resources that an agent's conversations share.

    `store` keeps its own conversation. `summariser` None: the model itself writes summaries. `counter` None: the
    configured tokenizer counts.
    """

    model: Model
    store: Store
    summariser: Model | None = None
    counter: TextCounter | None = None
    call_bound_seconds: float = CALL_BOUND_SECONDS

    async def aclose(self) -> None:
        """Close all, even in a cancelled task."""
        with anyio.CancelScope(shield=True), anyio.move_on_after(CLOSE_SECONDS):
            await self.model.aclose()
            if self.summariser is not None:
                await self.summariser.aclose()
            await self.store.aclose()


def store_limits(config: AgentConfig) -> StoreLimits:
    """Return the limits of a session's archive."""
    return StoreLimits(config.store_max_days, config.store_max_megabytes * 1024 * 1024, config.store_max_compactions)


def open_resources(config: AgentConfig, model: Model | None = None) -> AgentResources:
    """Open the model and store of a configuration; `model` replaces its model.

    A name as `base_url` is a built-in model in this process.
    """
    key = config.api_key.get_secret_value() if config.api_key else None
    limits = store_limits(config)
    store: Store = SqliteStore(config.store, limits) if config.store else MemoryStore(limits)
    summariser: Model | None = None
    if (named := config.summariser_model()) is not None:
        own_key = named.api_key.get_secret_value() if named.api_key else key
        summariser = _model(named.model, named.base_url or config.base_url, own_key, config.context_token_limit)
    model = model or _model(config.model, config.base_url, key, config.context_token_limit)
    return AgentResources(model, store, summariser)


async def check_provider(config: AgentConfig, model: Model) -> None:
    """Raise `ConfigError` if the policy does not allow the model's provider."""
    policy = chosen_policy(config).policy
    if policy.scope is None or config.policy_scope == "any" or config.provider is not None:
        return
    try:
        window = await model.discover_window()
    except MewAgentError:
        window = None
    refusal = server_refusal(policy, model.identity.endpoint or "this server", window)
    if refusal is not None:
        raise ConfigError("policy", refusal, f"`provider: {policy.scope}` if the server cannot be asked")


def _model(name: str, base_url: str | None, key: str | None, window_tokens: int | None) -> Model:
    builtin = builtin_model(base_url)
    if builtin is not None:
        return builtin.open(name, window_tokens)
    from mew_agent.model.openai_client import OpenAIModel

    return OpenAIModel(name, base_url, key)


_SHOWN = (
    *("basis", "reason", "measure", "max_tokens_basis", "level", "severity", "measured_at", "call_id"),
    *("compactions", "last_compaction"),
)
"""The keys of a session's report that the agent's own report repeats. Answers carry the whole report."""

GATES = "mew_agent.compaction_gates"
"""The table of gates, which ask before compactions. An entry is called with the participant, the conversation, the
`compaction:` settings, and the name of the session (None: the agent's own). Returns a `CompactionGate`."""

NO_WINDOW = "the context window of '{model}' is unknown; set `context_token_limit`"

KEYS_AS = "sessions"
_KEYS = TypeAdapter(list[SessionKey])

MAX_SESSIONS = 64
"""How many sessions there may be in all, so that a status can list them; the participant with the most loses one."""

MAX_WINDOW_RETRIES = 2
"""How often a server that did not report a loaded window is asked again after an answer."""


def session_key(participant: str, name: str) -> SessionKey:
    """Return the key of the session that a participant's chat names."""
    # The gateway does not check this name, and an invalid one still separates conversations.
    return participant, name if re.fullmatch(SESSION_NAME, name) else _file_name((participant, name))


class ConversationEngine(Engine):
    """Our own engine: all conversations of one agent."""

    deliveries = DELIVERIES

    def __init__(
        self,
        me: Participant,
        config: AgentConfig,
        resources: AgentResources,
        own_tools: ToolSource,
        *other_tools: ToolSource,
        on_tools_left_out: Callable[[Mapping[str, str]], object],
    ) -> None:
        """Offer `own_tools`, then the tools for a conversation's context, then `other_tools`, then those of peers.

        For `on_tools_left_out` of `main`, see `PeerTools`. Raises `ConfigError`.
        """
        super().__init__(me)
        self._config, self._resources = config, resources
        self.owns_resources = False
        """Whether `load` loads the agent's own conversation, `main`, and `aclose` closes the resources."""
        self._own_tools, self._other_tools = own_tools, other_tools
        self._on_tools_left_out = on_tools_left_out
        self._sessions: dict[SessionKey, AgentSession] = {}
        """The least recently used first."""
        self._shares: Shares[SessionKey] = Shares()
        self._own_shares: dict[str, Shares[SessionKey]] = {}
        """The sessions by participant, and those of each by client."""
        self._shown: dict[SessionKey, SessionContext] = {}
        """The context of each in the agent's report."""
        self._window_retries = 0
        self._chosen = chosen_policy(config)  # once: the file may change before the next session begins
        self.main = self._new(MAIN, resources.store)
        self._pin_settings()
        self._add_tools(self.main)
        conversation = self.main.conversation
        self._window_is_configured = conversation.tracker.window.basis == "configured"
        conversation.tracker.await_window(is_awaited=not self._window_is_configured)
        self.surroundings = conversation.tracker
        self.sizes = conversation.state.sizes

    async def load(self) -> None:
        """Load the stored conversations. Raises `ConfigError` if the policy is for another provider."""
        await check_provider(self._config, self._resources.model)
        if self.owns_resources:
            await self.main.conversation.load()
        for key in await self._resources.store.value(KEYS_AS, _KEYS) or ():
            await self._open(key)
            self._use(key)
        for participant in tuple(self._own_shares):  # `max_sessions` may be lower than before
            while (gone := self._surplus(participant)) is not None:
                await self._delete(gone)
        self._show()

    async def run(self) -> None:
        """Ask the model's server for its window."""
        await self.discover_window()

    def joined(self, facts: SpaceFacts) -> None:
        """Replace the pins of the space's instructions and descriptions."""
        self.main.conversation.pins.configure(SPACE_ORIGIN, pins_of_space(facts, self._config.id))

    async def answering(self, question: StoredChat, reasoning: Reasoning) -> ConversationAnswer:
        """Return the object that answers a chat, in the chat's session."""
        asked = question.envelope
        session = await self.session_for(asked.sender, asked.body.get("session"))
        find_window = self.discover_window_again
        return ConversationAnswer(self.me, self._config, session, question, reasoning, self.agent, find_window)

    def refusal(self, chat: Envelope) -> None:
        """Return None: this engine supports sessions and response formats."""

    async def session_for(self, participant: str, name: object) -> AgentSession:
        """Return the conversation for a chat with this `session`; opens a new one."""
        if not isinstance(name, str) or name == MAIN_SESSION:
            return self.main
        key = session_key(participant, name)
        session = self._sessions.pop(key, None) or await self._open(key)
        self._sessions[key] = session
        self._use(key)
        while (gone := self._surplus(participant, kept=key)) is not None:
            await self._delete(gone)
        await self._resources.store.keep_value(KEYS_AS, list(self._sessions))
        return session

    def _use(self, key: SessionKey) -> None:
        """Mark a session as the most recently used one."""
        participant, name = key
        self._shares.add(key, participant)
        self._own_shares.setdefault(participant, Shares()).add(key, client_of(name))

    def _surplus(self, participant: str, kept: SessionKey | None = None) -> SessionKey | None:
        """Return the session to delete after this participant opened one; None if there is room.

        Never deletes `kept`. If no client or participant has more sessions than the others, the least recently used one
        goes.
        """
        for shares, limit in ((self._own_shares[participant], self._config.max_sessions), (self._shares, MAX_SESSIONS)):
            gone = shares.surplus(limit)
            if gone is not None:
                return gone if gone != kept else next(one for one in shares if one != kept)
        return None

    async def discover_window(self) -> None:
        """Ask the model's server for its window, unless one is configured, and set it in all conversations."""
        if self._window_is_configured:
            await self._check_pins()
            return
        known = {session: session.conversation.tracker.window for session in (self.main, *self._sessions.values())}
        try:
            window = await self._resources.model.discover_window()
        except MewAgentError as error:
            logger.info("the model's server did not report its window: %s", error)
            window = None
        tracker = self.main.conversation.tracker
        was_awaited = tracker.is_window_awaited
        tracker.await_window(is_awaited=False)
        if window is not None:
            for session in (self.main, *self._sessions.values()):
                # An overflow error in the meantime named the real limit.
                if known.get(session, now := session.conversation.tracker.window) == now:
                    await session.conversation.change_window(window)
            await self._check_pins()
        elif tracker.lacks_window:
            await self.main.conversation.emit_status(
                status_word("policy_stopped", NO_WINDOW.format(model=self._config.model))
            )
        elif was_awaited:
            await self.main.conversation.emit_status()

    async def discover_window_again(self, *, had_failed: bool) -> None:
        """Ask again if the server may answer now: it was down before (`had_failed`), or loads at the first call."""
        if not had_failed:
            self._window_retries += 1
            if self._window_retries > MAX_WINDOW_RETRIES:
                return
        await self.discover_window()

    receipt_basis = "prompt"
    shares_turns = True

    async def holding(self, read: ReadRecord, key: MessageKey, session: str | None) -> Holding:
        if session in (None, MAIN_SESSION):
            return await self.main.conversation.receipts.of(read)
        found = self._sessions.get(session_key(key.sender, session))
        if found is None:
            return Holding("gone", reason=f"the session '{session}' was deleted")
        conversation = found.conversation
        return await conversation.receipts.of(partial(conversation.state.store.message, key))

    @property
    def compacting(self) -> CompactionDriver:
        return self.main.conversation.compacting

    # -- figures of the agent's own conversation ---------------------------------------------------------

    @property
    def calibration(self) -> Calibration:
        return self.main.conversation.tracker.ledger.calibration

    def has_room(self, size: Size) -> bool:
        conversation, calibration = self.main.conversation, self.calibration
        conversation.calls.renew_prefix()
        queued = conversation.tracker.queued
        added_tokens = calibration.wrap(size.tokens(calibration)) + (0 if queued is None else queued.tokens)
        return not conversation.tracker.would_overflow(added_tokens)

    def fit(self, size: Size) -> Fit:
        conversation = self.main.conversation
        conversation.calls.renew_prefix()
        return fit_of_text(conversation.tracker, size)

    def has_read(self, chat: StoredChat) -> bool:
        if chat.first_seq < 0:
            return False
        items = reversed(self.main.conversation.history.items)
        recent = takewhile(lambda item: item.seq >= chat.first_seq, items)
        return any(item.envelope_id == chat.envelope.id for item in recent)

    async def aclose(self) -> None:
        """Close the stores of all sessions, and the model unless the program brought its own."""
        for session in self._sessions.values():
            await session.conversation.state.store.aclose()
        if self.owns_resources:
            await self._resources.aclose()

    # -- internal ----------------------------------------------------------------------------------------

    def _new(self, key: SessionKey, store: Store) -> AgentSession:
        me, config, resources = self.me, self._config, self._resources
        window = resolve_window(self._chosen.limit_tokens) if key == MAIN else self.main.conversation.tracker.window
        tracker = Tracker(history=History(), policy=self._chosen.policy, window=window, model=config.model)
        tools = AgentTools()
        options = ConversationOptions(
            system_prompt=config.system_prompt or DEFAULT_SYSTEM_PROMPT.format(name=config.name or config.id),
            tools=tools.specs,
            tools_version=lambda: (tools.sources, me.toolbox.version, me.peers.version, me.messenger.capabilities),
            keep_newest_items=config.conversation_history_length,
            call_bound_seconds=resources.call_bound_seconds,
            result_bound=ResultBound(config.max_result_tokens, config.long_results),
            summariser=resources.summariser,
            summary_timeout_seconds=config.summary_timeout_seconds,
            load_counter=lambda: resources.counter or chosen_counter(config.tokenizer, config.tokenizer_settings),
            windows=config.windows,
            shared_pins=None if key == MAIN else self.main.conversation.pins,
            prices=config.prices,
            measure_compactions=config.measure_compactions,
        )
        conversation = Conversation(resources.model, tracker, store, options)
        if config.compaction is not None:
            if (gate := load_only(GATES)) is None:
                raise ConfigError("compaction", "no installed package asks before compactions")
            conversation.gate = gate(self.me, conversation, config.compaction, None if key == MAIN else key[1])
        return AgentSession(key, conversation, tools)

    def _pin_settings(self) -> None:
        """Pin the texts of the settings. Raises `ConfigError` if they do not fit a configured window."""
        conversation = self.main.conversation
        conversation.pins.configure(
            SETTINGS_ORIGIN, {f"s{number}": text for number, text in enumerate(self._config.pins, start=1)}
        )
        conversation.calls.describe_prefix()
        problem = conversation.pins.problem() if self._config.pins else None
        if problem is not None and conversation.tracker.window.basis == "configured":
            raise ConfigError("pins", problem)

    async def _check_pins(self) -> None:
        """Report pins that are too large for the known window; keep them."""
        conversation = self.main.conversation
        if conversation.pins.all and (problem := conversation.pins.problem()) is not None:
            await conversation.emit_status(status_word("pins_do_not_fit", problem))

    def _add_tools(self, session: AgentSession) -> None:
        conversation = session.conversation
        session.tools.add(self._own_tools)
        needs_reminders = conversation.tracker.policy.needs_reminder_tools
        if needs_reminders if self._config.reminders is None else self._config.reminders:
            session.tools.add(conversation.context_tools)
        if self._config.pin_tools:
            session.tools.add(PinTools(conversation.pins, self._config.id, self.main.conversation.emit_status))
        on_left_out = [self._on_tools_left_out] if session.key == MAIN else []
        # Only our own functions can have equal names: all other tools have names without the separator.
        peer_tools = PeerTools(self.me, self.me.toolbox.tools.keys, _tool_room(conversation), *on_left_out)
        recall = RecallTools(conversation.state, conversation.archive)
        for source in (*self._other_tools, peer_tools, recall):  # last, so that its changes follow a cached prefix
            session.tools.add(source)

    async def _open(self, key: SessionKey) -> AgentSession:
        path, limits = self._path_of(key), store_limits(self._config)
        session = self._new(key, MemoryStore(limits) if path is None else SqliteStore(path, limits))
        try:
            await session.conversation.load()
        except StoreUnusable as error:
            # Never answer in another conversation: that would show one client the messages of another.
            logger.warning("session '%s' of '%s' begins again, in memory: %s", key[1], key[0], error)
            session = self._new(key, MemoryStore(limits))
        self._add_tools(session)
        session.conversation.compacting.may_begin = self.agent.may_session_compact
        session.is_new = not session.conversation.history.next_seq

        async def receive(event: ConversationEvent) -> None:
            if isinstance(event, StatusChanged):
                self._shown[key] = _shown(key, event.status)
                self._show()
                # The agent's report contains the figures. While a session compacts, the agent compacts: others wait for
                # it.
                word = event.word if event.word is not None and event.word.word == "compacting" else None
                await self.agent.receive_event(StatusChanged(self.main.conversation.status(word)))
            elif isinstance(event, PromptRead | HistoryChanged):
                await self.agent.receive_event(event)

        session.conversation.events.subscribe(receive)
        self._shown[key] = _shown(key, session.conversation.status())
        self._sessions[key] = session
        return session

    async def _delete(self, key: SessionKey) -> None:
        session = self._sessions.pop(key)
        del self._shown[key]
        self._shares.discard(key)
        self._own_shares[key[0]].discard(key)
        logger.warning(
            "deleted session '%s' of '%s': more than %d sessions of one participant, or %d of all",
            *(key[1], key[0], self._config.max_sessions, MAX_SESSIONS),
        )
        if session.conversation.gate is not None:
            session.conversation.gate.close(f"session '{key[1]}' was deleted")
        await session.conversation.state.store.aclose()
        if (path := self._path_of(key)) is not None:
            try:
                for name in (path.name, f"{path.name}-wal", f"{path.name}-shm"):
                    path.with_name(name).unlink(missing_ok=True)
            except OSError as error:  # the chat that opened another session needs its answer
                logger.warning("the file of session '%s' of '%s' stays: %s", key[1], key[0], error)

    def _show(self) -> None:
        shown = tuple(self._shown[key] for key in reversed(self._sessions))
        self.main.conversation.tracker.sessions = shown

    # -- files -------------------------------------------------------------------------------------------

    def _path_of(self, key: SessionKey) -> Path | None:
        """Return the path of a session's file, next to the agent's own; None if sessions are kept in memory."""
        store = self._config.store
        return None if store is None else store.with_name(f"{store.name}~{_file_name(key)}")


def _tool_room(conversation: Conversation) -> ToolRoom:
    tracker = conversation.tracker

    def free_tokens() -> int:
        """Return the tokens that are free before a compaction."""
        at = tracker.policy.marks(tracker.window.max_tokens).compact_at_tokens
        above = 0 if at is None else max(0, tracker.usable_tokens - at)
        return max(0, tracker.free_tokens(None)[0] - above)

    return ToolRoom(lambda: tracker.window.max_tokens, free_tokens, lambda: tracker.history.revision)


def _file_name(key: SessionKey) -> str:
    # Names may be too long for a file name, and contain any character.
    return hashlib.blake2b(json.dumps(key).encode(), digest_size=16).hexdigest()


def _shown(key: SessionKey, status: Status) -> SessionContext:
    report = status.context
    known = {} if report is None else {name: getattr(report, name) for name in _SHOWN}
    return SessionContext(
        session=key[1],
        participant=key[0],
        messages_in_context=status.messages_in_context,
        tokens=status.tokens,
        max_tokens=status.max_tokens,
        status=status.status,
        context=ContextReport.model_validate(known),
    )
