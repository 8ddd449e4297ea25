"""Which of the chats that arrive an agent answers: by simple rules, or by asking its model about what they leave open.

Owns those rules and the question to the model. That question is a call beside the conversation: on record with its own
role, it moves no figure and enters no history; it is bounded in size and time, and where it fails the rules decide.
"""

import logging
import re
from collections.abc import Callable
from typing import Final, Literal

import anyio
from mew_protocol.envelope import Envelope

from mew_agent.conversation.conversation import Conversation
from mew_agent.model.interface import Message, ModelRequest, ToolSpec

logger = logging.getLogger("mew_agent.agent.address_filter")

AnswerBroadcasts = Literal["rules", "model", "never"]
"""What is said to everybody and names nobody is answered: where it asks something, where the model says that it is for
it, or never.
"""

ASK_SECONDS: Final = 20.0
"""How long the model may think about whether a chat is for it; then the rules decide."""

MOST_CHARS: Final = 2000
MOST_TOOLS: Final = 50
MOST_OUTPUT_TOKENS: Final = 512
"""An answer is one word; models that think need room before it."""

INSTRUCTIONS: Final = (
    "You decide whether the participant '{name}' of a shared workspace should answer a message that somebody sent to"
    " everybody. {name} should answer what asks for something that {name} is there for or can do, and stay silent where"
    " people talk among themselves, tell news, thank, or speak to others. Say only 'yes' or 'no'."
)
ABOUT: Final = "What {name} is there for: {prompt}"
CAN_DO: Final = "Tools {name} has: {tools}"
MESSAGE: Final = "Message from '{sender}' to everybody:\n{text}"

_VERDICT: Final = re.compile(r"\b(yes|no)\b", re.IGNORECASE)


class Concerns:
    """See the module. `names` are the names an agent is called by, the one that others see first."""

    def __init__(
        self,
        names: tuple[str, ...],
        how: AnswerBroadcasts,
        conversation: Conversation,
        tools: Callable[[], tuple[ToolSpec, ...]],
        *,
        about: str = "",
        ask_seconds: float = ASK_SECONDS,
    ) -> None:
        """`about` says what the agent is there for, in the question to its model."""
        self._id, self._name, self._how = names[-1], names[0], how
        self._conversation = conversation
        self._tools = tools
        self._about = about
        self._ask_seconds = ask_seconds
        either = "|".join(re.escape(name) for name in dict.fromkeys(names))
        self._mention = re.compile(rf"(?<!\w)@?(?:{either})(?!\w)", re.IGNORECASE)
        self._call = re.compile(rf"(?<!\w)@(?:{either})(?!\w)", re.IGNORECASE)

    def by_rules(self, chat: Envelope) -> bool | None:
        """Whether a chat is for us to answer; None: the model is to be asked.

        Named in `to`, or mentioned. What is said to somebody else means us only where it calls us by `@name`, and not
        in an answer (it is correlated): two agents that take up each other's answers would never stop.
        """
        if chat.names(self._id):
            return True
        text = _text_of(chat)
        is_mentioned = self._mention.search(text) is not None
        if chat.addressees:
            return not chat.correlation_id and self._call.search(text) is not None
        if is_mentioned:
            return True
        if self._how == "never":
            return False
        return None if self._how == "model" and not chat.correlation_id else _asks(text)

    async def confirmed(self, chat: Envelope) -> bool:
        """Whether to answer a chat; asks the model where the rules leave it open. Raises nothing for its failures."""
        verdict = self.by_rules(chat)
        return await self._ask_model(chat) if verdict is None else verdict

    async def _ask_model(self, chat: Envelope) -> bool:
        text = _text_of(chat)
        try:
            with anyio.fail_after(self._ask_seconds):
                reply = await self._conversation.aside(self._question(chat.sender, text), "classification")
        except Exception as error:  # whatever it was, the chat still wants a decision
            logger.warning("whether a chat of '%s' is for us was decided without the model: %s", chat.sender, error)
            return _asks(text)
        said = _VERDICT.search(reply.text)
        if said is None:
            logger.warning("the model did not say whether a chat of '%s' is for us: %.80r", chat.sender, reply.text)
            return _asks(text)
        return said[0].lower() == "yes"

    def _question(self, sender: str, text: str) -> ModelRequest:
        name = self._name
        parts = [INSTRUCTIONS.format(name=name)]
        if self._about:
            parts.append(ABOUT.format(name=name, prompt=self._about[:MOST_CHARS]))
        if tools := [spec.name for spec in self._tools()[:MOST_TOOLS]]:
            parts.append(CAN_DO.format(name=name, tools=", ".join(tools)))
        message = MESSAGE.format(sender=sender, text=text[:MOST_CHARS])
        return ModelRequest(
            (Message("system", "\n".join(parts)), Message("user", message)), max_output_tokens=MOST_OUTPUT_TOKENS
        )


def _text_of(chat: Envelope) -> str:
    return str(chat.body.get("text") or "")


def _asks(text: str) -> bool:
    return "?" in text
