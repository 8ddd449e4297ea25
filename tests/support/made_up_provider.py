"""A provider whose every token is known: how it writes a conversation into a prompt, and how it reports usage.

Chat templates differ in more than sizes: some strip old thinking, some shorten old tool calls, some servers drop the
oldest messages without an error. `Template` has each of these as a switch, and `Books` keeps a ledger beside the truth.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

from mew_agent.context.item_sizes import ItemSize, kept_reply_tokens
from mew_agent.context.ledger import Ledger, Price
from mew_agent.context.reconciliation import Drift
from mew_agent.model.usage import Usage, read_usage
from tests.support.ledgers import append, cut, describe, record

Style = Literal["openai", "xai", "gemini", "silent", "cache_excluded"]


@dataclass(frozen=True)
class Entry:
    """A message. `units` is what our feature count says of it, `tokens` what the provider's tokenizer says."""

    seq: int
    role: str
    units: float
    tokens: int
    thinking_tokens: int = 0
    call_tokens: int = 0


@dataclass(frozen=True)
class Template:
    """How a server writes a request. Additive unless a switch is on; all sizes in tokens."""

    overhead: int = 4
    opening: int = 3
    prefix: int = 300
    strips_thinking: bool = False
    shortens_old_calls: bool = False
    window: int | None = None
    scale: tuple[int, int] = (1, 1)

    def prompt(self, entries: Sequence[Entry], summary: int = 0) -> int:
        """Tokens of a prompt with these entries, and with a summary of so many tokens."""
        costs = [self._cost(entries, place) for place in range(len(entries))]
        fixed = self.opening + self.prefix + (summary + self.overhead if summary else 0)
        if self.window is not None:
            while len(costs) > 1 and fixed + sum(costs) > self.window:
                costs.pop(0)
        return fixed + sum(costs)

    def _cost(self, entries: Sequence[Entry], place: int) -> int:
        entry = entries[place]
        questions_since = sum(later.role == "user" for later in entries[place + 1 :])
        thinking = entry.thinking_tokens if self.strips_thinking and not questions_since else 0
        calls = entry.call_tokens
        if self.shortens_old_calls and questions_since >= 2:
            calls //= 2
        numerator, denominator = self.scale
        return self.overhead + (entry.tokens + thinking + calls) * numerator // denominator


def usage_of(style: Style, prompt: int, reply: int, hidden: int) -> Usage:
    """What a provider of this style reports for a reply of `reply` visible and `hidden` reasoning tokens."""
    match style:
        case "openai":
            return Usage(prompt, reply + hidden, prompt + reply + hidden, reasoning_tokens=hidden)
        case "silent":
            return Usage(prompt, reply + hidden, prompt + reply + hidden)
        case "xai":
            return Usage(prompt, reply, prompt + reply + hidden, reasoning_tokens=hidden)
        case "gemini":
            return Usage(prompt, reply, prompt + reply + hidden)
        case "cache_excluded":
            cached = prompt - prompt // 4
            usage = read_usage(
                {"input_tokens": prompt - cached, "output_tokens": reply, "cache_read_input_tokens": cached}
            )
            assert usage is not None
            return usage


@dataclass
class Books:
    """A ledger, and the conversation it accounts for."""

    template: Template = field(default_factory=Template)
    style: Style = "openai"
    served_model: str = "model"
    fingerprint: str = "same"
    backend: str | None = "one"
    prefix_units: float = 300.0
    ledger: Ledger = field(default_factory=Ledger)
    entries: list[Entry] = field(default_factory=list)
    bounds: list[int] = field(default_factory=list)
    """The newest item that each call sent."""
    summary: int = 0

    _next_seq: int = 0

    def __post_init__(self) -> None:
        describe(self.ledger, self.prefix_units)

    def add_entry(self, role: str, units: float, tokens: int, *, known: int | None = None, **more: int) -> Entry:
        """A message enters."""
        entry = Entry(self._next_seq, role, units, tokens, **more)
        self._next_seq += 1
        self.entries.append(entry)
        append(
            self.ledger,
            ItemSize(
                entry.seq,
                units,
                known,
                tool_result=role == "tool",
                thinking=entry.thinking_tokens > 0,
                tool_calls=entry.call_tokens > 0,
            ),
        )
        return entry

    def call(
        self, units: float = 20.0, tokens: int = 20, *, hidden: int = 0, thinking: int = 0, call_tokens: int = 0
    ) -> Drift | None:
        """A kept main call sends everything; then its reply enters."""
        usage = usage_of(self.style, self.prompt(), tokens + call_tokens, hidden + thinking)
        last = self.entries[-1].seq if self.entries else -1
        self.bounds.append(last)
        drift = record(
            self.ledger,
            usage,
            served_model=self.served_model,
            fingerprint=self.fingerprint,
            last_seq=last,
            backend=self.backend,
        )
        known = kept_reply_tokens(usage, thinking_seen=thinking > 0)
        self.add_entry("assistant", units, tokens, known=known, thinking_tokens=thinking, call_tokens=call_tokens)
        return drift

    def prompt(self) -> int:
        """What the next call's prompt will truly hold."""
        return self.template.prompt(self.entries, self.summary)

    def true_price(self, first_seq: int, last_seq: int, *, up_to_seq: int | None = None) -> int:
        """By how much the next prompt (or the one that ended with `up_to_seq`) would truly fall without these items."""
        sent = [entry for entry in self.entries if up_to_seq is None or entry.seq <= up_to_seq]
        rest = [entry for entry in sent if not first_seq <= entry.seq <= last_seq]
        return self.template.prompt(sent, self.summary) - self.template.prompt(rest, self.summary)

    def cut(self, first_seq: int, last_seq: int) -> Price:
        """The items leave the history."""
        price = cut(self.ledger, first_seq, last_seq)
        self.entries = [entry for entry in self.entries if not first_seq <= entry.seq <= last_seq]
        return price

    def change_template(self, **changes: object) -> None:
        """The server writes requests another way from now on."""
        self.template = replace(self.template, **changes)  # type: ignore[arg-type]

    def parts_sum(self) -> int:
        """The last reported prompt, put together from its parts."""
        parts = self.ledger.parts
        return parts.prefix + parts.summary + parts.pins + parts.messages + parts.tool_results
