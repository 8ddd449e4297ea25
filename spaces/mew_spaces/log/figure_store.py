"""The context figures of a space over time, in SQLite: reported statuses and compactions.

Every row is a sent status, never an average. Keeps all statuses of the last hour, at most one per second and
participant; of older ones, the last and the fullest of each minute, and after a day of each hour, for 90 days. Keeps
summaries of compactions that agents showed to a participant. A thread stores new figures every second.
"""

import logging
import sqlite3
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from contextlib import closing
from itertools import islice
from pathlib import Path
from threading import Lock
from typing import Any, Final
from weakref import finalize

import anyio
from anyio import to_thread
from mew_listener.log_budget import survived
from mew_protocol.context_report import CallCosts, plausible
from mew_protocol.envelope import unix_seconds, wire_time
from mew_protocol.json_values import well_formed
from mew_protocol.payloads import read_or_none
from mew_protocol.payloads.context_history import (
    KEPT_SECONDS,
    ContextHistory,
    FigureSample,
    ParticipantFigures,
    RecordedCompaction,
)
from mew_protocol.payloads.participant import CompactDone, Status, basis_label, report_of
from pydantic import ValidationError

from mew_spaces.core.state import ReportedStatus

log = logging.getLogger("mew_spaces")

RAW_SECONDS: Final = 3_600
GRAINS: Final = ((60, RAW_SECONDS), (3_600, 86_400))
"""In steps of how many seconds statuses are thinned out, and after how many."""

MAX_SAMPLES: Final = 200_000
MAX_COMPACTIONS: Final = 20_000
"""How many rows a space keeps in all; the oldest leave first."""

MAX_SUMMARY_CHARS: Final = 8_000

MAX_READ_CHARS: Final = 4_000_000
"""How much text of figures, or of compactions with their summaries, one `read` returns."""

MAX_OWN_SUMMARIES: Final = 100
"""How many summaries of one participant may wait to be written."""

MAX_BATCH: Final = 2_000
"""How many participants one `write` stores; the others wait for the next."""

WRITE_SECONDS: Final = 1.0
PRUNE_SECONDS: Final = 60.0
REPEAT_SECONDS: Final = 60.0
"""After how long figures that did not change are stored again."""

_SCHEMA = """
CREATE TABLE IF NOT EXISTS samples (
  id INTEGER PRIMARY KEY, participant TEXT NOT NULL, at REAL NOT NULL, tokens INTEGER, max_tokens INTEGER,
  basis TEXT NOT NULL, level TEXT, severity INTEGER, grain INTEGER NOT NULL DEFAULT 0
);
CREATE INDEX IF NOT EXISTS samples_by_time ON samples (at);
CREATE INDEX IF NOT EXISTS samples_by_participant ON samples (participant, at);
CREATE TABLE IF NOT EXISTS compactions (
  participant TEXT NOT NULL, ended TEXT NOT NULL, at REAL NOT NULL, trigger TEXT NOT NULL, tokens_before INTEGER,
  tokens_after INTEGER, freed_tokens INTEGER, basis TEXT, spent_tokens INTEGER, amount REAL, currency TEXT,
  asked_by TEXT, summary TEXT, PRIMARY KEY (participant, ended)
);
CREATE INDEX IF NOT EXISTS compactions_by_time ON compactions (at);
"""

_THIN = """
DELETE FROM samples WHERE id IN (SELECT id FROM (
  SELECT id,
    row_number() OVER (PARTITION BY participant, CAST(at / :grain AS INTEGER) ORDER BY at DESC, id DESC) AS from_end,
    row_number() OVER (PARTITION BY participant, CAST(at / :grain AS INTEGER) ORDER BY tokens DESC, id) AS from_top
  FROM samples WHERE grain < :grain AND at < :before) WHERE from_end > 1 AND from_top > 1)
"""

_SAMPLE_COLUMNS = tuple(FigureSample.model_fields)
_COMPACTION_COLUMNS = tuple(RecordedCompaction.model_fields)


class FigureStore:
    """The figures of one space. `write` and `read` block; `read` may run in any thread, and `run` writes regularly."""

    def __init__(self, path: Path | None = None, *, clock: Callable[[], float] = time.time) -> None:
        """`path` is opened or created at first use, readable only by its owner.

        Without a path, or with an unusable file (which logs a warning), the figures end with this run.
        """
        self._clock = clock
        self._lock = Lock()
        self.waiting: dict[str, ReportedStatus] = {}
        """The newest status of each participant that has reported since it was last stored, longest waiting first.

        Set it in the thread of the event loop. A status also waits if its participant was removed meanwhile.
        """
        self._batch: list[tuple[str, ReportedStatus]] = []
        """The statuses that are being stored."""
        self._answers: dict[str, tuple[str, Mapping[str, Any]]] = {}
        self._summaries: dict[tuple[str, str], str] = {}
        self._last: dict[str, tuple[float, tuple[Any, ...]]] = {}
        self._seen: dict[str, str] = {}
        self._pruned_at = 0.0
        self._inserted = 0
        self._is_failing = False
        self._path = path
        self._opened: sqlite3.Connection | None = None
        self._stored_until: dict[str, float] = {}
        """When the newest stored status of each participant came, as of the start: gateways apply some twice."""

    @property
    def _database(self) -> sqlite3.Connection:
        if self._opened is None:
            try:
                self._opened = _open(self._path)
            except (sqlite3.Error, OSError) as error:
                log.warning("%s: cannot be used, so figures are kept in memory: %s", self._path, error)
                self._opened = _open(None)
            finalize(self, self._opened.close)  # for a space that is never closed
            # Later samples are from before the clock was set back; they must not hide newer ones.
            query = "SELECT participant, max(at) FROM samples WHERE at <= ? GROUP BY participant"
            self._stored_until = dict(self._opened.execute(query, (self._clock(),)))
        return self._opened

    @property
    def has_news(self) -> bool:
        """Whether there are figures to write."""
        return bool(self._summaries or self.waiting or self._batch)

    def observe_answer(self, participant: str, asker: str, answer: Mapping[str, Any]) -> None:
        """Keep the answer to a `participant/compact`, which names the requester."""
        self._answers[participant] = (asker, answer)

    def observe_summary(self, participant: str, shown: Mapping[str, Any]) -> None:
        """Keep the summary of a `participant/history` that shows one compaction."""
        entries, summary = shown.get("entries"), shown.get("summary")
        one = entries[0] if isinstance(entries, list) and len(entries) == 1 else None
        ended = one.get("at") if isinstance(one, Mapping) else None
        own = sum(name == participant for name, _ in list(self._summaries))
        if isinstance(ended, str) and isinstance(summary, str) and own < MAX_OWN_SUMMARIES:
            self._summaries[participant, ended[:100]] = summary[:MAX_SUMMARY_CHARS]

    async def run(self) -> None:
        """Write new figures every second, in a thread, until cancelled."""
        try:
            while True:
                await anyio.sleep(WRITE_SECONDS)
                if self.has_news:
                    self._take()
                    # A thread cannot be cancelled, and `close` below must not run while it writes.
                    with anyio.CancelScope(shield=True), survived("the storing of figures", log):
                        await to_thread.run_sync(self._write)
        finally:
            self.close()

    def write(self) -> None:
        """Store observed figures, and occasionally thin out old ones. Blocks; call it when `waiting` is set."""
        self._take()
        self._write()

    def _take(self) -> None:
        """Take the longest waiting statuses. A replaced status keeps its place, so that each gets its turn."""
        names = list(islice(self.waiting, MAX_BATCH - len(self._batch)))
        self._batch += [(name, self.waiting.pop(name)) for name in names]

    def _write(self) -> None:
        with self._lock:
            try:
                self._store(self._database, *self._rows())
                self._is_failing = False
            except (sqlite3.Error, OverflowError, UnicodeError) as error:
                if not self._is_failing:
                    log.warning("figures not stored: %s", error)
                self._is_failing = True
                for participant, _ in self._batch:  # so that the next status is stored even if it is the same
                    self._last.pop(participant, None)
                    self._seen.pop(participant, None)
            finally:
                self._batch = []

    def _rows(self) -> tuple[list[tuple[Any, ...]], list[tuple[Any, ...]]]:
        """Return the new samples and compactions in the statuses of the batch, as rows."""
        rows: list[tuple[Any, ...]] = []
        compactions: list[tuple[Any, ...]] = []
        for participant, reported in self._batch:
            at = reported.received_at.timestamp()
            try:
                status = Status.model_validate(reported.status)
            except ValidationError:
                continue
            if at <= self._stored_until.get(participant, 0.0):
                continue
            figures, known = _figures(status), self._last.get(participant)
            if known is None or known[1] != figures or at - known[0] >= REPEAT_SECONDS:
                self._last[participant] = (at, figures)
                rows.append((participant, at, *figures))
            compactions += self._compactions(participant, status, at)
        return rows, compactions

    def _compactions(self, participant: str, status: Status, at: float) -> Iterable[tuple[Any, ...]]:
        """Yield the compaction that a status reports, if it is new."""
        last = report_of(status).last_compaction
        if last is None or self._seen.get(participant) == last.at:
            return
        self._seen[participant] = last.at
        figures = (last.tokens_before, last.tokens_after, last.freed_tokens)
        cost, ended = last.cost or CallCosts(), unix_seconds(last.at)
        yield (
            participant,
            last.at[:100],
            at if ended is None else min(ended, at),
            last.trigger[:100],
            *map(plausible, figures),
            last.basis,
            plausible(cost.spent_tokens),
            cost.amount,
            (cost.currency or "")[:20] or None,
            self._asker_of(participant, figures),
            None,
        )

    def _asker_of(self, participant: str, figures: tuple[int | None, ...]) -> str | None:
        """Return the requester of the compaction with these figures; None if there is none."""
        asker, answer = self._answers.pop(participant, (None, {}))
        done = read_or_none(CompactDone, answer) if asker is not None else None
        is_asked = done is not None and (done.tokens_before, done.tokens_after, done.freed_tokens) == figures
        return asker if is_asked else None

    def _store(
        self, database: sqlite3.Connection, rows: list[tuple[Any, ...]], compactions: list[tuple[Any, ...]]
    ) -> None:
        now = self._clock()
        self._inserted += len(rows)
        with database:
            database.executemany(_insert("samples", "participant", *_SAMPLE_COLUMNS), rows)
            database.executemany(_insert("compactions", "participant", "ended", *_COMPACTION_COLUMNS), compactions)
            if now - self._pruned_at >= PRUNE_SECONDS or self._inserted >= MAX_SAMPLES // 4:
                self._pruned_at, self._inserted = now, 0
                self._prune(database, now)
        found = [self._summaries.popitem() for _ in range(len(self._summaries))]
        with database:
            database.executemany(
                "UPDATE compactions SET summary = ? WHERE participant = ? AND ended = ?",
                [(well_formed(text), *key) for key, text in found],
            )

    def _prune(self, database: sqlite3.Connection, now: float) -> None:
        # Forget participants that are silent: some never return.
        self._last = {name: known for name, known in self._last.items() if now - known[0] < RAW_SECONDS}
        self._seen = {name: at for name, at in self._seen.items() if name in self._last}
        self._answers = {name: answer for name, answer in list(self._answers.items()) if name in self._last}
        for grain, after in GRAINS:
            bounds = {"grain": grain, "before": (now - after) // grain * grain}
            database.execute(_THIN, bounds)
            database.execute("UPDATE samples SET grain = :grain WHERE grain < :grain AND at < :before", bounds)
        for table, most in (("samples", MAX_SAMPLES), ("compactions", MAX_COMPACTIONS)):
            database.execute(f"DELETE FROM {table} WHERE at < ?", (now - KEPT_SECONDS,))  # noqa: S608
            (count,) = database.execute(f"SELECT count(*) FROM {table}").fetchone()  # noqa: S608
            if count > most:
                # The participants with the most lose their oldest.
                place = "row_number() OVER (PARTITION BY participant ORDER BY at DESC)"
                oldest = (
                    f"SELECT id FROM (SELECT rowid id, at, {place} place FROM {table}) ORDER BY place DESC, at LIMIT ?"  # noqa: S608
                )
                database.execute(f"DELETE FROM {table} WHERE rowid IN ({oldest})", (count - most,))  # noqa: S608

    def read(self, space: str, *, seconds: int, limit: int, participant: str | None = None) -> ContextHistory:
        """Return the newest `limit` figures and compactions of the last `seconds`, oldest first. Blocks."""
        now = self._clock()
        with self._lock:
            samples, more_samples = self._newest("samples", _SAMPLE_COLUMNS, now - seconds, limit, participant)
            compactions, more = self._newest("compactions", _COMPACTION_COLUMNS, now - seconds, limit, participant)
        found: dict[str, tuple[list[FigureSample], list[RecordedCompaction]]] = defaultdict(lambda: ([], []))
        for row in reversed(samples):
            found[row["participant"]][0].append(FigureSample.model_validate(_known(row)))
        for row in reversed(compactions):
            found[row["participant"]][1].append(RecordedCompaction.model_validate(_known(row)))
        return ContextHistory(
            space=space,
            at=wire_time(now),
            participants=tuple(
                ParticipantFigures(id=name, samples=tuple(of_it), compactions=tuple(compacted))
                for name, (of_it, compacted) in sorted(found.items())
            ),
            more=more or more_samples,
        )

    def _newest(
        self, table: str, columns: Iterable[str], since: float, limit: int, participant: str | None
    ) -> tuple[list[sqlite3.Row], bool]:
        """Return the newest rows of a table, and whether there are more."""
        chosen = f"SELECT participant, {', '.join(columns)} FROM {table}"  # noqa: S608 - constants
        condition = "" if participant is None else " AND participant = :participant"
        query = f"{chosen} WHERE at >= :since{condition} ORDER BY at DESC LIMIT :limit"
        values = {"since": since, "limit": limit + 1, "participant": participant}
        found: list[sqlite3.Row] = []
        chars = 0
        with closing(self._database.execute(query, values)) as rows:
            for row in rows:
                chars += sum(len(value) for value in row if isinstance(value, str))
                if found and (len(found) == limit or chars > MAX_READ_CHARS):
                    return found, True
                found.append(row)
        return found, False

    def close(self) -> None:
        """Write the rest, and close the file."""
        while self.has_news:
            self.write()
        with self._lock:
            if self._opened is not None:
                self._opened.close()


def _open(path: Path | None) -> sqlite3.Connection:
    if path is not None and not path.exists():
        path.touch(mode=0o600, exist_ok=False)
    database = sqlite3.connect(path or ":memory:", check_same_thread=False)
    database.row_factory = sqlite3.Row
    try:
        database.execute("PRAGMA journal_mode = WAL")
        database.execute("PRAGMA synchronous = NORMAL")
        database.executescript(_SCHEMA)
    except sqlite3.Error:
        database.close()
        raise
    return database


def _insert(table: str, *columns: str) -> str:
    names, marks = ", ".join(columns), ", ".join("?" * len(columns))
    return f"INSERT OR IGNORE INTO {table} ({names}) VALUES ({marks})"  # noqa: S608 - constants


def _figures(status: Status) -> tuple[Any, ...]:
    """Return the stored fields of a status, in column order."""
    report = status.context
    severity = report.severity if report is not None and report.severity != "unknown" else None
    level = report.level[:100] if report is not None else None
    basis = basis_label(status.tokens, report)
    return (plausible(status.tokens), plausible(status.max_tokens), basis, level, plausible(severity))


def _known(row: sqlite3.Row) -> dict[str, Any]:
    """Return the fields of a row after its participant; without unknown values."""
    return {name: row[name] for name in row.keys()[1:] if row[name] is not None} | {"at": wire_time(row["at"])}
