"""The terminal application of a space: `mew`, `mew connect` and `mew status --watch` at a terminal.

Owns the layout, the keys and the redraws. `joined_space` follows the space.
"""

from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from datetime import datetime
from typing import ClassVar, Final, Literal

from mew_board import words
from mew_board.board_json import Grouping
from mew_board.grouping import GROUPINGS, grouped
from mew_board.proposal_text import argument_lines, call_text
from mew_board.quoting import clean
from mew_board.shared_words import GROUPING_WORDS
from mew_board.view import ParticipantView, views_of
from mew_board.visible import visible
from mew_protocol.envelope import Envelope
from mew_protocol.payloads.attention_items import AttentionAction, AttentionItem
from textual import on, work
from textual.app import App, ComposeResult, SystemCommand
from textual.binding import Binding, BindingType
from textual.containers import Horizontal, Vertical, VerticalScroll
from textual.content import Content
from textual.css.query import NoMatches
from textual.screen import Screen
from textual.widgets import Footer, Input, OptionList, Static

from mew_agent.cli.board.needs import single_items
from mew_agent.cli.board.table import TerminalStyle
from mew_agent.cli.remote.identity import Identity
from mew_agent.parts.terminal.feed import FeedEntry
from mew_agent.parts.terminal.joined_space import JoinedSpace
from mew_agent.parts.terminal.panels import (
    COMPACT_ABOVE,
    Line,
    ParticipantDetails,
    attention_line,
    details,
    glance,
    matching,
    row,
)
from mew_agent.parts.terminal.slash import HELP
from mew_agent.parts.terminal.widgets import (
    KEYS,
    AttentionList,
    BoardList,
    Composer,
    ConfirmScreen,
    FeedView,
    HelpScreen,
    content_of,
    heading_row,
)
from mew_agent.program import run_until_signal

FRAME_SECONDS: Final = 0.05
"""Changes that arrive within this time are drawn together."""

DRAWING_SECONDS: Final = 0.02
"""How long the conversation is drawn in one frame."""

AGE_SECONDS: Final = 1.0
FIGURES_SECONDS: Final = 10.0

Focus = Literal["conversation", "board"]


def open_space(
    who: Identity, targets: tuple[str, ...] = (), *, start_on: Focus = "conversation", bell: bool = False
) -> None:
    """Run the application until the person leaves. Raises the error that ended the connection."""
    app = SpaceApp(who, targets, start_on=start_on, bell=bell)
    run_until_signal(app.run_async)
    if app.failure is not None:
        raise app.failure


class SpaceApp(App[None]):
    """A space at full screen: participants on the left, conversation in the middle, details on the right."""

    TITLE = "mew"
    HORIZONTAL_BREAKPOINTS = [  # noqa: RUF012 - as Textual declares it
        (0, "-narrow"),
        (64, "-normal"),
        (120, "-wide"),
        (160, "-widest"),
    ]
    CSS = """
    #heading { height: 1; background: $panel; padding: 0 1; }
    #glance { height: 1; padding: 0 1; color: $text-muted; display: none; }
    #attention { height: auto; max-height: 5; border: none; padding: 0; background: $surface; }
    #board-pane { width: 38; border-right: solid $panel; }
    #board { border: none; padding: 0; background: transparent; height: 1fr; }
    #filter { display: none; border: none; height: 1; padding: 0 1; }
    #talk { width: 1fr; }
    #feed { height: 1fr; padding: 0 1; overflow-x: hidden; scrollbar-gutter: stable; scrollbar-size-vertical: 1; }
    #hint { height: auto; max-height: 2; padding: 0 1; color: $text-muted; display: none; }
    #composer { border: tall $panel; height: 3; }
    #composer:focus { border: tall $accent; }
    #details-pane { width: 42; border-left: solid $panel; padding: 0 1; display: none; }
    .feed--mine { color: $accent; }
    .feed--dim { color: $text-muted; }
    .-narrow #board-pane { display: none; width: 1fr; border: none; }
    .-narrow .show-board #board-pane { display: block; }
    .-narrow .show-board #talk { display: none; }
    .show-details #details-pane { display: block; width: 1fr; }
    .show-details #talk { display: none; }
    .-normal #details-pane { border: none; }
    .-narrow #details-pane { border: none; }
    .-wide #details-pane, .-wide .show-details #details-pane { display: block; width: 42; }
    .-wide .show-details #talk { display: block; }
    .-widest #details-pane, .-widest .show-details #details-pane { display: block; width: 60; }
    .-widest .show-details #talk { display: block; }
    .-widest #board-pane { width: 50; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("f1", "keys", "Keys"),
        Binding("f2", "show_board", "Participants"),
        Binding("f3", "show_attention", "Needs you"),
        Binding("f4", "show_details", "Details"),
        Binding("escape", "compose", "Message", show=False),
        Binding("pageup", "scroll_feed('page_up')", "Scroll up", show=False),
        Binding("pagedown", "scroll_feed('page_down')", "Scroll down", show=False),
        Binding("ctrl+z", "suspend_process", "Suspend", show=False),
        Binding("ctrl+q", "quit", "Leave"),
    ]

    def __init__(
        self,
        who: Identity,
        targets: tuple[str, ...] = (),
        *,
        start_on: Focus = "conversation",
        bell: bool = False,
        now: Callable[[], datetime] | None = None,
        joined: type[JoinedSpace] = JoinedSpace,
    ) -> None:
        """`now` is the clock for ages (default: the gateway's); `joined` is the class of the connection."""
        super().__init__()
        self.view = joined(who, targets, self._changed)
        self.failure: Exception | None = None
        """The error that ended the connection."""
        self._start_on, self._bell = start_on, bell
        self._now = now or (lambda: self.view.clock())
        self._rung: set[str] = set()
        """The items that the bell has rung for."""
        self._style = TerminalStyle()
        self._pending: dict[str, FeedEntry] = {}
        self._is_stale = False
        self._details: list[Line] = []
        self._filter = ""
        self._by: Grouping | None = None
        self._rows: dict[str, tuple[object, Content]] = {}
        """The drawn data of each participant's row, and the row."""

    # -- layout ------------------------------------------------------------------------------------------

    def compose(self) -> ComposeResult:
        """Yield the panes."""
        yield Static(id="heading")
        yield Static(id="glance")
        yield AttentionList(id="attention")
        with Horizontal(id="panes"):
            with Vertical(id="board-pane"):
                yield Input(placeholder="filter", id="filter")
                yield BoardList(id="board")
            with Vertical(id="talk"):
                yield FeedView(self.view.who.participant)
                yield Static(id="hint")
                yield Composer(lambda: self.view.names)
            with VerticalScroll(id="details-pane"):
                yield Static(id="details")
        yield Footer()

    def on_mount(self) -> None:
        """Join, and draw changes."""
        self.query_one("#attention").display = False
        self.app_resume_signal.subscribe(self, lambda _: self.screen.refresh(layout=True))  # after Ctrl-Z and `fg`
        self.query_one("#board" if self._start_on == "board" else "#composer").focus()
        self.run_worker(self._take_part(), exit_on_error=False)
        self.set_interval(FRAME_SECONDS, self._draw_changes)
        self.set_interval(AGE_SECONDS, self._mark_stale)
        self.set_interval(FIGURES_SECONDS, self._load_figures)
        self._mark_stale()

    async def _take_part(self) -> None:
        try:
            await self.view.run()
        except Exception as error:  # the command prints it when the screen is back
            self.failure = error
        self.exit()

    # -- drawing -----------------------------------------------------------------------------------------

    def _changed(self, entries: Sequence[FeedEntry]) -> None:
        self._is_stale = True
        self._pending.update({one.key: one for one in entries})

    def _mark_stale(self) -> None:
        self.view.read_run_file()
        self._is_stale = True
        self._load_prefix()

    # As workers, because an answer over a slow link must not block the keys.

    @work(group="figures")
    async def _load_figures(self) -> None:
        await self.view.load_figures()

    def _draw_changes(self) -> None:
        with suppress(NoMatches):  # the screen is closing, and its widgets disappear one by one
            feed = self.query_one(FeedView)
            feed.show(self._pending.values())
            self._pending.clear()
            feed.draw(DRAWING_SECONDS)
            if self._is_stale:
                self._is_stale = False
                self._draw_panels()

    def _draw_panels(self) -> None:
        view, now = self.view, self._now()
        if view.board is None:
            self.query_one("#heading", Static).update(Content(f"joining '{view.who.space}' ..."))
            return
        items = view.attention(now)
        self._draw_attention(items, now)
        listed = views_of(view.board, now=now, agents=view.agents, people=view.people, ended=view.ended, items=items)
        self._draw_glance(listed)
        self._draw_board(listed)
        self._draw_details()

    def _draw_attention(self, items: Sequence[AttentionItem], now: datetime) -> None:
        urgent = {one.id for one in items if one.level != "notice"}
        if self._bell and not urgent <= self._rung:
            self.bell()
        self._rung = urgent
        self._draw_heading(len(urgent))
        queue = self.query_one(AttentionList)
        queue.show([(one.id, content_of([attention_line(one, now, self.size.width - 2)])) for one in items])
        queue.display = bool(items)

    def _draw_board(self, listed: Sequence[ParticipantView]) -> None:
        pane = self.query_one(BoardList)
        found = matching(listed, self._filter)
        width, is_tall = max(24, (pane.size.width or 37) - 2), len(found) <= COMPACT_ABOVE

        def rows(members: Iterable[ParticipantView]) -> list[tuple[str, Content]]:
            return [(one.entry.id, self._row(one, width, is_tall)) for one in members]

        if self._by is None:
            pane.show(rows(found))
        else:
            groups = [(one.title, rows(matching(one.rows, self._filter))) for one in grouped(listed, self._by)]
            pane.show([row for title, own in groups if own for row in (heading_row(words.clip(title, width)), *own)])

    def _draw_glance(self, listed: Sequence[ParticipantView]) -> None:
        line, widget = glance(listed, self.size.width - 2, self._style), self.query_one("#glance", Static)
        widget.display = line is not None
        if line is not None:
            widget.update(content_of([line]), layout=False)

    def _row(self, view: ParticipantView, width: int, is_tall: bool) -> Content:
        """Return a row of the board, redrawn only after a change, because only few of many rows change at a time."""
        name, about = view.entry.id, (view.entry, view.items, width, is_tall, view.old, view.reason)
        known = self._rows.get(name)
        if known is None or known[0] != about:
            known = (about, content_of(row(view, width=width, is_tall=is_tall, style=self._style)))
            self._rows[name] = known
        return known[1]

    def _draw_heading(self, waiting: int) -> None:
        view = self.view
        assert view.board is not None
        here = sum(one.connected for one in view.board.participants)
        state, style = f"you are {view.who.participant}", ""
        if not view.is_joined:
            state, style = "connection lost; reconnecting, then sending what you type", "bold $error"
        if view.catching_up is not None:
            state, style = f"catching up, {words.count_of(view.catching_up, 'envelope')} so far", ""
        needs = f" · {waiting} need{'s' if waiting == 1 else ''} you" if waiting else ""
        self.query_one("#heading", Static).update(
            Content.assemble(
                (clean(view.board.space), "bold"), f" · {here} here · ", (state, style), (needs, "bold $warning")
            ),
            layout=False,
        )

    @on(OptionList.OptionHighlighted, "#board")
    def _draw_details(self) -> None:
        with suppress(NoMatches):  # as above
            entry, pane = self.view.entry(self.query_one(BoardList).chosen), self.query_one("#details-pane")
            if entry is None or not pane.display:
                return
            peer = self.view.me.peers.get(entry.id)
            about = ParticipantDetails(
                entry,
                self.view.figures.get(entry.id),
                tools=tuple(one.name for one in peer.tools or ()) if peer is not None else (),
                prefix=self.view.prefixes.get(entry.id, ()),
                ended=self.view.ended.get(entry.id),
                proposals=tuple(one for one in self.view.chat.proposals.values() if one.sender == entry.id),
                allowed=self.view.allowed_calls(entry.id),
            )
            width = max(20, pane.size.width - 3)
            lines = details(about, now=self._now(), width=width, style=self._style)
            if lines != self._details:
                # A new layout of all widgets costs far more than drawing one.
                has_other_size, self._details = len(lines) != len(self._details), lines
                self.query_one("#details", Static).update(content_of(lines), layout=has_other_size)

    @work(group="prefix")
    async def _load_prefix(self) -> None:
        """Read the parts of the selected agent's prefix, once after each of its calls."""
        with suppress(NoMatches):
            entry = self.view.entry(self.query_one(BoardList).chosen)
            report = entry.status.context if entry is not None and entry.status is not None else None
            if entry is not None and report is not None and entry.connected and self.query_one("#details-pane").display:
                await self.view.load_prefix(entry.id, report.call_id)

    # -- typing ------------------------------------------------------------------------------------------

    @on(Composer.Sent)
    def submit(self, event: Composer.Sent) -> None:
        """Run a typed line."""
        self._hint("")
        self._enter(event.line)

    @work
    async def _enter(self, line: str) -> None:
        if await self.view.enter(line):
            self.exit()

    @on(Composer.Candidates)
    def show_candidates(self, event: Composer.Candidates) -> None:
        """Show completions of the last word."""
        self._hint("  ".join(event.candidates[:20]))

    @on(FeedView.StoryWanted)
    def show_story(self, event: FeedView.StoryWanted) -> None:
        """Ask for the receipts of a chat."""
        self._load_story(event.entry)

    @work
    async def _load_story(self, entry: FeedEntry) -> None:
        await self.view.load_story(entry)

    def _hint(self, text: str) -> None:
        hint = self.query_one("#hint", Static)
        hint.update(Content(text))
        hint.display = bool(text)

    @on(Input.Changed, "#filter")
    def filter_changed(self, event: Input.Changed) -> None:
        """List only matching participants."""
        self._filter = event.value.strip()
        self._is_stale = True

    @on(Input.Submitted, "#filter")
    def filter_entered(self) -> None:
        """Return to the list."""
        if not self._filter:
            self._clear_filter()
        self.query_one(BoardList).focus()

    # -- actions -----------------------------------------------------------------------------------------

    @on(OptionList.OptionSelected, "#attention")
    def item_selected(self) -> None:
        """Select the participant of an item, or the first of several."""
        item = self._item()
        if item is not None:
            self._clear_filter()
            self._draw_panels()
            self.query_one(BoardList).choose(next((one.participant for one in single_items([item])), None))
            self.action_show_board()

    def action_keys(self) -> None:
        """Show the keys and the slash commands."""
        self.push_screen(HelpScreen(f"{KEYS}\n\n{HELP}"))

    def action_show_board(self) -> None:
        """Switch between the participants and the message line."""
        panes, board = self.query_one("#panes"), self.query_one(BoardList)
        if board.has_focus:
            self.action_compose()
            return
        panes.add_class("show-board")
        panes.remove_class("show-details")
        board.focus()

    def action_show_attention(self) -> None:
        """Go to the attention items."""
        queue = self.query_one(AttentionList)
        if queue.display:
            queue.focus()
        else:
            self.notify("Nothing needs you.", timeout=2)

    def action_show_details(self) -> None:
        """Open or close the details of the selected participant."""
        if self.query_one("#panes").has_class("show-details"):
            self.action_compose()
        else:
            self._open_details()

    @on(OptionList.OptionSelected, "#board")
    def _open_details(self) -> None:
        panes = self.query_one("#panes")
        panes.remove_class("show-board")
        panes.add_class("show-details")
        self.query_one("#details-pane" if self.screen.has_class("-narrow") else "#board").focus()
        self.call_after_refresh(self._draw_details)

    def action_scroll_feed(self, way: Literal["page_up", "page_down"]) -> None:
        """Scroll the conversation while the message line has the focus."""
        feed = self.query_one(FeedView)
        (feed.action_page_up if way == "page_up" else feed.action_page_down)()

    def action_compose(self) -> None:
        """Return to the message line. From the filter, list all participants again and return to the list."""
        field = self.query_one("#filter", Input)
        if field.has_focus:
            self._clear_filter()
            self.query_one(BoardList).focus()
            return
        panes = self.query_one("#panes")
        panes.remove_class("show-board")
        panes.remove_class("show-details")
        self.query_one(Composer).focus()

    def action_group(self) -> None:
        """Group the participants by role, model or state, or ungroup them."""
        choices = (None, *GROUPINGS)
        self._by = choices[(choices.index(self._by) + 1) % len(choices)]
        self.notify(GROUPING_WORDS[self._by or "none"], timeout=2)
        self._is_stale = True

    def action_filter(self) -> None:
        """Start typing a filter."""
        field = self.query_one("#filter", Input)
        field.display = True
        field.focus()

    def _clear_filter(self) -> None:
        field = self.query_one("#filter", Input)
        field.value, field.display, self._filter = "", False, ""

    def action_control(self, command: str) -> None:
        """Send a control to the selected participant."""
        name = self.query_one(BoardList).chosen
        if name is not None:
            self._enter(f"/{command} {name}")

    def action_pause_or_resume(self) -> None:
        """Pause the selected participant, or resume it."""
        entry = self.view.entry(self.query_one(BoardList).chosen)
        if entry is not None:
            is_paused = ParticipantView(entry, None).is_paused
            self.action_control("resume" if is_paused else "pause")

    def action_prefill(self, start: str) -> None:
        """Begin a message to the selected participant, or a command about it."""
        name = self.query_one(BoardList).chosen
        if name is not None:
            self._prefill(f"{start}{name} ")

    def _prefill(self, text: str) -> None:
        self.action_compose()
        self.query_one(Composer).fill(text)

    def _item(self) -> AttentionItem | None:
        chosen = self.query_one(AttentionList).chosen
        return next((one for one in self.view.attention(self._now()) if one.id == chosen), None)

    @work
    async def action_act(self, label: str) -> None:
        """Run the selected item's action whose label begins like this.

        Shows the whole proposal, or the meaning of the action, before it is confirmed.
        """
        item = self._item()
        action = _action_of(item, label)
        if item is None or action is None:
            self.notify(f"This item has nothing to {label.lower()}.", timeout=2)
            return
        proposal = self.view.proposal_of(item)
        if proposal is not None and not await self._confirmed(action, proposal):
            return
        approve = next(one for one in item.actions if one.envelope is not None)
        if await self.view.act(action) and action.confirm is not None:
            await self.view.act(approve)

    async def _confirmed(self, action: AttentionAction, proposal: Envelope) -> bool:
        """Show a whole proposal and the meaning of an action; return True if the person confirms."""
        what = f"{visible(proposal.sender)} proposes {call_text(proposal)}:"
        means = [action.confirm, ""] if action.confirm is not None else []
        shown = [what, "", *argument_lines(proposal.body), "", *means, f"Y {action.label.lower()}   Esc back"]
        return await self.push_screen_wait(ConfirmScreen("\n".join(shown))) is True

    @work
    async def action_end_allowed(self) -> None:
        """Revoke the selected participant's calls without approval."""
        name = self.query_one(BoardList).chosen
        if name is None or not await self.view.end_allowed_calls(name):
            self.notify("Nothing is always allowed here.", timeout=2)

    def action_reject(self) -> None:
        """Begin to reject the selected proposal, so that a reason can be given."""
        item = self._item()
        number = self.view.number_of(item) if item is not None else None
        if number is not None:
            self._prefill(f"/reject {number} ")

    def get_system_commands(self, screen: Screen[object]) -> Iterable[SystemCommand]:
        """Yield the palette: harmless controls of each participant, and Textual's own commands."""
        yield from super().get_system_commands(screen)
        for name in self.view.names:
            for command in ("compact", "pause", "resume"):  # commands that delete a history must be typed in full
                yield SystemCommand(
                    f"{command.capitalize()} {name}",
                    f"Send /{command} {name}",
                    lambda line=f"/{command} {name}": self._enter(line),
                )


def _action_of(item: AttentionItem | None, label: str) -> AttentionAction | None:
    """Return the action of an item whose label begins like this."""
    actions = item.actions if item is not None else ()
    return next((one for one in actions if one.label.startswith(label)), None)
