"""The widgets of the terminal application: conversation, composer, participants and attention.

Own drawing and keys. `feed` and `panels` provide the contents.
"""

import re
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from io import StringIO
from itertools import takewhile
from typing import ClassVar, Final, NamedTuple

from markdown_it import MarkdownIt
from mew_board.quoting import clean
from mew_protocol.envelope import parse_time
from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.markdown import CodeBlock, Markdown
from rich.padding import Padding
from rich.segment import Segment
from rich.style import Style
from rich.syntax import Syntax
from rich.text import Text
from rich.theme import Theme
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import VerticalScroll
from textual.content import Content
from textual.events import Click, Paste
from textual.geometry import Size
from textual.message import Message
from textual.screen import ModalScreen
from textual.scroll_view import ScrollView
from textual.selection import Selection
from textual.strip import Strip
from textual.widgets import Input, OptionList, Static
from textual.widgets.option_list import Option

from mew_agent.parts.terminal.feed import MAX_ENTRIES, FeedEntry, clean_text
from mew_agent.parts.terminal.panels import Line
from mew_agent.parts.terminal.slash import completions

KEYS: Final = """\
F2 participants   F3 what needs you   F4 details
Esc message line  Ctrl-P all commands  Ctrl-Q leave
PageUp, PageDown  scroll the conversation
On a participant: Enter details, C compact, P pause or resume, M message,
  N pin, X shut down, E end what is always allowed, G group, / filter
On what needs you: A approve, R reject with a reason, W allow always,
  C compact, Enter show the participant
In the conversation: Enter, or a click, shows the thoughts and calls of work,
  and what became of a message that was read
Select text with the mouse and press Ctrl-C to copy it."""

_COLOURS: Final = {
    "calm": "$success",
    "warn": "$warning",
    "alarm": "bold $error",
    "dim": "$text-muted",
    "bold": "bold",
}


def content_of(lines: Iterable[Line]) -> Content:
    """Return styled lines as Textual content. Texts of participants are never read as markup."""
    return Content("\n").join(
        Content.assemble(*(Content.styled(text, _COLOURS.get(style, "")) for text, style in line)) for line in lines
    )


_MARKUP: Final = re.compile(r"[*_`#|~\[\]\\&]|^ *(?:[-+>]|\d+[.)]) |^ {4}|^ *[-=]+$|\n", re.MULTILINE)
"""Characters with a meaning in Markdown only; a line without any of these is plain text."""

_CONSOLE: Final = Console(
    file=StringIO(),
    force_terminal=True,
    legacy_windows=False,
    theme=Theme({"markdown.code": "bold cyan", "markdown.code_block": "none", "markdown.h2": "bold underline"}),
)
"""Breaks texts into styled lines; prints nothing."""


_MARKDOWN_CHARS: Final = 20_000
"""A longer chat is shown as it was written: the parser takes quadratic time for some texts."""

_COLOURED: Final = frozenset(
    (
        *("bash", "c", "cpp", "css", "diff", "docker", "dockerfile"),
        *("go", "json", "py", "python", "rust", "sh", "sql", "toml"),
    )
)
"""Languages with highlighting in linear time. Some of hundreds of others take cubic time."""

_SHORT_ONLY: Final = frozenset(
    (*("console", "html", "ini", "java", "javascript", "js"), *("ruby", "ts", "typescript", "xml", "yaml", "yml"))
)
_SHORT_CHARS: Final = 1_000


class _CodeBlock(CodeBlock):
    """Code without empty lines around it, to save room in a small terminal."""

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        code = str(self.text).rstrip()
        is_coloured = self.lexer_name in _COLOURED or (self.lexer_name in _SHORT_ONLY and len(code) <= _SHORT_CHARS)
        lexer = self.lexer_name if is_coloured else "text"
        yield Syntax(code, lexer, theme=self.theme, word_wrap=True, padding=(0, 1))


class _Markdown(Markdown):
    """A text of an agent. HTML and line breaks are shown as they were written, and `connection.py` is not a link."""

    elements: ClassVar = {**Markdown.elements, "fence": _CodeBlock, "code_block": _CodeBlock}

    def __init__(self, text: str, *, is_dark: bool) -> None:
        super().__init__("", code_theme="ansi_dark" if is_dark else "ansi_light", hyperlinks=False)
        self.parsed = MarkdownIt("gfm-like", {"html": False, "linkify": False}).parse(text)
        for part in (inner for one in self.parsed for inner in one.children or ()):
            if part.type == "softbreak":
                part.type = "hardbreak"


class _FeedLine(NamedTuple):
    """A line of the conversation: its entry, its place among the entry's lines, and its text."""

    key: str
    place: int
    strip: Strip


class FeedView(ScrollView, can_focus=True):
    """The conversation, newest at the bottom. Scrolls to new entries unless the reader has scrolled up.

    One widget draws all entries, because Textual lays out all widgets at every change.
    """

    BINDINGS: ClassVar[list[BindingType]] = [Binding("enter", "toggle_work", "Show/hide details")]
    COMPONENT_CLASSES: ClassVar[set[str]] = {"feed--mine", "feed--dim"}

    def __init__(self, me: str) -> None:
        super().__init__(id="feed")
        self._me = me
        self._follows = True
        self._width = 0
        self._entries: dict[str, FeedEntry] = {}
        self._opened: set[str] = set()
        """The work with displayed thoughts and calls, and the chats with a displayed history."""
        self._waiting: set[str] = set()
        """The entries that are to be drawn, again or for the first time."""
        self._strips: dict[str, list[Strip]] = {}
        self._lines: list[_FeedLine] = []

    def on_mount(self) -> None:  # Textual also calls the method of `ScrollView`
        """Redraw everything when the theme changes."""
        self.watch(self.app, "theme", lambda: self._waiting.update(self._entries), init=False)

    def watch_scroll_y(self, old_value: float, new_value: float) -> None:
        """Note whether the reader scrolled up, or back to the end."""
        super().watch_scroll_y(old_value, new_value)
        if new_value >= self.max_scroll_y:
            self._follows = True
        elif new_value < old_value:
            self._follows = False

    # -- drawing -----------------------------------------------------------------------------------------

    def show(self, entries: Iterable[FeedEntry]) -> None:
        """Add entries, or note that they changed; the next `draw` draws them."""
        for entry in entries:
            self._entries[entry.key] = entry
            self._waiting.add(entry.key)
        for key in [*self._entries][:-MAX_ENTRIES]:
            del self._entries[key]
            self._strips.pop(key, None)
            self._waiting.discard(key)

    def draw(self, seconds: float) -> None:
        """Draw changes. At the end of the conversation, draw the newest first, and the rest in the next call.

        This may take about `seconds`, because drawing a long history at once would delay the keys.
        """
        width = self.scrollable_content_region.width
        if width != self._width:
            self._width = width
            self._waiting.update(self._entries)
        if self._waiting and width > 0:
            self._draw_waiting(width, time.monotonic() + seconds)
            self._lay_out()
        if self._follows and self.scroll_y < self.max_scroll_y:
            self.scroll_end(animate=False, immediate=True)

    def _draw_waiting(self, width: int, end: float) -> None:
        """Draw the waiting entries, newest first; at the end of the conversation, stop at the time `end`."""
        options = _CONSOLE.options.update(width=width)
        for key in [one for one in reversed(self._entries) if one in self._waiting]:
            lines = _CONSOLE.render_lines(Group(*self._texts(self._entries[key])), options, pad=False)
            self._strips[key] = [Strip(line) for line in lines]
            self._waiting.discard(key)
            if self._follows and time.monotonic() > end:
                break

    def _lay_out(self) -> None:
        """Arrange the lines of all entries. For a reader who scrolled up, the top line stays in place."""
        top = self._lines[self.scroll_offset.y][:2] if self.scroll_offset.y < len(self._lines) else None
        strips = ((key, self._strips.get(key, ())) for key in self._entries)
        self._lines = [_FeedLine(key, at, one) for key, lines in strips for at, one in enumerate(lines)]
        self.virtual_size = Size(self._width, len(self._lines))
        if not self._follows:
            place = next((at for at, one in enumerate(self._lines) if one[:2] == top), None)
            self.scroll_to(y=place, animate=False)
        self.refresh()

    def _texts(self, entry: FeedEntry) -> Iterator[RenderableType]:
        match entry.kind:
            case "note":
                yield Text(clean_text(entry.text), self._dim)
                return
            case "chat":
                yield from self._chat_texts(entry)
            case _:
                yield from self._work_texts(entry)
        yield Text()

    @property
    def _dim(self) -> Style:
        return self.get_component_rich_style("feed--dim", partial=True)

    def _chat_texts(self, entry: FeedEntry) -> Iterator[RenderableType]:
        to = f" to {', '.join(clean(one) for one in entry.to)}" if entry.to else ""
        at = parse_time(entry.at)
        mine = self.get_component_rich_style("feed--mine", partial=True)
        sender = Style(bold=True) + (mine if entry.sender == self._me else Style())
        moment = f"  {at.astimezone():%H:%M}" if at is not None else ""
        urgent = [("  urgent", Style(bold=True))] if entry.is_urgent else []
        yield Text.assemble((clean(entry.sender), sender), (to + moment, self._dim), *urgent)
        text = clean_text(entry.text)
        is_markdown = len(text) <= _MARKDOWN_CHARS and _MARKUP.search(text) is not None
        body = _Markdown(text, is_dark=self.app.current_theme.dark) if is_markdown else Text(text)
        yield Padding(body, (0, 0, 0, 2))  # no line of a text may look like a sender's name
        if entry.marks:
            is_open = entry.key in self._opened
            shown = "\n".join((entry.story or ("asking ...",)) if is_open else entry.marks.values())
            yield Padding(Text(shown, self._dim), (0, 0, 0, 4))

    def _work_texts(self, entry: FeedEntry) -> Iterator[RenderableType]:
        is_open = entry.key in self._opened
        yield Text(f"{'▼' if is_open else '▶'} {entry.summary}", self._dim)
        if is_open:
            yield Padding(Text(entry.details or "no thoughts or calls were shared", self._dim), (0, 0, 0, 2))
        if entry.text:
            yield Padding(Text(clean_text(entry.text), self._dim), (0, 0, 0, 2))

    def render_line(self, y: int) -> Strip:
        """Return the line in row `y` of the screen, with its selected part marked."""
        at, style = self.scroll_offset.y + y, self.rich_style
        if at >= len(self._lines):
            return Strip.blank(self.size.width, style)
        strip = self._lines[at].strip
        span = self.text_selection.get_span(at) if self.text_selection is not None else None
        if span is not None:
            start = cell_len(strip.text[: span[0]])
            end = strip.cell_length if span[1] == -1 else cell_len(strip.text[: span[1]])
            mark = self.screen.get_component_rich_style("screen--selection")
            marked = Strip(Segment.apply_style(strip.crop(start, end), post_style=mark))
            strip = Strip.join([strip.crop(0, start), marked, strip.crop(end)])
        return strip.apply_style(style).extend_cell_length(self.size.width, style).apply_offsets(0, at)

    # -- reading -----------------------------------------------------------------------------------------

    @property
    def allow_select(self) -> bool:
        """The mouse selects text."""
        return True

    def get_selection(self, selection: Selection) -> tuple[str, str]:
        """Return the selected text, and the text after it."""
        return selection.extract("".join(f"{one.strip.text.rstrip()}\n" for one in self._lines)), "\n"

    def selection_updated(self, selection: Selection | None) -> None:
        """Draw the selection."""
        self.refresh()

    def on_click(self, event: Click) -> None:
        """Show or hide the calls of the clicked work or the story of the clicked chat."""
        at = self.scroll_offset.y + event.y
        if at < len(self._lines) and self._lines[at].place == 0 and self.text_selection is None:
            self._toggle({self._lines[at].key})

    def action_toggle_work(self) -> None:
        """Show the calls of work and the stories of chats on the screen, or hide them if all are shown."""
        top = self.scroll_offset.y
        seen = {one.key for one in self._lines[top : top + self.size.height] if self._entries[one.key].opens}
        self._toggle(seen - self._opened or seen)

    def _toggle(self, keys: set[str]) -> None:
        self._opened ^= keys
        self._waiting |= keys
        for key in keys & self._opened:
            if (entry := self._entries[key]).kind == "chat":
                self.post_message(self.StoryWanted(entry))

    class StoryWanted(Message):
        """A request of the person to show the receipts of a chat."""

        def __init__(self, entry: FeedEntry) -> None:
            super().__init__()
            self.entry = entry


LINE_BREAK: Final = "⏎"
"""A line break of a pasted text, in the input line."""


class Composer(Input):
    """The input line. Tab completes commands and names; the arrow keys recall earlier lines."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("up", "recall(-1)", "Older", show=False),
        Binding("down", "recall(1)", "Newer", show=False),
        Binding("tab", "complete", "Complete", show=False),
    ]

    def __init__(self, names: Callable[[], Sequence[str]]) -> None:
        super().__init__(placeholder="Message, @name message, or /help", select_on_focus=False, id="composer")
        self._names = names
        self._sent: list[str] = []
        self._place = 0
        self._draft = ""

    def on_paste(self, event: Paste) -> None:
        """Insert all lines of a pasted text; Textual would drop all but the first."""
        event.prevent_default()
        event.stop()
        self.replace(LINE_BREAK.join(event.text.strip("\r\n").splitlines()), *self.selection)

    async def action_submit(self) -> None:
        """Send the line, keep it for the arrow keys, and start the next one."""
        line, self.value = self.value, ""
        if line.strip() and self._sent[-1:] != [line]:
            self._sent.append(line)
        self._place, self._draft = len(self._sent), ""
        self.post_message(self.Sent(line.replace(LINE_BREAK, "\n")))

    def fill(self, text: str) -> None:
        """Insert a text for the person to complete."""
        self.value = text
        self.cursor_position = len(text)
        self.focus()

    def action_recall(self, step: int) -> None:
        """Show the line sent before (-1) or after (1) the shown one."""
        if self._place == len(self._sent):
            self._draft = self.value
        self._place = min(len(self._sent), max(0, self._place + step))
        self.fill(self._sent[self._place] if self._place < len(self._sent) else self._draft)

    def action_complete(self) -> None:
        """Complete the last word as far as all candidates agree; without candidates, focus the next widget."""
        if not self.value:
            self.screen.focus_next()
            return
        found = completions(self.value, self._names())
        if len(found) == 1:
            self.fill(found[0] + " ")
        elif found:
            same = takewhile(lambda letters: len(set(letters)) == 1, zip(*found, strict=False))
            self.fill("".join(letters[0] for letters in same))
            self.post_message(self.Candidates([one.split()[-1] for one in found]))

    class Sent(Message):
        """The person sent a line."""

        def __init__(self, line: str) -> None:
            super().__init__()
            self.line = line

    class Candidates(Message):
        """Several completions match."""

        def __init__(self, candidates: list[str]) -> None:
            super().__init__()
            self.candidates = candidates


_HEADING: Final = "# "
"""The beginning of the key of a heading; no participant's id has a space."""


def heading_row(title: str) -> tuple[str, Content]:
    """Return a heading as a row of a list that cannot be selected."""
    return f"{_HEADING}{title}", Content.styled(title, "bold")


class KeyedList(OptionList):
    """A list of rows with ids. The selection follows the id when texts, order or number change.

    Until the person selects something, the first row is selected.
    """

    _was_used = False

    def on_key(self) -> None:
        """Note that the person uses the list."""
        self._was_used = True

    on_click = on_key  # the same for the mouse

    def show(self, rows: Sequence[tuple[str, Content]]) -> None:
        """Show these rows. Redraw only changed texts, unless the order changed."""
        if [one.id for one in self.options] == [key for key, _ in rows]:
            self._replace_texts(rows)
            return
        chosen, top = self.chosen, self.scroll_y
        self.set_options(Option(content, id=key, disabled=key.startswith(_HEADING)) for key, content in rows)
        self.highlighted = next((at for at, one in enumerate(self.options) if not one.disabled), None)
        if self._was_used:
            self.choose(chosen)
        # The list does not scroll when its order changes, but the keys follow the selection.
        self.scroll_to(y=top, animate=False, immediate=True)
        if self.has_focus:
            self.scroll_to_highlight()

    def _replace_texts(self, rows: Sequence[tuple[str, Content]]) -> None:
        for option, (key, content) in zip(self.options, rows, strict=True):
            if option.prompt != content:
                self.replace_option_prompt(key, content)

    def choose(self, key: str | None) -> None:
        """Select a row, if it exists."""
        keys = [one.id for one in self.options]
        if key in keys:
            self._was_used = True
            self.highlighted = keys.index(key)

    @property
    def chosen(self) -> str | None:
        """The id of the selected row."""
        return self.highlighted_option.id if self.highlighted_option is not None else None


class BoardList(KeyedList):
    """The participants. The keys act on the selected one."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("c", "app.control('compact')", "Compact"),
        Binding("p", "app.pause_or_resume", "Pause/resume"),
        Binding("m", "app.prefill('@')", "Message"),
        Binding("n", "app.prefill('/pin ')", "Pin", show=False),
        Binding("x", "app.control('shutdown')", "Shut down", show=False),
        Binding("e", "app.end_allowed", "End always allowed", show=False),
        Binding("g", "app.group", "Group", show=False),
        Binding("slash", "app.filter", "Filter"),
    ]


class AttentionList(KeyedList):
    """The attention items. The keys act on the selected one."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("a", "app.act('Approve')", "Approve"),
        Binding("r", "app.reject", "Reject"),
        Binding("w", "app.act('Always allow')", "Always allow"),
        Binding("c", "app.act('Compact')", "Compact", show=False),
    ]


class TextScreen(ModalScreen[object]):
    """A text over the application, closed by a key."""

    CSS = """
    TextScreen { align: center middle; }
    #help { width: 84; max-width: 100%; height: auto; max-height: 100%; border: round $accent; }
    #help { scrollbar-size-vertical: 1; }
    """

    def __init__(self, text: str) -> None:
        super().__init__()
        self._text = text

    def compose(self) -> ComposeResult:
        with VerticalScroll(id="help"):
            yield Static(Content(self._text))


class HelpScreen(TextScreen):
    """A text that any of these keys closes."""

    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape,enter,f1,q", "dismiss", "Close")]


class ConfirmScreen(TextScreen):
    """A text to confirm; the result is true if the person confirmed. Accepts only after all lines were shown."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("y", "confirm", "Yes"),
        Binding("escape,n", "dismiss(False)", "No"),
    ]

    def action_confirm(self) -> None:
        """Confirm the text if its end is shown; otherwise show its next page."""
        scroll = self.query_one("#help", VerticalScroll)
        if not scroll.size.height:
            return  # nothing is shown yet
        if scroll.scroll_offset.y < scroll.max_scroll_y:
            scroll.scroll_page_down(animate=False)
        else:
            self.dismiss(result=True)
