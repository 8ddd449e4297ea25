"""[pure] Facts about received messages, the basis of receipts.

Keeps for each message: its entry into the history, the first prompt in which a model read it, and its end. Does not
know history, summaries or time.
"""

from collections.abc import Collection, Sequence
from typing import Final, Literal, NamedTuple

from mew_listener.bounded_dict import BoundedDict
from mew_protocol.envelope import Envelope
from mew_protocol.payloads.read_receipts import InContext, PromptCall

MAX_KEPT = 20_000
"""How many entries a store keeps; a receipt of an older message is unknown."""

MAX_FOLLOWERS = 1_000
"""How many followers of receipts are kept; the oldest is dropped."""

Ending = Literal["answered", "refused", "cancelled"]


class MessageKey(NamedTuple):
    """The sender and the id of a message. Some clients restart their ids, so an id alone names no message."""

    sender: str
    id: str

    @classmethod
    def of(cls, chat: Envelope) -> "MessageKey":
        """Return the key of a chat."""
        return cls(chat.sender, chat.id)


class MessageEnding(NamedTuple):
    """How a message ended. `session` is the conversation that read it; `answer` is the id of the answer."""

    key: MessageKey
    what: Ending
    at: str
    session: str | None = None
    answer: str | None = None
    reason: str | None = None


class Prompted(NamedTuple):
    """A model call, and the newest item of its prompt.

    `is_read`: the model has answered, at least in part. Otherwise the call failed without output, and it is unknown
    whether the model got the prompt.
    """

    call: PromptCall
    last_seq: int
    is_read: bool = True


class MessageEntry(NamedTuple):
    """One entry of a message into a history. `seq` None: the history is kept by another program.

    `call` is the first call that read it. `is_doubtful`: an earlier call failed without output, or its process ended.
    `form` is the message's form in another program's context, since `form_at`.
    """

    seq: int | None
    call: PromptCall | None = None
    is_doubtful: bool = False
    form: InContext | None = None
    form_at: str | None = None


class MessageRecord(NamedTuple):
    """The record of one message: its entries, oldest first, and its end. Empty if nothing is known."""

    entries: Sequence[MessageEntry] = ()
    ending: MessageEnding | None = None

    @property
    def newest(self) -> MessageEntry | None:
        """The newest entry; None if the message never entered a history."""
        return self.entries[-1] if self.entries else None

    @property
    def read_in(self) -> PromptCall | None:
        """The first call that read the message; None if none did.

        An undo restores an earlier entry, which a later call may read.
        """
        calls = (one.call for one in self.entries if one.call is not None)
        return min(calls, key=lambda call: call.number, default=None)


class ReceiptFollower(NamedTuple):
    """A participant that receives each change of a message's receipt.

    `told` is the last sent change, and `times` the number of earlier ones: a form of a message can return.
    """

    key: MessageKey
    participant: str
    told: str = ""
    times: int = 0

    @property
    def waits_for(self) -> "Sequence[Cause]":
        """Return the next possible cause of a change: a prompt until the message is read, then the context.

        After a prompt that the model's server shortened, the next prompt decides.
        """
        state, _, form = self.told.partition(" ")
        if form:
            return ("context", "read") if form == "unknown" else ("context",)
        return () if state in FINAL_STATES else ("read",)


Cause = Literal["read", "context", "join"] | MessageKey
"""The kind of change: a model read a prompt, the context was cut or restored, one message, or the agent has joined
again."""

FINAL_STATES: Final = ("refused",)
"""The states of a message that no prompt will hold. One that was cancelled may be in the history, and is read later."""


class ReceiptFollowers:
    """The newest followers of receipts, by message and participant."""

    def __init__(self) -> None:
        self.all: BoundedDict[tuple[MessageKey, str], ReceiptFollower] = BoundedDict(MAX_FOLLOWERS)

    def put(self, follower: ReceiptFollower) -> None:
        """Add a follower as the newest, or replace its last news."""
        self.all[follower.key, follower.participant] = follower

    def due(self, causes: Collection[Cause]) -> list[ReceiptFollower]:
        """Return the followers whose receipts one of these causes may change, oldest first; `join` returns all."""
        followers = list(self.all.values())
        if "join" in causes:
            return followers
        return [one for one in followers if any(cause in causes for cause in (one.key, *one.waits_for))]

    def get(self, key: MessageKey, participant: str) -> ReceiptFollower | None:
        """Return a participant that follows a message, with its last news; None if it does not."""
        return self.all.get((key, participant))


class ReceiptChange(NamedTuple):
    """A change of the facts: entries of messages by seq, a call, endings, and followers.

    `seqs` maps items to their messages. `read` are messages in another program's prompt. `forms` replaces the form of
    everything that such a program has read, after its own compaction or a clear. `is_restart`: an earlier process may
    have sent messages that no known call has read.
    """

    seqs: Sequence[tuple[int, MessageKey]] = ()
    prompted: Prompted | None = None
    read: Sequence[tuple[MessageKey, PromptCall]] = ()
    forms: tuple[InContext, str] | None = None
    endings: Sequence[MessageEnding] = ()
    followers: Sequence[ReceiptFollower] = ()
    is_restart: bool = False


NO_RECEIPTS = ReceiptChange()
