"""A participant sends an envelope again that the gateway could not store, or may have stored."""

from pathlib import Path

import pytest
from mew_spaces.config.loading import parse_space
from mew_spaces.gateway.gateway import serve_gateway
from mew_spaces.log.memory import Batch, NotStored, OutcomeUnknown
from mew_spaces.log.sqlite import SqliteLog

from mew_agent import Participant

SPACE = '{space: {id: demo}, participants: {ada: {capabilities: [{kind: "*"}]}}}'


@pytest.mark.parametrize("failure", [NotStored, OutcomeUnknown])
async def test_a_chat_counts_once_after_trouble_with_the_disk(
    tmp_path: Path, failure: type[NotStored], monkeypatch: pytest.MonkeyPatch
) -> None:
    write, failures = SqliteLog.write, [failure("disk I/O error")]

    def fail_once(log: SqliteLog, batch: Batch) -> None:
        if failures and any(b"hello" in entry.data for entry in batch.entries):
            raise failures.pop()
        write(log, batch)

    monkeypatch.setattr(SqliteLog, "write", fail_once)
    async with serve_gateway(parse_space(SPACE), state=tmp_path) as gateway:
        token = gateway.token_of("ada")
        async with Participant(gateway.ws_url, space="demo", id="ada", token=token) as ada:
            await ada.chat("hello")
        stored = [entry for entry in gateway.service.log.last(50) if b"hello" in entry.data]
    assert (len(stored), failures) == (1, [])
