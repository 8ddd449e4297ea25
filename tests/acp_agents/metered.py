"""Published agents behind `mew meter`, on the rehearsal model: `make test-meter`.

Drives each agent over ACP, so that two sources say how full it is: the agent itself, and the meter between it and its
model server. Prints what the meter took each call for, and both figures after each turn. Fails if a figure that the
meter does not call provisional is another than the agent's, or if no call of the conversation has the agent's figure.
"""

import sys
import tempfile
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import anyio
from mew_spaces.config.loading import parse_space
from mew_spaces.gateway.gateway import serve_gateway

from mew_agent import Participant
from mew_agent.parts.acp.acp_agent import AcpAgent
from mew_agent.parts.acp.profiles import profiles
from mew_agent.parts.acp.settings import AcpConfig
from mew_agent.parts.meter.main_line import MeteredCall
from mew_agent.parts.meter.meter import run_meter
from mew_agent.parts.rehearsal.model_service import serve_rehearsal
from mew_agent.parts.rehearsal.rehearsal_options import RehearsalOptions
from tests.acp_agents.__main__ import AGENTS, SECONDS, WINDOW, agents_path, check_node, install
from tests.support.waiting import until

SPACE = """
space: {id: agents}
participants:
  ada: {role: person, capabilities: [{kind: "*"}]}
  helper: {acp: {command: agent}}
  meter: {command: meter, role: agent}
"""
QUESTIONS = ("Say hello, please.", "What is a tide gauge?")
LAST_QUESTION = {
    "opencode": 'call task with {"description": "count", "prompt": "Count the files.", "subagent_type": "general"}'
}
"""Of these agents, one that starts a subagent."""


async def measure(name: str) -> bool:
    """Run one agent and print what the meter and the agent said. Returns whether they agreed."""
    calls, used = list[MeteredCall](), profiles()[name].used
    rows, agrees = list[str](), True
    figures = set[int]()
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        home, project = Path(folder), Path(folder) / "project"
        project.mkdir()
        async with (
            serve_rehearsal(RehearsalOptions(window_tokens=WINDOW)) as model,
            serve_gateway(parse_space(SPACE)) as gateway,
            anyio.create_task_group() as tasks,
        ):

            def participant(who: str) -> Participant:
                return Participant(gateway.ws_url, space="agents", id=who, token=gateway.token_of(who))

            meter, urls, ready = participant("meter"), list[str](), anyio.Event()

            def opened(url: str) -> None:
                urls.append(url)
                ready.set()

            async def run() -> None:
                await run_meter(meter, model.base_url, window=WINDOW, on_call=calls.append, ready=opened)

            tasks.start_soon(run)
            await ready.wait()
            settings = AcpConfig(
                agent=name,
                command=AGENTS[name].command[0],
                args=AGENTS[name].command[1:],
                cwd=str(project),
                env={"PATH": agents_path(), "HOME": folder, **AGENTS[name].configure(home, urls[0])},
                store=str(home / "helper.db"),
                max_restarts=0,
            )
            token = gateway.token_of("helper")
            async with (
                participant("ada") as ada,
                AcpAgent(settings, gateway.ws_url, space="agents", id="helper", token=token) as agent,
            ):

                def of_agent() -> int | None:
                    known = agent.external_context.known
                    return None if known is None else known.tokens

                def of_meter() -> int | None:
                    usage = None if meter.external_context.known is None else meter.external_context.known.usage
                    return None if usage is None else usage.prompt_tokens if used == "prompt" else usage.total_tokens

                async def compare(what: str) -> None:
                    nonlocal agrees
                    await until_settled(lambda: of_agent() is not None and of_agent() == of_meter())
                    known, own, metered = meter.external_context.known, of_agent(), of_meter()
                    basis = "unknown" if known is None else known.basis
                    word = "equal" if own == metered else "different"
                    rows.append(f"  {what}: agent {own}, meter {metered} ({basis}), {word}")
                    agrees &= own is not None and (own == metered or basis == "provisional")
                    figures.add(own or 0)

                async def ask(text: str) -> None:
                    await ada.ask("chat", {"text": text}, to="helper", answer="chat", timeout_seconds=SECONDS)

                for question in (*QUESTIONS, LAST_QUESTION.get(name, "And a harbour?")):
                    await ask(question)
                    await compare("turn")
                done = await ada.compact("helper", timeout_seconds=SECONDS)
                if done.skipped:
                    print(f"  {name}: not compacted: {done.reason}")
                await ask("And now?")
                await compare("turn after the compaction")
            tasks.cancel_scope.cancel()
    counted = Counter(call.verdict if call.reason is None else f"{call.verdict} ({call.reason})" for call in calls)
    print(f"{name}: {len(calls)} calls: {', '.join(f'{count} {what}' for what, count in counted.items())}")
    print("\n".join(rows), flush=True)
    # Claude's summary request leaves out the last answer, so that the call which made it is not continued.
    words = {"main", "provisional", "not continued"}
    of_conversation = [call.usage for call in calls if words & {call.verdict, call.reason} and call.usage]
    counts = {usage.prompt_tokens if used == "prompt" else usage.total_tokens for usage in of_conversation}
    if missing := figures - counts:
        print(f"  {name}: no call of the conversation has {sorted(missing)}", flush=True)
    return agrees and not missing


async def until_settled(condition: Callable[[], bool]) -> None:
    """Wait until both figures agree, at most some seconds: agents make calls after their answers, too."""
    with anyio.move_on_after(10):
        await until(condition, every_seconds=0.1)


async def main(names: list[str]) -> bool:
    return all([await measure(name) for name in names])


if __name__ == "__main__":
    chosen = sys.argv[1:] or list(AGENTS)
    install(chosen)
    check_node()
    sys.exit(0 if anyio.run(main, chosen) else 1)
