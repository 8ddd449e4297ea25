"""What an agent's policy decides, and what comes of it: asked at its moments, told to everybody, carried out.

The moments are before a request, while a reply is written, after a call, and when a message enters. What needs the
history between two calls waits for `settle`; owned here is what waits. How a context is compacted or reminded of itself
is the business of `compaction` and `remedies`, when the model is called `conversation`'s.
"""

import logging
import time
from dataclasses import dataclass

from mew_agent.context.policy import AbortAction, CompactAction, ErrorAction, GenerationFlags, Phase
from mew_agent.conversation import texts
from mew_agent.conversation.compactions import Announce, CompactionRunner
from mew_agent.conversation.events import ContextCleared
from mew_agent.conversation.history_lock import HistoryLock
from mew_agent.conversation.model_calls import Listener
from mew_agent.conversation.notices import Notice, Notify, ignore_notice
from mew_agent.conversation.policy_executor import Due, Remedies
from mew_agent.conversation.stream_projection import StreamWatch
from mew_agent.conversation.suggestions import Advice
from mew_agent.conversation.tool_results import halved
from mew_agent.conversation.transcript import Transcript
from mew_agent.errors import MewAgentError, PolicyStopped
from mew_agent.model.interface import ModelEvent, ReasoningDelta, TextDelta

logger = logging.getLogger("mew_agent.conversation.decisions")

FOR_A_PERSON = GenerationFlags(user_prompt=True)
"""Unless a reply asks for tools, the next generation is for whatever somebody says next."""


@dataclass(eq=False)
class ReplyStopped(MewAgentError):
    """The policy stopped a running reply, at so many projected tokens."""

    due: Due
    tokens: int

    def __str__(self) -> str:
        return f"stopped by the policy when the context held about {self.tokens:,} tokens"


class Decisions:
    """See the module. `announce(word)` broadcasts the status of this moment; None: its own word.

    `notify` hears what people who watch the running reply should see.
    """

    def __init__(
        self,
        transcript: Transcript,
        remedies: Remedies,
        compactions: CompactionRunner,
        lock: HistoryLock,
        announce: Announce,
    ) -> None:
        self.notify: Notify = ignore_notice
        self._transcript = transcript
        self._tracker = transcript.tracker
        self._remedies = remedies
        self._compactions = compactions
        self._lock = lock
        self._announce = announce
        self._advice = Advice(transcript.tracker)
        self._due: CompactAction | None = None
        if transcript.tracker.policy.counts_messages:
            transcript.on_entered = self._message_entered

    async def announce(self, word: str | None = None) -> None:
        """Tell everybody the status of this moment."""
        self._remedies.note_level()
        await self._announce(word)

    # -- what waits --------------------------------------------------------------------------------------

    def drop_compaction(self) -> None:
        """Something left the context otherwise: the compaction that was decided is not due any more."""
        self._due = None

    async def settle(self) -> None:
        """Do what was decided after the last call: before the next request, or when nothing waits any more."""
        reason = self._remedies.planned_clear
        if reason is not None:
            async with self._lock.between_calls():
                await self.clear(reason)
            await self.announce(f"cleared:{reason}")
        elif self._due is not None:
            await self.compact(self._due)

    async def clear(self, reason: str | None) -> None:
        """Forget everything but reminders. The caller holds the history between two calls.

        A `reason` of our own is told to the model, too.
        """
        tokens = self._tracker.tokens
        self._due = None
        await self._transcript.clear()
        self._remedies.new_course(reason)
        await self._transcript.keep()
        self._remedies.events.tell(ContextCleared(tokens, reason))

    async def compact(self, action: CompactAction) -> bool:
        """Compact unasked; who watches a reply of a policy that stops replies sees it begin and end.

        Returns whether anything left the context.
        """
        if not self._compactions.is_running:
            self._due = None
        shows = "stream" in self._tracker.policy.rule_index.interventions
        if shows:
            await self.notify(Notice("compacting", texts.COMPACTING))
        changed = await self._compactions.by_itself(action)
        self._remedies.note_level()
        if shows and changed:
            await self.notify(Notice("compacted", texts.COMPACTED))
        elif shows:
            problem = self._compactions.problem or "nothing can be taken out"
            await self.notify(Notice("not_compacted", texts.NOT_COMPACTED.format(problem=problem)))
        return changed

    # -- the moments -------------------------------------------------------------------------------------

    async def before_request(self, *, is_chained: bool) -> bool:
        """Make room if the request would not fit. `is_chained`: it brings the model the results of its own calls.

        Returns whether the context was cleared, and what was asked has to enter anew. Raises `PolicyStopped`.
        """
        decided = self._tracker.decide("pre_request", time.time(), GenerationFlags(user_chain=is_chained))
        due = self._remedies.carry_out(decided.actions)
        await self._announce_words(due)
        if due.stop is not None:
            raise PolicyStopped(self._tracker.policy.name, await self._stopped(due.stop))
        if self._remedies.planned_clear is not None:
            await self.settle()
            return True
        if due.compact is not None:
            await self.compact(due.compact)
        return False

    def watching(self, listen: Listener) -> Listener:
        """The listener, and behind it the policy, if that looks at running replies. Raises `ReplyStopped`."""
        policy = self._tracker.policy
        if "stream" not in policy.phases and "stream" not in policy.rule_index.interventions:
            return listen
        limit = self._tracker.limit_tokens
        watch = StreamWatch(self._tracker.next_prompt_tokens, limit, self._tracker.ledger.calibration)

        async def hear(event: ModelEvent) -> None:
            await listen(event)
            if isinstance(event, TextDelta | ReasoningDelta):
                tokens = watch.arrived(event.text)
                if watch.is_worth_showing(tokens):
                    await self.notify(Notice("size", tokens=tokens, max_tokens=limit, basis="projected"))
                await self._in_stream(tokens)

        return hear

    async def _in_stream(self, tokens: int) -> None:
        actions = self._tracker.decide_while("stream", tokens).actions
        if not actions:
            return
        due = self._remedies.carry_out(actions)
        await self._announce_words(due)
        if due.stop is not None or due.restart is not None:
            raise ReplyStopped(due, tokens)
        self._due = due.compact or self._due

    async def after_stop(self, stopped: ReplyStopped) -> None:
        """Compact, so that the reply can begin again. Raises `PolicyStopped` where it may not."""
        stop = stopped.due.stop
        if stop is not None:
            problem = await self._stopped(stop, stopped.tokens, "projected")
            raise PolicyStopped(self._tracker.policy.name, problem)
        if stopped.due.compact is not None:
            await self.compact(halved(stopped.due.compact, self._tracker.next_prompt_tokens))

    async def after_call(self, flags: GenerationFlags) -> None:
        """Look at what the call left, and tell everybody where we stand; interventions wait for `settle`."""
        before = (self._tracker.policy_state, self._transcript.standing)
        due = self._decide("after_call", flags)
        self._due = due.compact
        if due.stop is not None:
            due.words.append(f"policy_stopped:{await self._stopped(due.stop)}")
        if before != (self._tracker.policy_state, self._transcript.standing):
            await self._transcript.keep()
        if not due.words and self._tracker.is_truncated_by_server:
            due.words.append("truncated_by_server")
        if not due.words:
            await self.announce()
        await self._announce_words(due)

    async def wants_upkeep(self) -> bool:
        """Whether a prompt waits for a generation that is not for a person. If so it enters with the next call."""
        state, waiting = self._tracker.policy_state, self._remedies.notices
        if not state.due or state.prompted or self._tracker.basis != "reported":
            return False
        await self.after_call(GenerationFlags())
        return self._remedies.notices != waiting

    async def _message_entered(self) -> None:
        """A policy that counts messages looks at each one that enters; what it decides waits for `settle`."""
        due = self._decide("message_added", GenerationFlags())
        self._due = due.compact or self._due
        await self._announce_words(due)

    def _decide(self, phase: Phase, flags: GenerationFlags) -> Due:
        self._advice.renew()
        return self._remedies.carry_out(self._tracker.decide(phase, time.time(), flags).actions)

    # -- what is told ------------------------------------------------------------------------------------

    async def _announce_words(self, due: Due) -> None:
        for word in due.words:
            await self.announce(word)

    async def _stopped(
        self, stop: AbortAction | ErrorAction, used_tokens: int | None = None, basis: str = "reported"
    ) -> str:
        """Tell that the policy stopped a reply; returns why, with the figures where it is the window that is full."""
        if isinstance(stop, ErrorAction):
            logger.warning("the context policy '%s' says: %s", self._tracker.policy.name, stop.problem)
            return stop.problem
        used = self._remedies.fullness.used_tokens if used_tokens is None else used_tokens
        limit = self._tracker.limit_tokens
        logger.warning("%s: %s of %s tokens, %s", stop.reason, used, limit, basis)
        text = texts.aborted(used, limit, basis)
        await self.notify(Notice("aborted", text, tokens=used, max_tokens=limit, basis=basis))
        return f"{stop.reason} ({texts.of_window(used, limit, basis)})"
