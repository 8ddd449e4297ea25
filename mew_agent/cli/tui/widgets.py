"""The widgets of the terminal application: conversation, composer, participants, and what needs a person.

Own how something is drawn and which keys it has. What is drawn is `feed` and `panels`.
"""

import re
from collections.abc import Callable, Iterable, Sequence
from typing import ClassVar, Final

from markdown_it import MarkdownIt
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical, VerticalScroll
from textual.content import Content
from textual.message import Message
from textual.widgets import Collapsible, Input, Markdown, OptionList, Static
from textual.widgets.option_list import Option

from mew_agent.cli.board import words
from mew_agent.cli.chat.slash import completions
from mew_agent.cli.tui.feed import MAX_ENTRIES, FeedEntry, clean_text
from mew_agent.cli.tui.panels import Line

_COLOURS: Final = {
    "calm": "$success",
    "warn": "$warning",
    "alarm": "bold $error",
    "dim": "$text-muted",
    "bold": "bold",
}


def content_of(lines: Iterable[Line]) -> Content:
    """Styled lines as Textual's content; no text of a participant is read as markup."""
    return Content("\n").join(
        Content.assemble(*(Content.styled(text, _COLOURS.get(style, "")) for text, style in line)) for line in lines
    )


_MARKDOWN: Final = re.compile(r"[*_`#|~\[\]\\&]|^ *(?:[-+>]|\d+[.)]) |^ {4}|^ *[-=]+$|\n", re.MULTILINE)
"""What only Markdown makes something of; a line without any of these is itself."""


def _markdown_parser() -> MarkdownIt:
    # HTML is shown as it was written, and `connection.py` is not a link.
    return MarkdownIt("gfm-like", {"html": False, "linkify": False})


class ChatView(Vertical):
    """A chat: who to whom, and the text as Markdown."""

    def __init__(self, entry: FeedEntry, is_mine: bool) -> None:
        super().__init__(classes="chat mine" if is_mine else "chat")
        self._entry = entry

    def compose(self) -> ComposeResult:
        entry = self._entry
        to = f" to {', '.join(words.clean(one) for one in entry.to)}" if entry.to else ""
        at = words.parse_time(entry.at)
        time = f"{at.astimezone():%H:%M}" if at is not None else ""
        heading = Content.assemble((words.clean(entry.sender), "bold"), (f"{to}  {time}", "$text-muted"))
        yield Static(heading, classes="heading")
        text = clean_text(entry.text)
        if _MARKDOWN.search(text):
            yield Markdown(text, parser_factory=_markdown_parser, open_links=False)
        else:  # costs a tenth
            yield Static(Content(text))


class WorkView(Vertical):
    """The work of an agent: what it writes while it writes, then one line that opens to its thoughts and calls."""

    def __init__(self, entry: FeedEntry) -> None:
        super().__init__(classes="work")
        self._entry = entry
        self._is_drawn = False

    def compose(self) -> ComposeResult:
        with Collapsible(title=self._entry.summary, collapsed=True):
            yield Static("", classes="details")
        yield Static("", classes="written")

    def on_mount(self) -> None:
        """Draw what is known already."""
        self._is_drawn = True
        self.redraw()

    def redraw(self) -> None:
        """Draw the entry again after a change."""
        if not self._is_drawn:
            return
        entry = self._entry
        self.query_one(Collapsible).title = entry.summary
        self.query_one(".details", Static).update(Content(entry.details or "no thoughts or calls were shared"))
        written = self.query_one(".written", Static)
        written.update(Content(clean_text(entry.text)))
        written.display = bool(entry.text)


class FeedView(VerticalScroll):
    """The conversation, newest at the bottom. It follows what is new unless a reader has scrolled up."""

    can_focus = True

    def __init__(self, me: str) -> None:
        super().__init__(id="feed")
        self._me = me
        self._follows = True
        self._views: dict[str, ChatView | WorkView | Static] = {}

    def watch_scroll_y(self, old_value: float, new_value: float) -> None:
        """Notice that a reader scrolled up, or back to the end."""
        super().watch_scroll_y(old_value, new_value)
        if new_value >= self.max_scroll_y:
            self._follows = True
        elif new_value < old_value:
            self._follows = False

    def follow(self) -> None:
        """Show the newest entry, which may have grown, unless a reader has scrolled up."""
        if self._follows and self.scroll_y < self.max_scroll_y:
            self.scroll_end(animate=False, immediate=True)

    def show(self, entries: Sequence[FeedEntry]) -> None:
        """Add entries, and draw those again that are here."""
        new = [one for one in entries if one.key not in self._views]
        for entry in entries:
            view = self._views.get(entry.key)
            if isinstance(view, WorkView):
                view.redraw()
            elif isinstance(view, Static):
                view.update(Content(clean_text(entry.text)))
        for entry in new:
            self._views[entry.key] = self._view_of(entry)
        if new:
            self.mount_all([self._views[one.key] for one in new])
        while len(self._views) > MAX_ENTRIES:
            self._views.pop(next(iter(self._views))).remove()

    def _view_of(self, entry: FeedEntry) -> ChatView | WorkView | Static:
        if entry.kind == "chat":
            return ChatView(entry, entry.sender == self._me)
        if entry.kind == "work":
            return WorkView(entry)
        return Static(Content(clean_text(entry.text)), classes="note")


class Composer(Input):
    """The line to type on. Tab completes commands and names, the arrow keys go through what was sent."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("up", "older", "Older", show=False),
        Binding("down", "newer", "Newer", show=False),
        Binding("tab", "complete", "Complete", show=False),
    ]

    def __init__(self, names: Callable[[], Sequence[str]]) -> None:
        super().__init__(placeholder="Message, @name message, or /help", select_on_focus=False, id="composer")
        self._names = names
        self._sent: list[str] = []
        self._place = 0

    def remember(self, line: str) -> None:
        """Keep a line for the arrow keys."""
        if line.strip() and self._sent[-1:] != [line]:
            self._sent.append(line)
        self._place = len(self._sent)

    def fill(self, text: str) -> None:
        """Put a text there for the person to finish."""
        self.value = text
        self.cursor_position = len(text)
        self.focus()

    def action_older(self) -> None:
        """Show the line that was sent before."""
        self._go(-1)

    def action_newer(self) -> None:
        """Show the line that was sent after."""
        self._go(1)

    def _go(self, step: int) -> None:
        self._place = min(len(self._sent), max(0, self._place + step))
        self.fill(self._sent[self._place] if self._place < len(self._sent) else "")

    def action_complete(self) -> None:
        """Complete the last word, as far as all candidates agree; go to the next widget if there is nothing to."""
        if not self.value:
            self.screen.focus_next()
            return
        found = completions(self.value, self._names())
        if len(found) == 1:
            self.fill(found[0] + " ")
        elif found:
            self.fill(_common_start(found))
            self.post_message(self.Candidates([one.split()[-1] for one in found]))

    class Candidates(Message):
        """Several words fit."""

        def __init__(self, candidates: list[str]) -> None:
            super().__init__()
            self.candidates = candidates


def _common_start(texts: Sequence[str]) -> str:
    first, last = min(texts), max(texts)
    same = next((at for at, (one, other) in enumerate(zip(first, last, strict=False)) if one != other), len(first))
    return first[:same]


class KeyedList(OptionList):
    """A list whose rows keep their id while their text, order and number change, and with them the selection.

    Until the person selects something, the first row is selected.
    """

    _was_used = False

    def on_key(self) -> None:
        """A key selects, or acts on what is selected."""
        self._was_used = True

    def on_click(self) -> None:
        """So does the mouse."""
        self._was_used = True

    def show(self, rows: Sequence[tuple[str, Content]]) -> None:
        """Show these rows: only texts that changed are drawn again, unless the order changed."""
        if [one.id for one in self.options] == [key for key, _ in rows]:
            for option, (key, content) in zip(self.options, rows, strict=True):
                if option.prompt != content:
                    self.replace_option_prompt(key, content)
            return
        chosen = self.chosen
        self.set_options(Option(content, id=key) for key, content in rows)
        keys = [key for key, _ in rows]
        if self._was_used and chosen in keys:
            self.highlighted = keys.index(chosen)
        elif keys:
            self.highlighted = 0

    @property
    def chosen(self) -> str | None:
        """The id of the selected row."""
        return self.highlighted_option.id if self.highlighted_option is not None else None


class BoardList(KeyedList):
    """The participants. The keys act on the selected one."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("c", "app.control('compact')", "Compact"),
        Binding("p", "app.pause_or_resume", "Pause/resume"),
        Binding("m", "app.mention", "Message"),
        Binding("n", "app.prefill('/pin')", "Pin", show=False),
        Binding("x", "app.control('shutdown')", "Shut down", show=False),
        Binding("slash", "app.filter", "Filter"),
    ]


class AttentionList(KeyedList):
    """What needs a person. The keys act on the selected item."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("a", "app.act('Approve')", "Approve"),
        Binding("r", "app.reject", "Reject"),
        Binding("w", "app.allow_always", "Allow always"),
        Binding("c", "app.act('Compact')", "Compact", show=False),
    ]
