"""A real gateway on NATS while somebody with NATS rights writes messages that no gateway writes.

Owns the writer, and what must hold: the gateway serves on, writes no traceback, and its members lose nothing.
"""

import json
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

import anyio
import anyio.to_thread
import nats
import nats.errors
from mew_spaces.parts.jetstream.nats_server import NatsServer
from nats.aio.msg import Msg

from mew_agent.errors import GatewayError
from mew_agent.participant.participant import Participant
from tests.faults.fuzz import OUTPUT_BYTES, FuzzListener
from tests.faults.fuzz_inputs import SPACE_ID, mutated_bytes, mutated_envelope, token_of
from tests.faults.fuzz_servers import space_yaml
from tests.faults.processes import GatewayProcess
from tests.support.waiting import PATIENCE_SECONDS, until

KINDS = ("batches", "state", "leases", "frames")


@dataclass
class BackplaneReport:
    """The figures of a run: how many messages were written by kind of subject, and chats that arrived meanwhile."""

    seed: int
    written: Counter[str] = field(default_factory=Counter)
    witnessed: int = 0

    def __str__(self) -> str:
        shown = ", ".join(f"{count:,} to {kind}" for kind, count in self.written.most_common())
        return f"seed {self.seed}: malformed messages of NATS: {shown}; {self.witnessed:,} chats of the witness arrived"


async def fuzz_backplane(seed: int, folder: Path, *, seconds: float) -> BackplaneReport:
    """Write malformed messages for so long. Raises `AssertionError` with the seed."""
    report, random = BackplaneReport(seed), Random(f"{seed} backplane")
    server = NatsServer(folder / "nats")
    await anyio.to_thread.run_sync(server.start)
    space = {**json.loads(space_yaml("http://127.0.0.1:9/")), "backplane": {"servers": [server.address]}}
    gateway = GatewayProcess(folder, json.dumps(space), name="gateway-on-nats")
    try:
        await gateway.start()
        url = f"ws://127.0.0.1:{gateway.port}"
        async with (
            FuzzListener(url) as listener,
            Participant(url, space=SPACE_ID, id="witness", token=token_of("witness")) as witness,
            await nats.connect(server.address) as client,
        ):
            seen: list[Msg] = []

            async def note(message: Msg) -> None:
                seen.append(message)

            await client.subscribe("mew.>", cb=note)
            started = anyio.current_time()
            spoken = 0
            while anyio.current_time() - started < seconds:
                spoken += 1
                with suppress(GatewayError):
                    await witness.chat(str(spoken))
                assert not gateway.has_ended, f"seed {seed}: the gateway ended:\n{gateway.output[-3000:]}"
                await until(lambda: seen)
                for _ in range(10):
                    genuine = random.choice(seen[-50:])
                    kind = random.choice(KINDS)
                    subject = f"mew.{kind}.{SPACE_ID}"
                    if random.random() < 0.5 or kind in ("state", "leases"):
                        subject = genuine.subject
                    data = mutated_bytes(genuine.data, random) if random.random() < 0.5 else mutated_envelope(random)
                    headers = dict(genuine.headers) if genuine.headers and random.random() < 0.5 else None
                    with suppress(nats.errors.Error):
                        await client.publish(subject, data + b"\xff", headers=headers)
                    report.written[subject.split(".")[1]] += 1
                await client.flush()
                del seen[:-50]
            with anyio.fail_after(PATIENCE_SECONDS):
                while str(spoken) not in listener.texts:
                    await anyio.sleep(0.01)
            said = [text for text in listener.texts if text.isdigit()]
            report.witnessed = len(said)
            assert said == [str(number) for number in range(1, spoken + 1)], f"seed {seed}: {said[-5:]} of {spoken}"
            joins = witness.session.client.joins, listener.session.client.joins
            assert joins == (1, 1), f"seed {seed}: a member had to reconnect\n{gateway.output[-3000:]}"
    finally:
        gateway.close()
        server.stop()
    output = gateway.output
    begin = max(0, output.find("Traceback") - 300)
    assert "Traceback" not in output, f"seed {seed}: traceback:\n{output[begin:][:5000]}"
    assert len(output) < OUTPUT_BYTES, f"seed {seed}: {len(output):,} bytes of output:\n{output[-3000:]}"
    return report
