"""Decides which chats an agent answers: by rules, then by a request to its model if the rules do not decide.

The request is a side call: it has its own role in the records, and changes neither figures nor history. Its size and
time are limited. If it fails, the rules decide.
"""

import logging
import re
from collections.abc import Awaitable, Callable
from typing import Final, Literal

import anyio
from mew_protocol.envelope import Envelope
from mew_protocol.json_values import text_at

from mew_agent.agent.loop_guard import asks_something
from mew_agent.conversation.model_calls import ModelCalls
from mew_agent.model.interface import Message, ModelRequest, ToolSpec

logger = logging.getLogger("mew_agent.agent.address_filter")

AnswerBroadcasts = Literal["rules", "model", "never"]
"""Whether to answer a broadcast that names no one: `rules`: questions; `model`: the model decides; `never`."""

ASK_SECONDS: Final = 20.0
"""Timeout of the request to the model; then the rules decide."""

MAX_CHARS: Final = 2000
MAX_TOOLS: Final = 50
MAX_OUTPUT_TOKENS: Final = 512
"""The answer is one word; models that think need room before it."""

INSTRUCTIONS: Final = (
    "You decide whether the participant '{name}' of a shared workspace should answer a message that was sent to"
    " everyone. {name} should answer requests that match its purpose or its tools, and stay silent when people talk"
    " among themselves, share news, say thanks, or address others. Answer only 'yes' or 'no'."
)
PURPOSE: Final = "The purpose of {name}: {prompt}"
TOOLS: Final = "Tools of {name}: {tools}"
MESSAGE: Final = "Message from '{sender}' to everyone:\n{text}"

_VERDICT: Final = re.compile(r"\b(yes|no)\b", re.IGNORECASE)


class AddressFilter:
    """Decides for one agent. `names` are the agent's names, with its display name first and its id last."""

    def __init__(
        self,
        names: tuple[str, ...],
        mode: AnswerBroadcasts,
        calls: ModelCalls | None = None,
        tools: Callable[[], tuple[ToolSpec, ...]] = tuple,
        *,
        answers: bool = True,
        purpose: str = "",
        ask_seconds: float = ASK_SECONDS,
    ) -> None:
        """`purpose` describes the agent to the model. Only the mode `model` needs `calls`.

        With `answers` False the agent answers no chat.
        """
        self._answers = answers
        self._id, self._name, self._mode = names[-1], names[0], mode
        self._calls = calls
        self._tools = tools
        self._purpose = purpose
        self._ask_seconds = ask_seconds
        self.on_spent: Callable[[str, int, int], Awaitable[object]] | None = None
        """Called with the sender of a chat that the model was asked about, the tokens, and 1 if they are unknown."""
        either = "|".join(re.escape(name) for name in dict.fromkeys(names))
        self._mention = re.compile(rf"(?<!\w)@?(?:{either})(?!\w)", re.IGNORECASE)
        self._at_mention = re.compile(rf"(?<!\w)@(?:{either})(?!\w)", re.IGNORECASE)

    def check_rules(self, chat: Envelope) -> bool | None:
        """Return whether the rules assign a chat to the agent; None: ask the model. A chat without text is never for
        the agent.

        A chat is for the agent if `to` or the text names it. A chat to others is only with `@name`, and not if it is
        correlated: two agents that reply to each other's answers would never stop.
        """
        text = text_at(chat.body, "text")
        if not self._answers or not text:
            return False
        if chat.names(self._id):
            return True
        if chat.addressees:
            return not chat.correlation_id and self._at_mention.search(text) is not None
        return True if self._mention.search(text) is not None else self._check_broadcast(chat)

    def _check_broadcast(self, chat: Envelope) -> bool | None:
        """Return whether to answer a chat that names no one; None: ask the model."""
        if self._mode == "never":
            return False
        return None if self._mode == "model" and not chat.correlation_id else asks_something(chat)

    async def is_for_us(self, chat: Envelope) -> bool:
        """Return whether to answer a chat; the model decides if the rules do not. A failure of the model raises
        nothing.
        """
        verdict = self.check_rules(chat)
        return await self._ask_model(chat) if verdict is None else verdict

    async def _ask_model(self, chat: Envelope) -> bool:
        text = text_at(chat.body, "text")
        assert self._calls is not None
        try:
            with anyio.fail_after(self._ask_seconds):
                reply = await self._calls.side_call(self._request(chat.sender, text), "classification")
        except Exception as error:  # the chat needs a decision, even after an unexpected error
            logger.warning("classification of a chat from '%s' failed, the rules decide: %s", chat.sender, error)
            return asks_something(chat)
        if self.on_spent is not None:
            usage = reply.usage
            await self.on_spent(chat.sender, usage.total_tokens if usage is not None else 0, int(usage is None))
        verdict = _VERDICT.search(reply.text)
        if verdict is None:
            logger.warning("classification of a chat from '%s' is neither yes nor no: %.80r", chat.sender, reply.text)
            return asks_something(chat)
        return verdict[0].lower() == "yes"

    def _request(self, sender: str, text: str) -> ModelRequest:
        name = self._name
        parts = [INSTRUCTIONS.format(name=name)]
        if self._purpose:
            parts.append(PURPOSE.format(name=name, prompt=self._purpose[:MAX_CHARS]))
        if tools := [spec.name for spec in self._tools()[:MAX_TOOLS]]:
            parts.append(TOOLS.format(name=name, tools=", ".join(tools)))
        message = MESSAGE.format(sender=sender, text=text[:MAX_CHARS])
        return ModelRequest(
            (Message("system", "\n".join(parts)), Message("user", message)), max_output_tokens=MAX_OUTPUT_TOKENS
        )
