"""Several agents in one process, as their supervisor sees it: who shares one, and what the end of one means."""

import os
import signal
import sys
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from mew_settings.participant_types import ProgramStart
from mew_spaces.launch.launch import Program
from mew_spaces.launch.processes import RUN_VARIABLE
from mew_spaces.launch.program_logs import log_path
from mew_spaces.launch.run_file import Exit

from tests.support.supervised import RUN_ID, House

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="process groups are a POSIX matter")

HOST = """
import json, os, sys, time

def note(**values):
    print(json.dumps(values), flush=True)

for line in sys.stdin:
    order = json.loads(line)
    name, own = order["name"], order["variables"]
    if order["action"] == "start":
        with open(order["log"], "a") as log:
            log.write(f"{name} has {own.get('MEW_TOKEN')} and {os.environ.get('COLOUR')}\\n")
        print("this is no note", flush=True)
        note(name=name, line="started")
        if own["MEW_TOKEN"] == "poison":
            os._exit(3)
        if own["MEW_TOKEN"].startswith("ends"):
            note(name=name, code=int(own["MEW_TOKEN"][4:]))
    elif name != "deaf":
        note(name=name, code=0)
"""


def agent(
    name: str, folder: Path, token: str = "", *, host: tuple[str, ...] = (sys.executable, "-c", HOST), **more: Any
) -> Program:
    environment = {**os.environ, RUN_VARIABLE: RUN_ID, "MEW_TOKEN": token, **more.pop("environment", {})}
    return Program(
        name,
        ("false",),
        folder,
        environment,
        start=ProgramStart(("false",), host=host),
        own_variables=frozenset({"MEW_TOKEN"}),
        **more,
    )


@pytest.fixture
def house(tmp_path: Path) -> House:
    """A supervisor that restarts programs at once."""
    house = House(tmp_path)
    house.supervisor.first_pause_seconds = 0.01
    return house


def processes(house: House) -> dict[str, int]:
    return house.run.pids.participants


async def test_agents_with_one_environment_share_a_process(house: House, tmp_path: Path) -> None:
    (tmp_path / "inner").mkdir()
    agents = [
        agent("ada", tmp_path, "a"),
        agent("bob", tmp_path, "b"),
        agent("red", tmp_path, "r", environment={"COLOUR": "red"}),
        agent("inner", tmp_path / "inner", "i"),
    ]
    async with house.serving([], agents):
        found = processes(house)
        assert found["ada"] == found["bob"]
        assert len(set(found.values())) == 3
        await house.until(lambda: {(name, "started") for name in found} <= set(house.reported))
        logs = {name: log_path(house.supervisor.log_folder, name).read_text() for name in found}
    assert logs["ada"] == "ada has a and None\n"
    assert logs["red"] == "red has r and red\n"


async def test_a_process_takes_a_bounded_number_of_agents(house: House, tmp_path: Path) -> None:
    async with house.serving([], [agent(f"a{number}", tmp_path) for number in range(60)]):
        sizes = Counter(processes(house).values())
    assert sorted(sizes.values()) == [10, 25, 25]


async def test_an_ended_agent_restarts_by_its_policy_in_its_process(house: House, tmp_path: Path) -> None:
    agents = [
        agent("steady", tmp_path),
        agent("done", tmp_path, "ends0", restart="on-failure"),
        agent("failing", tmp_path, "ends4", restart="on-failure"),
        agent("given_up", tmp_path, "ends4"),
    ]
    async with house.serving([], agents):
        await house.until(lambda: house.run.starts["failing"] > 2 and {"done", "given_up"} <= {*house.run.exits})
        run = house.run
    assert (run.starts["steady"], run.starts["done"], run.starts["given_up"]) == (1, 1, 1)
    assert run.pids.participants["failing"] == run.pids.participants["steady"]
    assert (run.exits["done"].code, run.exits["given_up"].code) == (0, 4)


async def test_a_killed_process_restarts_all_its_agents_under_any_policy(house: House, tmp_path: Path) -> None:
    async with house.serving([], [agent("ada", tmp_path), agent("bob", tmp_path), agent("cleo", tmp_path)]):
        before = processes(house)
        os.kill(before["ada"], signal.SIGKILL)
        await house.until(lambda: set(house.run.starts.values()) == {2})
        assert not set(processes(house).values()) & set(before.values())
    said = "bob was ended by signal 9: its process had 2 other agents; it restarts in 0.01 s"
    assert ("mew", said) in house.reported


async def test_an_agent_that_ends_its_process_ends_up_alone(house: House, tmp_path: Path) -> None:
    steady = [agent(f"a{number}", tmp_path) for number in range(6)]
    async with house.serving([], [*steady[:3], agent("poison", tmp_path, "poison"), *steady[3:]]):
        await house.until(
            lambda: house.run.exits.get("poison", Exit(code=0, at="")).detail == "poison has poison and None"
        )
        await house.until(lambda: set(house.run.exits) == {"poison"})
        run = house.run
        assert all(run.is_running(run.pids.participants[one.name]) for one in steady)
    # 7 share a process, then 3 of them, then one is alone.
    assert run.starts["poison"] <= 4


async def test_an_agent_that_does_not_stop_is_killed_with_its_process(
    house: House, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mew_spaces.launch.supervisor.GRACE_SECONDS", 0.2)
    deaf = agent("deaf", tmp_path, "deaf")
    async with house.serving([], [agent("ada", tmp_path), deaf]):
        first = processes(house)["deaf"]
        await house.supervisor.add(replace(deaf, environment={**deaf.environment, "MEW_TOKEN": "tame"}))
        await house.until(lambda: house.run.starts == {"ada": 2, "deaf": 2})
        assert first not in processes(house).values()


async def test_the_last_agent_takes_its_process_along(house: House, tmp_path: Path) -> None:
    async with house.serving([], [agent("ada", tmp_path), agent("done", tmp_path, "ends0")]):
        await house.until(lambda: "done" in house.run.exits)
        alone = house.run
        assert alone.is_running(alone.pids.participants["ada"])
        await house.supervisor.add(agent("ada", tmp_path, "ends0"))
        await house.until(lambda: not alone.is_running(alone.pids.participants["done"]))
        await house.until(lambda: "ada" in house.run.exits)


async def test_a_process_that_cannot_start_is_reported_for_its_agent_only(house: House, tmp_path: Path) -> None:
    missing = agent("ghost", tmp_path, host=("/no/such/program",))
    async with house.serving([], [missing, agent("ada", tmp_path)]):
        await house.until(lambda: "ghost" in house.run.exits)
        run = house.run
        assert run.is_running(run.pids.participants["ada"])
    assert "could not be started: no such file" in run.faults()["ghost"]
