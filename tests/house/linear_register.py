"""What `test_linear_text` cannot find out by itself: examples of calls, limits of lengths, reasons for exceptions."""

import json
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from datetime import UTC, datetime
from io import StringIO
from pathlib import PurePath
from typing import Final

from mew_board.proposal_text import argument_lines
from mew_board.view import ParticipantView
from mew_protocol import kinds
from mew_protocol.envelope import Envelope
from mew_protocol.patterns import BudgetExceeded, Steps, compile_text
from mew_protocol.payloads.participant import Board, BoardEntry, Status
from mew_settings.line_reader import LineReader
from mew_settings.setting_problems import did_you_mean
from mew_spaces.config.shared_storages import with_addresses
from mew_spaces.gateway.server_sent_events import in_words
from mew_spaces.launch.launch import substitute
from mew_spaces.parts.jetstream.jetstream import _sequences, _split
from mew_spaces.parts.webhook.webhook import chat_line

from mew_agent.agent.address_filter import AddressFilter
from mew_agent.agent.loop_guard import asks_something
from mew_agent.agent.shared_turn import divided
from mew_agent.cli.app.reported_errors import _one_line
from mew_agent.cli.app.terminal import _printable
from mew_agent.cli.board import table
from mew_agent.cli.space.templates import _valid_id
from mew_agent.compaction.checks import SummarySource, problem_of
from mew_agent.compaction.completion import completed_summary, says
from mew_agent.compaction.extract import extract
from mew_agent.compaction.language import whole_lines
from mew_agent.compaction.summary import SECTIONS, ClosingRequest, with_true_citations
from mew_agent.compaction.traces import _Stated, traces
from mew_agent.context.history import Item, Summary
from mew_agent.model.dialect import Dialect, adapted
from mew_agent.model.event_stream import Event, EventDecoder
from mew_agent.model.reply_events import ReplyAssembly
from mew_agent.parts.archive.undo_and_recall import _indented
from mew_agent.parts.demo.story import split_text
from mew_agent.parts.meter.replies import ReplyReader
from mew_agent.parts.openai_api.request import answer_in_background
from mew_agent.parts.program_control.command_line_programs import hide_secrets
from mew_agent.parts.rehearsal.summaries import _without_blocks, summarise
from mew_agent.parts.rehearsal.tool_requests import requested_calls
from mew_agent.parts.shared.relay import _readable
from mew_agent.parts.shared.responses_format import ResponseWriter
from mew_agent.parts.shared.text_answer import TextAnswer
from mew_agent.parts.simple_agents.fulfiller_policy import FulfillerPolicy
from mew_agent.parts.terminal.panels import matching
from mew_agent.parts.terminal.slash import mentioned
from mew_agent.parts.terminal.widgets import _CONSOLE, _MARKDOWN_CHARS, _Markdown
from mew_agent.tokens.projection import Calibration, StreamProjection, features
from mew_agent.tools.bounds import beginning, cut_in_the_middle
from mew_agent.tools.resources import Resource
from mew_agent.tools.sources import own_name

_IDENTIFIERS: Final = """
name names participant participants peer agent agents sender proposer recipient owner reader space session me kind kinds
method field fields level call_id proposal_id proposal_ids grant_id present still_open passing label since token tokens
giver holder valid without request_id reserved address cause batch_id lease but senders people
"""
_OF_OPERATORS_AND_CODE: Final = """
where key keys path paths patterns hosts origins networks gateways one other incomplete command args env cwd url
base_url serves table language section new_key model model_name also launched again overridden joined seen used expected
known supported default host trusted_proxies run_id mark direction labels at parts usage kept_as code problem reason _
headings hidden_steps boards margin
"""
_OF_ONE_READ: Final = "framed numbered frames _joined record headers origin addresses"

SHORT: Final = frozenset(f"{_IDENTIFIERS} {_OF_OPERATORS_AND_CODE} {_OF_ONE_READ}".split())
"""Names of parameters that hold no text of others, or one whose length is bounded before."""

_NAMESPACE: Final = ()
"""For patterns that end in constants of modules, where the test finds them."""

PATTERNS: Final[Mapping[str, Iterable[str]]] = {
    "mew_protocol.patterns._compile_plain_glob": _NAMESPACE,  # its steps are counted: tests/protocol/test_patterns.py
    "mew_protocol.patterns._compile_regex": _NAMESPACE,  # likewise
    "mew_settings.setting_problems.matching.check": (r"[A-Za-z_][A-Za-z0-9_]*", r"https?://\S+"),
    "mew_agent.agent.address_filter.AddressFilter.__init__": (r"(?<!\w)@?(?:ada|a\-da|coder)(?!\w)",),
    "mew_agent.cli.app.reported_errors.report_error": _NAMESPACE,
    "mew_agent.compaction.language": _NAMESPACE,
    "mew_agent.compaction.language._words": _NAMESPACE,
    "mew_agent.context.archive.extract_around": (r"alpha|beta|aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaab",),
    "mew_agent.parts.rehearsal.summaries._candidates": (
        r"goal|intent|request|task|asked|purpose",
        r"done|progress|so far",
    ),
    "mew_agent.parts.rehearsal.summaries._matches": (r"\b(?:must|never|may not)\b", r"\?|\b(?:next|todo|pending)\b"),
    "mew_agent.parts.rehearsal.tool_requests._mentions": (
        r"\b(?:call|use|run)\s+(?:the\s+|tool\s+)*[`'\"]?(?<![\w/])read[-_/. ]{1,2}file(?![\w/])[`'\"]?",
        r"`read[-_/. ]{1,2}file`",
    ),
    "mew_agent.tools.resources.Resource.arguments_in": (r"notes://(?P<name>[^/?#]+)/(?P<part>[^/?#]+)",),
}
"""Examples of the expressions that functions make of other texts."""

BOUNDED: Final[Mapping[str, int]] = {
    "mew_agent.parts.rehearsal.summaries._INSTRUCTION": 400,
    "mew_agent.compaction.ranking._KEY_AND_VALUE": 600,
    "mew_agent.compaction.ranking._LABEL": 600,
}
"""The characters of the longest text that a pattern is used on."""


def _item(text: str) -> Item:
    return Item(0, "user", text, 1, "id-1", "t", name="ada", envelope_id="env-1")


def _chat(text: str) -> Envelope:
    return Envelope.write(kind=kinds.CHAT, id="e-1", ts="2026-01-01T00:00:00Z", sender="ada", payload={"text": text})


def _summary(text: str) -> None:
    items = (_item(text),)
    found = extract(items)
    problem_of(f"## {SECTIONS[0]}\n{text}", SECTIONS, SummarySource(items, "", found.facts))
    completed_summary(text[:20_000], found, 2_000, len, items=items, previous=None)
    with_true_citations(text, items, None)


def _traces(text: str) -> None:
    traces([_item(text)], Summary(text[:2_000]))


def _board(text: str) -> None:
    status = Status(status=text, messages_in_context=1)
    entries = (BoardEntry(id="ada", connected=True, status=status),)
    board = Board(space="s", name=text, at="2026-01-01T00:00:00Z", participants=entries)
    table.board_lines(board, now=datetime(2026, 1, 1, tzinfo=UTC), style=table.TerminalStyle())


def _matched(text: str) -> None:
    for test in (_GLOB, _REGEX):
        with suppress(BudgetExceeded):
            test(text, Steps())


def _drawn(text: str) -> None:
    markdown = _Markdown(text[:_MARKDOWN_CHARS], is_dark=True)
    _CONSOLE.render_lines(markdown, _CONSOLE.options.update(width=80))


_TOOLS: Final = [{"function": {"name": "read_file", "parameters": {"properties": {"path": {}}, "required": ["path"]}}}]
_FILTER: Final = AddressFilter(("ada", "coder"), "rules")
_TEMPLATE: Final = Resource.from_function(lambda name, part: name + part, "notes://{name}-{part}")
_POLICY: Final = FulfillerPolicy(allow=("*/a*b",), deny=("*/*x*y",))
_GLOB, _REGEX = compile_text("*a*b"), compile_text("/a[^b]*b/")


def _proposed(text: str) -> None:
    arguments = {text: text, "old": text, "new": f"x{text}", "edits": [{"before": text, "after": "x"}, text]}
    argument_lines({"method": "tools/call", "params": {"name": text, "arguments": arguments}})


def _addresses(text: str) -> None:
    with suppress(ValueError):
        with_addresses(None, text)


EXAMPLES: Final[Mapping[str, Callable[[str], object]]] = {
    "mew_board.proposal_text._record_lines": _proposed,
    "mew_agent.cli.app.reported_errors._one_line": _one_line,
    "mew_agent.cli.app.terminal._printable": lambda text: _printable(text, StringIO()),
    "mew_agent.parts.demo.story.split_text": lambda text: split_text(PurePath("a.md"), text),
    "mew_agent.parts.archive.undo_and_recall._indented": lambda text: list(_indented(text)),
    "mew_agent.cli.space.templates._valid_id": _valid_id,
    "mew_agent.model.dialect.adapted": lambda text: adapted(
        Dialect(), 400, None, text, has_images=True, tools=("add",)
    ),
    "mew_agent.parts.simple_agents.fulfiller_policy.FulfillerPolicy.decide": lambda text: _POLICY.decide(
        [f"ada/{text}"]
    ),
    "mew_agent.parts.terminal.panels.matching": lambda text: matching(
        [ParticipantView(BoardEntry(id=text, connected=True), None)], text
    ),
    "mew_spaces.config.shared_storages.with_addresses": _addresses,
    "mew_spaces.parts.jetstream.backplane_setting._checked_server": _addresses,
    "mew_spaces.parts.jetstream.jetstream._sequences": lambda text: _sequences(text, before=9),
    "mew_spaces.parts.jetstream.jetstream._split": lambda text: list(_split(text.encode("utf-8", "replace"), 1_000)),
    "mew_spaces.launch.launch.substitute": lambda text: substitute(text, {"A": "b"}),
    "mew_spaces.parts.webhook.webhook.chat_line": chat_line,
    "mew_spaces.gateway.server_sent_events.in_words": lambda text: in_words(
        b'{"kind":"participant/compact-done","payload":{"status":"a","skipped":true,"reason":%s}}'
        % json.dumps(text).encode()
    ),
    "mew_agent.parts.terminal.slash.mentioned": lambda text: mentioned(text, ["ada", "bob"]),
    "mew_agent.parts.program_control.command_line_programs.hide_secrets": lambda text: hide_secrets(text, ["secret"]),
    "mew_agent.compaction.summary.ClosingRequest.with_ids": lambda text: ClosingRequest([_item("a")], 9).with_ids(text),
    "mew_agent.compaction.traces._Stated.__init__": _traces,
    "mew_agent.compaction.completion._names_in": lambda text: says(text, (), lambda: ()),
    "mew_agent.compaction.language.whole_lines": lambda text: whole_lines(
        "So it is. " * len(text) + "\n[...]" * len(text) + "\n" + text.replace(text[:2], "[...]\n")
    ),
    "mew_agent.compaction.completion._has_names": lambda text: says("x1", [text], lambda: ()),
    "mew_agent.compaction.traces._Stated.tells": lambda text: _Stated(text[:2_000], ()).tells(text),
    "mew_agent.parts.shared.relay._readable": lambda text: _readable(
        b"accept-encoding", text.encode("utf-8", "replace"), ("gzip",)
    ),
    "mew_agent.agent.shared_turn.divided": lambda text: divided(text, ("a-1", "a-2")),
    "mew_agent.parts.rehearsal.summaries._without_blocks": lambda text: _without_blocks(text, "\n"),
    "mew_agent.parts.rehearsal.tool_requests.requested_calls": lambda text: requested_calls(
        f"read_file {text}", _TOOLS
    ),
    "mew_agent.tools.bounds.beginning": lambda text: beginning(text, 100, lambda part: round(features(part))),
    "mew_agent.tools.bounds.cut_in_the_middle": lambda text: cut_in_the_middle(
        text, round(features(text)) + 1, 100, lambda part: round(features(part)), kept_as="r-1"
    ),
    "mew_agent.tools.sources.own_name": own_name,
    "mew_agent.tools.resources.Resource.arguments_in": lambda text: _TEMPLATE.arguments_in(f"notes://{text}"),
}
"""How to call the functions that the test finds but cannot call by itself."""

DOORS: Final[Mapping[str, Callable[[str], object]]] = {
    "a misspelt key": lambda text: did_you_mean(text, ["participants", "tokens", "correlation_id"]),
    "a chat that might be a question": lambda text: asks_something(_chat(text)),
    "a chat that might be for the agent": lambda text: _FILTER.check_rules(_chat(text)),
    "a background prompt": lambda text: answer_in_background(f"### Task: <chat_history>{text}</chat_history>{text}"),
    "a conversation to summarise": _summary,
    "a conversation that the built-in model summarises": lambda text: summarise(
        [{"role": "user", "content": text}, {"role": "user", "content": "Summarize the conversation."}], 500
    ),
    "a status on the board": _board,
    "a chat in the terminal": _drawn,
    "a text under a pattern": _matched,
}
"""Whole paths that a text of others takes through several functions."""

_TEMPLATES: Final = "is copied for users, and reads the files of their folder"
_PART: Final = "is measured as a part of another example or of a whole path"
_READER: Final = "is measured as a buffer"
_WHOLE: Final = "passes a text on or compares it, a bounded number of times"
_LIST: Final = "looks at each text of a list once"
_CHARACTER: Final = "reads one character"
_OPERATOR: Final = "reads what the operator or the code wrote"
_INSTALLER: Final = "reads what pip prints, line by line"
_ONE_READ: Final = "gets the bytes of one read, which are bounded"

EXCUSED: Final[Mapping[str, str]] = {
    "mew_board.visible._word": _PART,
    "mew_agent.participant.confirmed_delivery.ConfirmedDelivery._decide": _WHOLE,
    "mew_agent.compaction.checks._Text.__init__": _PART,
    "mew_agent.compaction.summary.with_true_citations": _PART,
    "mew_agent.compaction.extract._Facts._is_open_request": _PART,
    "mew_agent.model.dialect._streaming_otherwise": _PART,
    "mew_agent.model.dialect._messages_otherwise": _PART,
    "mew_agent.model.dialect._rejected_tool": _PART,
    "mew_agent.agent.shared_turn.cancelled_turn": _WHOLE,
    "mew_agent.cli.space.init._person": _OPERATOR,
    "mew_agent.cli.app.groups.OtherName.translated": _OPERATOR,
    "mew_agent.parts.local.install.run_shown": _INSTALLER,
    "mew_agent.parts.local.install.steps_of": _INSTALLER,
    "mew_agent.parts.local.install._prints_raw_progress": _INSTALLER,
    "mew_agent.parts.rehearsal.summaries._written": _PART,
    "mew_agent.parts.questions.receipt._find": _OPERATOR,
    "mew_agent.agent.peer_tools._within": _LIST,
    "mew_agent.agent.inbox.Inbox.senders_of": _WHOLE,
    "mew_agent.participant.receipts.ReportedReads.note_read": _LIST,
    "mew_agent.participant.stored_messages._stored_at": _OPERATOR,
    "mew_agent.participant.receipts.ReceiptSource.of": _LIST,
    "mew_agent.parts.acp.acp_agent.AcpEngine._prompt_turn": _WHOLE,
    "mew_agent.parts.acp.agent_for_editors.AcpServer._show_compaction": _WHOLE,
    "mew_agent.cli.app.reported_errors._expected_arguments": _OPERATOR,
    "mew_agent.cli.app.reported_errors._naming_options": _OPERATOR,
    "mew_agent.cli.app.groups: difflib": _OPERATOR,
    "mew_agent.parts.demo.demo_view: textwrap": _OPERATOR,
    "mew_spaces.config.lookalikes._prototype": _CHARACTER,
    "mew_agent.parts.simple_agents.fulfiller_policy: fnmatch": _PART,
    "mew_agent.parts.simple_agents.fulfiller_policy: fnmatch.fnmatchcase": _PART,
    "mew_spaces.config.lookalikes: unicodedata.normalize": "reads ids, whose length is bounded before",
    "mew_agent.cli.app.groups: difflib.get_close_matches": _OPERATOR,
    "mew_agent.cli.app.groups.LazyGroup._renamed": _OPERATOR,
    "mew_agent.parts.shared.line_io.read_lines": _LIST,
    "mew_agent.cli.app.terminal.print_lines": _LIST,
    "mew_agent.cli.board.table._join": _PART,
    "mew_agent.cli.board.table.board_lines": _OPERATOR,
    "mew_agent.cli.remote.status._print_once": _OPERATOR,
    "mew_agent.cli.remote.status._print_changes": _OPERATOR,
    "mew_agent.cli.remote.status._redraw": _OPERATOR,
    "mew_agent.parts.terminal.line_chat.enter_line": _OPERATOR,
    "mew_agent.parts.terminal.panels.matching": _OPERATOR,
    "mew_agent.parts.terminal.terminal_chat.TerminalChat._chat": _PART,
    "mew_agent.parts.mcp.bridge.run_bridge.announce": _LIST,
    "mew_agent.parts.mcp.bridge_and_serve._parse_arguments": _OPERATOR,
    "mew_agent.parts.mcp.bridge_and_serve._parse_environment": _OPERATOR,
    "mew_agent.cli.programs.shared_process.check_settings": _OPERATOR,
    "mew_agent.parts.policies.simulate._configured": _OPERATOR,
    "mew_agent.parts.policies.simulate._number": _OPERATOR,
    "mew_agent.parts.openai_api.serve_openai.read_keys": _OPERATOR,
    "mew_agent.parts.permissions.invite_and_grant._given": _OPERATOR,
    "mew_agent.cli.app.capabilities.read_capabilities": _OPERATOR,
    "mew_agent.cli.space.templates.render": _OPERATOR,
    "mew_agent.participant.unfinished.Unfinished.cancellations": _LIST,
    "mew_agent.participant.unfinished.Unfinished._chat_cancellations": _LIST,
    "mew_agent.parts.clean.clean._report": _OPERATOR,
    "mew_agent.parts.rehearsal.behaviour._plan_answer": _PART,
    "mew_agent.parts.rehearsal.summaries._listed_id": _PART,
    "mew_agent.compaction.extract._Facts._is_news": _PART,
    "mew_agent.compaction.language._words": _OPERATOR,
    "mew_agent.compaction.completion._Draft.add_note": _PART,
    "mew_agent.compaction.completion._is_outdated": _PART,
    "mew_agent.compaction.completion.says": _PART,
    "mew_agent.compaction.completion._lines_of": _PART,
    "mew_agent.cli.main._require_text": _OPERATOR,
    "mew_agent.config.agent_config._canonical": _OPERATOR,
    "mew_settings.yaml_text._keys_under": _OPERATOR,
    "mew_agent.context.history.History.request_messages": _LIST,
    "mew_agent.context.sqlite_archive.search": _PART,
    "mew_agent.context.sqlite_store.Store._read": _WHOLE,
    "mew_agent.context.sqlite_store.Store._search": _PART,
    "mew_agent.conversation.pins.ContextPins.add": _WHOLE,
    "mew_agent.conversation.pins.PinTools.pin_text": _WHOLE,
    "mew_agent.parts.meter.request_facts._chained": _LIST,
    "mew_agent.parts.meter.relayed_texts.RelayedTexts.add": "looks for a text of 20,000 characters in 128 others",
    "mew_agent.parts.meter.relayed_texts.RelayedTexts.senders_of": _WHOLE,
    "mew_agent.parts.meter.replies.ReplyReader._inflated": _READER,
    "mew_agent.parts.meter.replies.ReplyReader.feed": _READER,
    "mew_agent.model.failures._first": "uses patterns that are measured",
    "mew_agent.parts.shared.responses_format.ResponseWriter.call": _LIST,
    "mew_agent.parts.openai_api.openai_app._Response._send": _LIST,
    "mew_agent.parts.openai_api.session_choice._digest": _LIST,
    "mew_agent.parts.shared.text_answer.TextAnswer.show": _READER,
    "mew_agent.participant.discovery.Discovery.wait_for_first_answers": _LIST,
    "mew_agent.participant.dispatcher.Dispatcher.add": _LIST,
    "mew_agent.participant.peer_controls.PeerControls.pin": _WHOLE,
    "mew_agent.parts.rehearsal.responses_api._functions": _LIST,
    "mew_agent.parts.rehearsal.summaries._candidates": _PART,
    "mew_agent.parts.rehearsal.summaries._fitted": _PART,
    "mew_agent.parts.rehearsal.tool_requests._filled": _PART,
    "mew_agent.parts.rehearsal.tool_requests._value_for": _PART,
    "mew_agent.templates.coder-agent.agents.files.Folder.search_files": _TEMPLATES,
    "mew_agent.parts.templates.note-taker.agents.notes.Notes._path": _TEMPLATES,
    "mew_agent.parts.templates.note-taker.agents.notes.Notes.save_note": _TEMPLATES,
    "mew_agent.tools.resources.Resource.from_function": _OPERATOR,
    "mew_agent.tools.resources.Resources.read": _PART,
    "mew_board.text_changes: difflib": "compares at most 1,000 lines of a change, and 2,000 of a call",
    "mew_board.text_changes: difflib.SequenceMatcher": "compares at most 1,000 lines of a change, and 2,000 of a call",
    "mew_board.text_changes._groups": "compares at most 1,000 lines of a change, and 2,000 of a call",
    "mew_settings.line_reader.LineReader.feed": _READER,
    "mew_protocol.patterns._GlobAutomaton.matches": _PART,
    "mew_protocol.patterns._RegexScan.__init__": "reads patterns, which have at most 1,000 characters",
    "mew_protocol.patterns._RegexScan._character_class": "reads patterns, which have at most 1,000 characters",
    "mew_protocol.patterns._compile_plain_glob.test": _PART,
    "mew_protocol.patterns._compile_prefix.test": _PART,
    "mew_protocol.patterns._compile_regex.test": _PART,
    "mew_settings.setting_problems.matching.check": "uses patterns that are measured",
    "mew_protocol.expectations: difflib": _PART,
    "mew_protocol.expectations: difflib.get_close_matches": _PART,
    "mew_settings.plugins._entries": "reads the metadata of installed packages",
    "mew_settings.plugins._entries_of": "reads the metadata of installed packages",
    "mew_settings.plugins.entry_points": "reads the metadata of installed packages",
    "mew_settings.plugins.load_table": "reads the metadata of installed packages",
    "mew_settings.plugins._metadata_in": "reads the metadata of installed packages",
    "mew_spaces.parts.jetstream.jetstream.JetStreamBackplane.claim": _WHOLE,
    "mew_spaces.parts.jetstream.shared_records.SharedRecords.load_snapshot": _WHOLE,
    "mew_listener.websocket_connection.WebSocketConnection._receive": _ONE_READ,
    "mew_spaces.gateway.http._pieces": "yields each part once",
    "mew_spaces.gateway.log_writer.LogFile._write": "writes each part once",
    "mew_listener.tls._feed": _ONE_READ,
    "mew_spaces.launch.launch.Launch._command": _OPERATOR,
    "mew_spaces.log.sqlite._batch": "reads each record of the gateway's own file once",
}
"""Functions and imports that are not measured, and why."""

SEARCHED: Final[Mapping[str, str]] = {
    "mew_agent.cli.app.options.typer_command": _OPERATOR,
    "mew_agent.cli.programs.start_gateway._refuse_shared_folders": _OPERATOR,
    "mew_agent.compaction.traces._Stated._find": _PART,
    "mew_agent.tokens.sizes.Sizes.counts": "counts the tokens of each text once",
    "mew_spaces.gateway.log_writer.LogFile._rotate": "renames files",
    "mew_spaces.gateway.log_writer.LogWriter._write_queued": "counts the lines of each part once",
    "mew_spaces.launch.program_logs.prepare_log_folder": "renames files",
}
"""Functions with a search in a loop that are not measured, and why."""


def _bytes_fed(reader: Callable[[], Callable[[bytes], object]]) -> Callable[[list[str]], None]:
    def feed(pieces: list[str]) -> None:
        add = reader()
        for piece in pieces:
            add(piece.encode())

    return feed


def _decoded(start: bytes) -> Callable[[list[str]], None]:
    """Return a function that decodes an answer of a model server that begins so."""

    def decode(pieces: list[str]) -> None:
        decoder = EventDecoder()
        with suppress(ValueError):
            for piece in (start, *(piece.encode() for piece in pieces)):
                for _ in decoder.feed(piece):
                    pass
            for _ in decoder.end():
                pass

    return decode


def _metered(pieces: list[str]) -> None:
    reader = ReplyReader("chat")
    for piece in pieces:
        reader.feed(piece.encode())
    reader.end()


def _arguments(pieces: list[str]) -> None:
    assembly = ReplyAssembly("m")
    for piece in pieces:
        call = {"index": 0, "id": "c", "function": {"name": "f", "arguments": piece}}
        assembly.feed(Event({"choices": [{"delta": {"tool_calls": [call], "content": piece}}]}))
    assembly.reply(request_id=None, is_streamed=True)


def _answered(pieces: list[str]) -> None:
    builder = TextAnswer()
    for piece in pieces:
        builder.add_text(piece)
    builder.finish("".join(pieces))


def _projected(pieces: list[str]) -> None:
    projection = StreamProjection(0, 1_000, Calibration(1.0, 1.0))
    for piece in pieces:
        projection.add(piece)


def _responded(pieces: list[str]) -> None:
    writer = ResponseWriter("r", "m", 0)
    for piece in pieces:
        writer.write("message", piece)
    writer.end("completed")


READERS: Final[Mapping[str, Callable[[list[str]], None]]] = {
    "lines": _bytes_fed(lambda: LineReader().feed),
    "reply of a metered model": _metered,
    "events of a model server": _decoded(b"data: "),
    "whole answer of a model server": _decoded(b"{"),
    "texts and arguments of a reply": _arguments,
    "answer of an agent": _answered,
    "size of a reply": _projected,
    "response of the Responses API": _responded,
}
"""What reads texts in pieces."""

BUFFERS: Final[Mapping[str, str]] = {
    "mew_settings.line_reader._rest": "lines",
    "mew_agent.participant.answers.builder._held": "answer of an agent",
    "mew_agent.participant.answers.builder.content_end": "answer of an agent",
    "mew_agent.tokens.projection._open_text": "size of a reply",
}
"""Texts that grow in pieces, by the reader above that measures them."""

GROWING: Final[Mapping[str, str]] = {
    "mew_listener.http_connection._body": "a bytearray that is read once, at its end",
    "mew_listener.websocket_connection._later": "reading is paused, so at most one more read arrives",
    "mew_listener.tls._arrived": "a bytearray that is read once, at the end of the handshake",
    "mew_agent.parts.acp.terminals.kept": "a bytearray that nothing searches; its start is removed in blocks",
    "mew_agent.parts.terminal.feed.text": "at most MAX_WORK_CHARS",
    "mew_agent.parts.terminal.feed.thoughts": "at most MAX_WORK_CHARS",
    "mew_agent.parts.shared.relay._copy": "a bytearray that is read once, at its end",
}
"""Texts that grow in pieces and need no measurement, and why."""
