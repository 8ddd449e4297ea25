"""The plan of `mew up` reports every mistake before anything starts."""

import json
import os
import re
import socket
import sys
from pathlib import Path

import pytest
from mew_settings.installation import install_command
from mew_spaces.config.loading import load_space, parse_space
from mew_spaces.errors import SpaceConfigError
from mew_spaces.launch.processes import started_mark
from mew_spaces.launch.run_file import RunFile, run_file_path, write_run_file

from mew_agent.cli.app.locate import OWN_COMMAND, default_person
from mew_agent.cli.space.plan import (
    INTERPRETER,
    LaunchPlan,
    StartOptions,
    add_new_participants,
    check_new_participant,
    make_launch_plan,
)
from mew_agent.cli.space.start_checks import warnings_about
from mew_agent.errors import ConfigError

SPACE = """
space: {id: review, name: Review room}
participants:
  ada: {capabilities: [{kind: "*"}]}
  coder:
    agent: {model: gpt-4o, system_prompt: You review Python.}
    auto_start: true
"""
REHEARSAL = """
space: {id: review}
participants:
  a: {agent: {base_url: rehearsal, context_token_limit: 9000}, auto_start: true}
  b: {agent: {base_url: rehearsal, api_key_env: KEY}, auto_start: true}
"""
KEY = {"OPENAI_API_KEY": "sk-test", "PATH": os.environ.get("PATH", ""), "KEY": "k"}


def plan_of(folder: Path, text: str = SPACE, environ: dict[str, str] = KEY, **more: object) -> LaunchPlan:
    (folder / "space.yaml").write_text(text)
    return make_launch_plan(StartOptions(port=0, folder=folder, **more), environ)  # type: ignore[arg-type]


def settings_of(plan: LaunchPlan, name: str) -> dict[str, object]:
    program = next(one for one in plan.launch.participants() if one.name == name)
    found: dict[str, object] = json.loads(program.environment["MEW_AGENT_CONFIG"])
    return found


def test_plan_holds_the_gateway_and_the_participants(tmp_path: Path) -> None:
    plan = plan_of(tmp_path)
    assert [program.name for program in plan.services()] == ["gateway"]
    assert [program.name for program in plan.launch.participants()] == ["coder"]
    assert plan.services()[0].command[: len(OWN_COMMAND)] == OWN_COMMAND
    assert plan.person == "ada"
    assert plan.notices == ()
    assert plan.logs == tmp_path / ".mew" / "logs"


def test_every_participant_gets_a_private_token(tmp_path: Path) -> None:
    plan = plan_of(tmp_path)
    stored = tmp_path / ".mew" / "tokens" / "coder.token"
    assert stored.read_text().strip() == plan.launch.tokens["coder"]
    assert stored.stat().st_mode & 0o077 == 0


def test_agent_gets_its_section_and_session_but_no_key(tmp_path: Path) -> None:
    settings = settings_of(plan_of(tmp_path), "coder")
    assert settings["model"] == "gpt-4o"
    assert settings["system_prompt"] == "You review Python."
    assert settings["store"] == str(tmp_path / ".mew" / "sessions" / "coder.db")
    assert "api_key" not in settings
    assert (tmp_path / ".mew" / "sessions").is_dir()


@pytest.mark.parametrize(
    ("models", "agent", "limit"),
    [
        ("{gpt-4o: {context_length: 64000}}", "{model: gpt-4o}", 64_000),
        ("{gpt-4o: {input_length: 60000}}", "{model: gpt-4o}", 60_000),
        ("{gpt-4o: {context_length: 64000}}", "{model: gpt-4o, context_token_limit: 32000}", 32_000),
        ("{other: {context_length: 64000}}", "{model: gpt-4o}", None),
    ],
)
def test_window_of_a_model_applies_to_its_agents(tmp_path: Path, models: str, agent: str, limit: int | None) -> None:
    text = f"space: {{id: r}}\nmodels: {models}\nparticipants:\n  coder: {{agent: {agent}, auto_start: true}}\n"
    assert settings_of(plan_of(tmp_path, text), "coder").get("context_token_limit") == limit


def test_space_in_the_state_folder_belongs_to_its_parent(tmp_path: Path) -> None:
    (tmp_path / ".mew").mkdir()
    (tmp_path / ".mew" / "space.yaml").write_text(SPACE)
    plan = make_launch_plan(StartOptions(port=0, folder=tmp_path), KEY)
    assert plan.launch.folder == tmp_path
    assert plan.state == tmp_path / ".mew"


def test_dashboard_url_holds_the_token_in_its_fragment(tmp_path: Path) -> None:
    plan = plan_of(tmp_path)
    page, _, fragment = plan.dashboards()[0][1].partition("#")
    assert page == f"{plan.launch.address.http}/dashboard"
    assert fragment == f"token={plan.launch.tokens['ada']}&space=review&participant=ada"


def test_dashboard_url_without_a_person_holds_no_token(tmp_path: Path) -> None:
    plan = plan_of(tmp_path, REHEARSAL)
    assert plan.person is None
    assert plan.dashboards() == [("dashboard", f"{plan.launch.address.http}/dashboard")]


def test_rehearsing_agents_share_one_model(tmp_path: Path) -> None:
    plan = plan_of(tmp_path, REHEARSAL)
    assert [program.label for program in plan.services()] == ["gateway", "model server"]
    assert plan.services()[1].command[-2:] == ("--window", "9000")
    for name in ("a", "b"):
        settings = settings_of(plan, name)
        assert settings["base_url"] == f"http://127.0.0.1:{plan.model_port}/v1"
        assert settings["model"] == "rehearsal"
        assert "api_key_env" not in settings


def test_run_file_names_this_process_as_supervisor(tmp_path: Path) -> None:
    run = plan_of(tmp_path).run_file()
    assert run.is_running(run.pids.supervisor)
    assert (run.space, run.name, run.person, run.ready) == ("review", "Review room", "ada", False)


def test_agent_without_a_model_names_the_missing_setting(tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        plan_of(tmp_path, environ={})
    for word in ("participants.coder.agent", "'coder'", "OPENAI_API_KEY", "base_url: rehearsal"):
        assert word in str(caught.value)
    assert not run_file_path(tmp_path / ".mew").exists()


def test_base_url_in_the_environment_is_sufficient(tmp_path: Path) -> None:
    plan_of(tmp_path, environ={**KEY, "OPENAI_API_KEY": "", "OPENAI_BASE_URL": "http://localhost:1234/v1"})


def test_mistake_in_an_agent_section_names_the_participant(tmp_path: Path) -> None:
    with pytest.raises(SpaceConfigError, match=r"participants\.coder\.agent\.base_url: must be a URL"):
        plan_of(tmp_path, SPACE.replace("model: gpt-4o", "base_url: localhost"))


@pytest.mark.parametrize(
    ("settings", "place"),
    [
        ("agent: {model: x, policy: nosuch}", ":4:31: participants.coder.agent: "),
        ("agent: {api_key_env: NO_KEY}", ":4:26: participants.coder.agent: "),
        ("command: no-such-program", ":4:14: participants.coder.command: "),
        pytest.param(
            "mcp_server: {command: no-such-program}",
            ":4:27: participants.coder.mcp_server.command: ",
            marks=pytest.mark.part("mcp"),
        ),
        ("command: 'true'\n    cwd: no-such-folder", ":5:10: participants.coder.cwd: "),
    ],
)
def test_start_errors_have_line_and_column(tmp_path: Path, settings: str, place: str) -> None:
    text = f"space: {{id: r}}\nparticipants:\n  coder:\n    {settings}\n    auto_start: true\n"
    with pytest.raises(ConfigError) as refused:
        plan_of(tmp_path, text)
    assert f"space.yaml{place}" in str(refused.value)


def test_keys_without_effect_give_a_notice(tmp_path: Path) -> None:
    notices = plan_of(tmp_path, SPACE.replace("model: gpt-4o", "message_queue: {}")).notices
    assert "'message_queue' has no effect" in notices[0]


PERSON = "space: {id: a}\nparticipants:\n  ada:"


@pytest.mark.parametrize(
    ("text", "notice"),
    [
        ("space: {id: a, ui_theme: dark}", "1:26: 'space.ui_theme' has no effect here"),
        (f"{PERSON} {{io: http}}", "3:13: 'participants.ada.io' has no effect here"),
        (f"{PERSON} {{args: [x]}}", "3:15: 'participants.ada.args' has no effect without 'command'"),
        (f"{PERSON} {{env: {{A: b}}}}", "'participants.ada.env' has no effect without a program"),
        (f"{PERSON} {{auto_connect: true}}", "'participants.ada.auto_connect' has no effect without 'output_log' or"),
        (f"{PERSON} {{fifo: true}}", "'participants.ada.fifo' has no effect without 'auto_connect: true'"),
        pytest.param(
            f"{PERSON} {{acp: {{agent: codex, args: [x]}}}}",
            "'participants.ada.acp.args' has no effect without",
            marks=pytest.mark.part("acp"),
        ),
        (f"{PERSON} {{type: human}}", "'participants.ada.type' has no effect here"),
        (f"{PERSON} {{default_to: {{reasoning/start: [b]}}}}", "'participants.ada.default_to.reasoning/start' has no"),
        (
            f"{PERSON} {{auto_start: true, fifo: true, auto_connect: true}}",
            "'participants.ada.auto_start' has no effect",
        ),
        (
            "space: {id: a}\ndefaults: {routing: {default_to: {x: [b]}}}",
            "'defaults.routing.default_to.x' has no effect",
        ),
        ("space: {id: a}\nbackplane: nats://a\nhistory: {durability: synced}", "no effect next to 'backplane'"),
        ("space: {id: a}\nattention: {kinds: [loop]}", "'attention.kinds' has no effect without 'attention.webhook'"),
    ],
)
def test_a_key_without_effect_gives_a_notice_with_its_place(tmp_path: Path, text: str, notice: str) -> None:
    path = tmp_path / "space.yaml"
    path.write_text(f"{text}\n")
    (found,) = make_launch_plan(StartOptions(port=0, folder=tmp_path), {}).notices
    assert found.startswith(f"{path}:")
    assert found.endswith("; you can remove it")
    assert notice in found


def test_memory_next_to_a_backplane_gives_no_notice(tmp_path: Path) -> None:
    (tmp_path / "space.yaml").write_text("space: {id: a}\nbackplane: nats://a\nhistory: {durability: memory}\n")
    assert make_launch_plan(StartOptions(port=0, folder=tmp_path), {}).notices == ()


def test_fifos_and_program_options_give_no_notice(tmp_path: Path) -> None:
    path = tmp_path / "space.yaml"
    path.write_text(
        f"{PERSON} {{auto_connect: true, fifo: true, cwd: .}}\n  tool: {{command: 'true', args: [x], env: {{A: b}}}}\n"
        "  log: {output_log: log, auto_connect: true}\nattention: {webhook: 'http://127.0.0.1/', kinds: [loop]}\n"
    )
    assert make_launch_plan(StartOptions(port=0, folder=tmp_path), {}).notices == ()


def test_unset_variable_is_reported_with_its_position(tmp_path: Path) -> None:
    tool = f"  tool: {{command: '{sys.executable}', env: {{KEY: '${{NO_KEY}}'}}, auto_start: true}}\n"
    (notice,) = plan_of(tmp_path, SPACE + tool).notices
    column = tool.index("'${NO_KEY}'") + 1
    assert notice == (
        f"{tmp_path}/space.yaml:{len(SPACE.splitlines()) + 1}:{column}: participants.tool.env.KEY: NO_KEY is not set; "
        "the program gets ${NO_KEY}. Set it before `mew up`: export NO_KEY=..."
    )


def test_star_that_crosses_folders_gives_a_notice(tmp_path: Path) -> None:
    payload = (
        '{method: "resources/*", params: {uri: ["/a/*", "/b/**", "!/c/*", "/^/d/[^/]*$/"], name: "fs/*"}, path: "x*"}'
    )
    path = tmp_path / "space.yaml"
    path.write_text(
        "space: {id: a}\nparticipants:\n  ada:\n    capabilities:\n      - {kind: '*'}\n"
        f"      - kind: mcp/request\n        payload: {payload}\n"
    )
    under, meant = "participants.ada.capabilities.1.payload", "also matches what is in subfolders; write"
    other = "if that is meant, else a regular expression with [^/]*"
    assert make_launch_plan(StartOptions(port=0, folder=tmp_path), {}).notices == (
        f"{path}:7:57: {under}.params.uri.0: '/a/*' {meant} '/a/**' {other}",
        f"{path}:7:121: {under}.path: 'x*' {meant} 'x**' {other}",
    )


@pytest.mark.part("mcp")
def test_bridge_is_one_of_the_programs(tmp_path: Path) -> None:
    bridge = f"  files: {{type: mcp-bridge, mcp_server: {{command: '{sys.executable}'}}, auto_start: true}}\n"
    plan = plan_of(tmp_path, SPACE + bridge)
    assert [program.name for program in plan.launch.participants()] == ["coder", "files"]
    assert plan.notices == ()


@pytest.mark.parametrize(
    ("server", "said"),
    [
        (
            "{command: no-such-server}",
            r"participants\.files\.mcp_server\.command: program 'no-such-server' not found",
        ),
        ("{command: mew, cwd: nowhere}", r"participants\.files\.mcp_server\.cwd: folder '.*nowhere' not found"),
    ],
)
@pytest.mark.part("mcp")
def test_missing_mcp_server_is_named(tmp_path: Path, server: str, said: str) -> None:
    text = f"space: {{id: s}}\nparticipants:\n  files: {{mcp_server: {server}, auto_start: true}}\n"
    with pytest.raises(ConfigError, match=said):
        plan_of(tmp_path, text)


@pytest.mark.parametrize(
    ("command", "problem"), [("no-such-agent", "not found on PATH"), ("/etc/passwd", "is not an executable file")]
)
@pytest.mark.part("acp")
def test_missing_acp_program_is_named_with_its_place(tmp_path: Path, command: str, problem: str) -> None:
    text = f"space: {{id: s}}\nparticipants:\n  helper: {{acp: {{command: {command}}}, auto_start: true}}\n"
    said = rf"space\.yaml:3:17: participants\.helper\.acp: program '{command}' {problem}$"
    with pytest.raises(ConfigError, match=said):
        plan_of(tmp_path, text)


@pytest.mark.part("mcp")
def test_bridge_without_its_package_is_refused_before_the_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mew_agent.extras.find_spec", lambda _name: None)
    text = "space: {id: s}\nparticipants:\n  web: {mcp_server: {url: 'http://x/mcp'}, auto_start: true}\n"
    with pytest.raises(ConfigError, match=re.escape(f"the MCP bridge needs the extra 'mcp': {install_command('mcp')}")):
        plan_of(tmp_path, text)
    plan_of(tmp_path, text.replace(", auto_start: true", ""))


def test_mistake_in_the_file_has_line_and_column(tmp_path: Path) -> None:
    with pytest.raises(SpaceConfigError, match=r"space\.yaml:4:9: unknown key 'capabilites'"):
        plan_of(tmp_path, SPACE.replace("capabilities", "capabilites"))


def test_folder_without_a_space_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"no space\.yaml here"):
        make_launch_plan(StartOptions(port=0, folder=tmp_path), {})


def test_missing_program_is_named(tmp_path: Path) -> None:
    text = "space: {id: s}\nparticipants:\n  tool: {command: no-such-program, auto_start: true}\n"
    with pytest.raises(ConfigError, match=r"participants\.tool\.command: program 'no-such-program' not found"):
        plan_of(tmp_path, text)


def test_missing_folder_is_named(tmp_path: Path) -> None:
    text = "space: {id: s}\nparticipants:\n  tool: {command: mew, cwd: nowhere, auto_start: true}\n"
    with pytest.raises(ConfigError, match=r"participants\.tool\.cwd: folder "):
        plan_of(tmp_path, text)


def test_running_space_is_not_started_twice(tmp_path: Path) -> None:
    path = run_file_path(tmp_path / ".mew")
    me = os.getpid()
    run = RunFile.model_validate(
        {
            "space": "review",
            "gateway": "http://127.0.0.1:1",
            "ws": "",
            "started_at": "noon",
            "pids": {"supervisor": me},
            "marks": {str(me): started_mark(me)},
        }
    )
    write_run_file(path, run)
    with pytest.raises(ConfigError, match=r"is already running at http://127\.0\.0\.1:1 since noon"):
        plan_of(tmp_path)
    write_run_file(path, run.model_copy(update={"marks": {}}))
    assert plan_of(tmp_path).space == "review"
    assert not path.exists()


@pytest.mark.parametrize(
    ("text", "person"),
    [
        ("space: {id: s}\nparticipants: {a: {}}", "a"),
        ("space: {id: s}\nparticipants: {a: {}, b: {}}", None),
        ("space: {id: s, default_participant: b}\nparticipants: {a: {}, b: {}}", "b"),
        ("space: {id: s}\nparticipants: {a: {command: x}}", None),
    ],
)
def test_person_is_the_default_participant_or_the_only_one(text: str, person: str | None) -> None:
    assert default_person(parse_space(text)) == person


def test_programs_get_the_running_python(tmp_path: Path) -> None:
    text = SPACE + "  tool: {command: '${MEW_PYTHON}', auto_start: true}\n"
    program = next(one for one in plan_of(tmp_path, text).launch.participants() if one.name == "tool")
    assert program.command == (sys.executable,)
    assert program.environment[INTERPRETER] == sys.executable


def test_only_participants_added_since_the_start_are_found(tmp_path: Path) -> None:
    plan = plan_of(tmp_path)
    assert add_new_participants(plan, KEY) == (plan, [])
    later = "  late: {agent: {model: gpt-x}, auto_start: true}\n  bob: {}\n"
    (tmp_path / "space.yaml").write_text(SPACE + later)
    newest, programs = add_new_participants(plan, KEY)
    assert [program.name for program in programs] == ["late"]
    assert json.loads(programs[0].environment["MEW_AGENT_CONFIG"])["model"] == "gpt-x"
    assert programs[0].environment["MEW_TOKEN"] == (tmp_path / ".mew" / "tokens" / "late.token").read_text().strip()
    assert add_new_participants(newest, KEY)[1] == []
    assert list(newest.launch.config.participants) == ["ada", "coder", "late", "bob"]


def test_new_agent_rehearses_only_with_a_rehearsal_model(tmp_path: Path) -> None:
    plan = plan_of(tmp_path)
    text = SPACE + "  late: {agent: {base_url: rehearsal}, auto_start: true}\n"
    (tmp_path / "space.yaml").write_text(text)
    with pytest.raises(ConfigError, match="runs without a rehearsal model"):
        add_new_participants(plan, KEY)
    with pytest.raises(ConfigError, match="runs without a rehearsal model"):
        check_new_participant("late", parse_space(text), tmp_path / "space.yaml", has_model_server=False)
    check_new_participant("late", parse_space(text), tmp_path / "space.yaml")


@pytest.mark.parametrize(
    ("command", "is_there"), [("mew", True), ("./tool", True), ("${ANY}", True), ("nosuch", False)]
)
def test_program_of_a_new_participant_must_exist(tmp_path: Path, command: str, is_there: bool) -> None:
    (tmp_path / "tool").touch(mode=0o700)
    config = parse_space(f"space: {{id: s}}\nparticipants: {{late: {{command: '{command}'}}}}\n")
    if is_there:
        check_new_participant("late", config, tmp_path / "space.yaml", has_model_server=False)
    else:
        with pytest.raises(ConfigError, match=r"late\.command: program 'nosuch' not found"):
            check_new_participant("late", config, tmp_path / "space.yaml", has_model_server=False)


@pytest.mark.skipif(sys.platform == "win32", reason="no mode of files there")
@pytest.mark.parametrize(
    ("command", "said"),
    [
        ("python9", "program 'python9' not found; ${MEW_PYTHON} is the Python that runs mew"),
        ("bot.py", "program 'bot.py' not found; write `command: \"${MEW_PYTHON}\", args: [bot.py]`"),
        ("./bot.py", "program './bot.py' is not executable; write `command: \"${MEW_PYTHON}\", args: [./bot.py]`"),
        ("bot", "program 'bot' not found; write './bot' for the file in "),
        ("./bot", "program './bot' is not executable"),
        ("sub/bot", "program 'sub/bot' not found"),
    ],
)
def test_a_program_that_cannot_be_started_is_reported_with_the_right_command(
    tmp_path: Path, command: str, said: str
) -> None:
    for name in ("bot", "bot.py"):
        (tmp_path / name).touch(mode=0o600)
    text = f"space: {{id: s}}\nparticipants:\n  tool: {{command: '{command}', auto_start: true}}\n"
    with pytest.raises(ConfigError, match=re.escape(said)):
        plan_of(tmp_path, text)


POLICY = "name: team\nbased_on: mew\nsettings: {context_token_limit: 60000}\n"


@pytest.mark.part("policies")
def test_policy_file_is_found_in_the_spaces_folder(tmp_path: Path) -> None:
    (tmp_path / "team.yaml").write_text(POLICY)
    agent = "{policy: team.yaml, policy_settings: {context_token_limit: 90000}, upkeep: false}"
    text = f"space: {{id: r}}\nparticipants:\n  coder: {{agent: {agent}, auto_start: true}}\n"
    settings = settings_of(plan_of(tmp_path, text), "coder")
    assert settings["policy"] == str(tmp_path / "team.yaml")
    assert settings["policy_settings"] == {"context_token_limit": 90000}
    assert settings["upkeep"] is False


def test_tokenizer_file_is_found_in_the_spaces_folder(tmp_path: Path) -> None:
    agent = "{tokenizer: off, tokenizer_file: vocabularies/o200k_base.tiktoken}"
    text = f"space: {{id: r}}\nparticipants:\n  coder: {{agent: {agent}, auto_start: true}}\n"
    settings = settings_of(plan_of(tmp_path, text), "coder")
    assert settings["tokenizer"] == "off"
    assert settings["tokenizer_file"] == str(tmp_path / "vocabularies" / "o200k_base.tiktoken")


@pytest.mark.parametrize(
    ("policy", "said"),
    [
        ("no-such", "participants.coder.agent: unknown policy 'no-such'"),
        ("gone.yaml", "participants.coder.agent: policy file "),
        ("bad.yaml", "bad.yaml:2:1: unknown preset 'domino'"),
        pytest.param(
            "{name: x, based_on: mew, max_stalls: 0}",
            "must be at least 1, not 0",
            marks=pytest.mark.part("policies"),
        ),
    ],
)
def test_invalid_policy_is_refused_before_the_start(tmp_path: Path, policy: str, said: str) -> None:
    (tmp_path / "bad.yaml").write_text("name: x\nbased_on: domino\n")
    text = f"space: {{id: r}}\nparticipants:\n  coder: {{agent: {{policy: {policy}}}, auto_start: true}}\n"
    with pytest.raises(ConfigError) as refused:
        plan_of(tmp_path, text)
    assert said in str(refused.value)


def test_model_facts_reach_rehearsing_agents_too(tmp_path: Path) -> None:
    text = (
        "space: {id: r}\nmodels: {gpt-4o: {context_length: 272000, optimal_max_tokens: 200000}}\n"
        "participants:\n"
        "  a: {agent: {model: gpt-4o, policy: mew}, auto_start: true}\n"
        "  b: {agent: {model: gpt-4o, policy: mew, base_url: rehearsal}, auto_start: true}\n"
    )
    plan = plan_of(tmp_path, text)
    known = {"context_length": 272_000, "optimal_max_tokens": 200_000}
    assert settings_of(plan, "a")["models"] == {"gpt-4o": known}
    assert settings_of(plan, "b")["models"] == {"rehearsal": known}


RICH = """
space: {id: review, name: Review room, default_participant: ada}
models: {gpt-4o: {context_length: 64000}}
defaults: {routing: {default_to: {chat: [coder]}}}
participants:
  ada: {capabilities: [{kind: chat}, {kind: [mcp/request, mcp/response], to: coder, payload: {method: "tools/*"}}]}
  coder: {agent: {model: gpt-4o, policy: mew}, auto_start: true, env: {A: "${SPACE}"}}
  rehearsing: {agent: {base_url: rehearsal}, auto_start: true}
  tool: {command: mew, args: [agent, start], auto_start: true, cwd: ., restart_policy: on-failure}
"""


def test_plan_reaches_another_process_unchanged(tmp_path: Path) -> None:
    environ = {**KEY, "MEW_TOKEN_ADA": "secret"}
    plan = plan_of(tmp_path, RICH, environ)
    received = LaunchPlan.from_json(plan.to_json(), environ)
    assert received == plan
    assert received.launch.participants() == plan.launch.participants()
    assert received.services() == plan.services()
    assert received.launch.config.model_dump(exclude_unset=True) == plan.launch.config.model_dump(exclude_unset=True)
    assert b"sk-test" not in plan.to_json()


def test_an_approver_that_may_not_approve_is_a_warning(tmp_path: Path) -> None:
    path = tmp_path / "space.yaml"
    path.write_text(
        "space: {id: review}\nparticipants:\n  ada: {role: person}\n  bob: {capabilities: [{kind: chat}]}\n"
        "  coder:\n    agent:\n      compaction: {approve: [ada, bob]}\n"
    )
    warning = f"{path}:7:19: 'bob' may not approve compactions of 'coder' (mcp/request to 'coder')"
    assert list(warnings_about(load_space(path), path)) == [warning]


def test_a_misspelled_kind_of_a_capability_is_a_warning(tmp_path: Path) -> None:
    path = tmp_path / "space.yaml"
    path.write_text(
        "space: {id: review}\nparticipants:\n  bob: {capabilities: [{kind: chat}, {kind: [mcp/*, caht]}]}\n"
    )
    (warning,) = warnings_about(load_space(path), path)
    assert warning == (
        f"{path}:3:45: participants.bob.capabilities.1: the protocol has no kind 'caht' (did you mean 'chat'?);"
        " only your own programs can send it"
    )


def test_a_warning_names_the_capability_that_an_agent_lacks(tmp_path: Path) -> None:
    path = tmp_path / "space.yaml"
    participants = (
        "participants:\n  good: {agent: {}}\n  mute:\n    agent: {}\n    capabilities: [{kind: chat}]\n"
        "  files: {role: tool}\n"
    )
    path.write_text(f"space: {{id: review}}\n{participants}")
    lacks = "report how full its context is or report what a compaction freed or call the tools of files"
    warning = f"{path}:5:5: 'mute' may not {lacks}; add the line `role: agent` to allow it"
    assert list(warnings_about(load_space(path), path)) == [warning]
    path.write_text(path.read_text().replace("    agent: {}\n", "    agent: {}\n    role: agent\n"))
    assert not list(warnings_about(load_space(path), path))


def test_a_model_server_that_does_not_answer_is_a_warning(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HTTP_PROXY", "http://proxy.invalid:3128")  # agents use no proxy for servers on this machine
    with socket.create_server(("127.0.0.1", 0)) as server:
        live = f"http://127.0.0.1:{server.getsockname()[1]}/v1"
        dead = "http://127.0.0.1:1/v1"
        names = "".join(
            f"  {name}: {{agent: {{model: m, base_url: '{url}'}}, auto_start: true}}\n"
            for name, url in (("a", live), ("b", dead), ("c", dead))
        )
        notices = plan_of(tmp_path, f"space: {{id: review}}\nparticipants:\n{names}").notices
    assert notices == (f"the model server {dead} of b, c does not answer (connection refused)",)


def test_reference_mode_is_announced_and_links_the_logs(tmp_path: Path) -> None:
    assert plan_of(tmp_path).log_links is None
    environ = {**KEY, "MEW_COMPAT": "reference"}
    plan = plan_of(tmp_path, environ=environ)
    assert plan.log_links == tmp_path / "logs"
    assert [one for one in plan.notices if one.startswith("compat: reference: ")]
    assert plan.services()[0].environment["MEW_COMPAT"] == "reference"
    again = LaunchPlan.from_json(plan.to_json(), environ)
    assert again.launch.config.is_reference
    assert add_new_participants(again, environ)[0].launch.config.is_reference
    assert plan_of(tmp_path, f"compat: reference\n{SPACE}").launch.config.is_reference


def test_unknown_recipient_gives_a_notice(tmp_path: Path) -> None:
    path = tmp_path / "space.yaml"
    path.write_text(
        "space: {id: a}\nparticipants:\n  ada: {default_to: {chat: [codr]}}\n"
        "  coder: {role: tool, capabilities: [{kind: chat, to: [ada, adda]}]}\n"
    )
    unknown = [one for one in warnings_about(load_space(path), path) if "no participant" in one]
    assert unknown == [
        f"{path}:3:28: participants.ada.default_to.chat: no participant 'codr' (did you mean 'coder'?)",
        f"{path}:4:55: participants.coder.capabilities.0.to: no participant 'adda' (did you mean 'ada'?)",
    ]
