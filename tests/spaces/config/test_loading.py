"""Reading space.yaml, and the errors for its mistakes."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from mew_settings.roles import ROLE_PATTERNS
from mew_spaces.config.loading import SpaceConfig, load_space, parse_space, place_in, positions_of, with_participant
from mew_spaces.errors import SpaceConfigError

WHOLE = """
space: {id: demo, name: Demo, description: A room, default_participant: human, ui_theme: neon-pulse}
participants:
  human:
    capabilities: [{kind: "*"}]
    default_to: {chat: [mew]}
  mew:
    type: local
    command: mew
    args: ["agent", "run", "--port", 8080]
    auto_start: true
    restart_policy: on-failure
    env: {OPENAI_API_KEY: "${OPENAI_API_KEY}", LEVEL: 3, VERBOSE: true}
    capabilities:
      - {id: talk, kind: [chat, "chat/*"]}
      - {kind: mcp/request, to: [fs], payload: {method: "tools/*", params: {n: null}}}
  coder: {agent: {model: gpt-4o, context_token_limit: 8000, policy: mew}, auto_start: true}
  fs:
    type: mcp-bridge
    auto_start: true
    mcp_server: {command: npx, args: [-y, server], env: {K: V}, cwd: ./x}
    bridge_config: {init_timeout: 30000, reconnect: true, max_reconnects: 3}
  tester: {tokens: ["test-token"], output_log: ./logs/t.log, auto_connect: true, fifo: true, io: http}
  guest:
defaults:
  capabilities: [{kind: chat}, {kind: "chat/*"}]
  routing: {default_to: {chat: [mew]}}
gateway_logging: {enabled: true, envelope_history: {enabled: true}, capability_decisions: {enabled: false}}
capabilities: {ignore_to: true}
limits: {message_bytes: 100000}
models:
  gpt-4o:
    context_length: 128000
    input_length: 120000
    optimal_max_tokens: 100000
    critical_max_tokens: 120000
    caution_remediation_cadence_generations: 10
"""


def problem_of(text: str) -> str:
    with pytest.raises(SpaceConfigError) as caught:
        parse_space(text)
    return str(caught.value)


@pytest.mark.part("mcp")
def test_every_key_is_read() -> None:
    config = parse_space(WHOLE)
    mew = config.participants["mew"]
    assert mew.args == ("agent", "run", "--port", "8080")
    assert mew.env == {"OPENAI_API_KEY": "${OPENAI_API_KEY}", "LEVEL": "3", "VERBOSE": "true"}
    assert config.patterns_of("mew") == (
        {"id": "talk", "kind": ["chat", "chat/*"]},
        {"kind": "mcp/request", "to": ["fs"], "payload": {"method": "tools/*", "params": {"n": None}}},
    )
    assert config.capabilities.ignore_to
    assert config.limits.message_bytes == 100_000
    assert config.models["gpt-4o"].caution_remediation_cadence_generations == 10
    assert config.space.default_participant == "human"
    assert config.gateway_logging.capability_decisions.enabled is False


def test_capabilities_are_limited_in_number_and_length() -> None:
    head = "space: {id: a}\nparticipants:\n  ada:\n    capabilities:\n"
    many = head + "      - {kind: chat}\n" * 257
    expected = "space.yaml:5:7: participants.ada.capabilities: has 257 patterns; the limit is 256"
    assert problem_of(many) == expected
    assert len(parse_space(head + "      - {kind: chat}\n" * 256).patterns_of("ada")) == 256
    for section in ("defaults: {capabilities: [\n%s]}", "participants: {ada: {capabilities: [\n%s]}}"):
        written = "space: {id: a}\n" + section % ("{kind: chat},{kind: chat, payload: {text: '" + "*a" * 501 + "'}}")
        assert problem_of(written) == (
            f"space.yaml:3:14: {'defaults' if 'defaults' in section else 'participants.ada'}.capabilities.1: "
            "a text in this pattern has 1,002 characters; the limit is 1,000"
        )


@pytest.mark.part("mcp")
def test_participants_without_capabilities_get_the_defaults() -> None:
    config = parse_space(WHOLE)
    assert config.patterns_of("guest") == ({"kind": "chat"}, {"kind": "chat/*"})
    assert config.patterns_of("nobody") == config.patterns_of("guest")
    assert parse_space("space: {id: a}").patterns_of("anybody") == ({"kind": "chat"},)
    assert parse_space("space: {id: a}\nparticipants: {x: {capabilities: []}}").patterns_of("x") == ()


@pytest.mark.part("mcp")
def test_a_participant_without_capabilities_gets_those_of_its_role() -> None:
    participants = (
        "{ada: {}, coder: {agent: {}}, old: {command: mew, args: [agent, run]}, clock: {command: clock},"
        " files: {mcp_server: {command: x}}, eve: {role: observer}, bot: {role: agent, capabilities: [{kind: a/b}]}}"
    )
    config = parse_space(f"space: {{id: a}}\nparticipants: {participants}")
    roles = {name: one.acts_as for name, one in config.participants.items()}
    assert list(roles.values()) == ["person", "agent", "agent", "tool", "tool", "observer", "agent"]
    assert [name for name in roles if config.is_person(name)] == ["ada"]
    for name, role in roles.items():
        more = ({"kind": "a/b"},) if name == "bot" else ()
        assert config.patterns_of(name) == ROLE_PATTERNS[role] + more


def test_capability_may_be_a_kind() -> None:
    config = parse_space(
        "space: {id: a}\ndefaults: {capabilities: [chat]}\nparticipants: {x: {capabilities: ['mcp/*']}}"
    )
    assert (config.patterns_of("x"), config.patterns_of("guest")) == (({"kind": "mcp/*"},), ({"kind": "chat"},))


@pytest.mark.part("mcp")
def test_a_person_has_no_program() -> None:
    config = parse_space(WHOLE)
    people = [name for name in (*config.participants, "nobody") if config.is_person(name)]
    assert people == ["human", "tester", "guest"]


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        (
            "space: {id: a}\nparticipants:\n  coder:\n    command: x\n    capabilites: []\n",
            "space.yaml:5:5: unknown key 'capabilites' under participants.coder (did you mean 'capabilities'?)",
        ),
        (
            "space: {id: a}\nparticipants:\n  x:\n    agent:\n      modle: 3\n",
            "space.yaml:5:7: unknown key 'modle' under participants.x.agent (did you mean 'model'?)",
        ),
        (
            "space: {id: a}\nparticipants:\n  x:\n    agent:\n      max_iterations: 0\n",
            "space.yaml:5:23: participants.x.agent.max_iterations: must be greater than 0, not 0",
        ),
        (
            "space: {id: a}\nparticipants: {x: {auto_start: perhaps}}",
            "space.yaml:2:32: participants.x.auto_start: must be true or false, not 'perhaps'",
        ),
        (
            "space: {id: a}\nmodels:\n  big: {context_length: true}\n",
            "space.yaml:3:25: models.big.context_length: must be a number, not true",
        ),
        (
            "space: {id: d}\nparticipants: {x: {agent: {summariser: {modle: m}}}}",
            "space.yaml:2:41: unknown key 'modle' under participants.x.agent.summariser (did you mean 'model'?)",
        ),
        (
            "space: {id: a}\nparticipants: {x: {capabilities: [{kind: chat, paylod: {}}]}}",
            "space.yaml:2:48: unknown key 'paylod' under participants.x.capabilities.0 (did you mean 'payload'?)",
        ),
        (
            "space: {id: a}\nzzz: 1",
            (
                "space.yaml:2:1: unknown key 'zzz'; expected one of space, compat, participants, defaults, "
                "capabilities, control, limits, history, attention, gateway, backplane, models, gateway_logging"
            ),
        ),
        (
            "space: {id: a}\nparticipants:\n  x: {restart_policy: often}",
            "space.yaml:3:23: participants.x.restart_policy: must be 'never', 'on-failure' or 'always', not 'often'",
        ),
        ("space: {id: 5}", "space.yaml:1:13: space.id: must be a string, not 5; quote it"),
        ("space: {name: x}", "space.yaml:1:8: 'id' is missing under space"),
        ("space: {id: a}\nparticipants: {1: {}}", "space.yaml:2:16: participants.1: must be a string, not 1; quote it"),
        (
            "space: {id: a}\nparticipants: {a/b: {}}",
            (
                "space.yaml:2:16: participants.a/b: invalid characters: an id must not contain '/', '\\', '..', "
                "invisible characters, or spaces at either end"
            ),
        ),
        ("space: {id: a}\nparticipants: 5", "space.yaml:2:15: participants: must be a mapping, not 5"),
        (
            "space: {id: a}\nparticipants: {x: {env_from: [1A]}}",
            "space.yaml:2:31: participants.x.env_from.0: must be the name of an environment variable, not '1A'",
        ),
        pytest.param(
            "space: {id: a}\nparticipants: {x: {acp: {agent: codex, compact_at: most}}}",
            "space.yaml:2:52: participants.x.acp.compact_at: must be a percentage such as 80%, not 'most'",
            marks=pytest.mark.part("acp"),
        ),
        pytest.param(
            "space: {id: a}\nparticipants: {x: {acp: {agent: codex, compact_at: 80}}}",
            "space.yaml:2:52: participants.x.acp.compact_at: must be a percentage such as 80%, not 80",
            marks=pytest.mark.part("acp"),
        ),
        pytest.param(
            "space: {id: a}\nparticipants: {x: {acp: {agent: codex, turn_seconds: .inf}}}",
            "space.yaml:2:54: participants.x.acp.turn_seconds: must be a finite number, not inf",
            marks=pytest.mark.part("acp"),
        ),
        ("space: {id: a}\nparticipants: {x: {args: 3}}", "space.yaml:2:26: participants.x.args: must be a list, not 3"),
        (
            "space: {id: a}\nparticipants:\n  x: {command: a, agent: {}}",
            "space.yaml:3:6: participants.x: has both 'command' and 'agent'; remove one of them",
        ),
        pytest.param(
            "space: {id: a}\nparticipants:\n  x: {agent: {}, mcp_server: {command: a}}",
            "space.yaml:3:6: participants.x: has both 'agent' and 'mcp_server'; remove one of them",
            marks=pytest.mark.part("mcp"),
        ),
        pytest.param(
            "space: {id: a}\nparticipants:\n  x: {mcp_server: {args: [a]}}",
            "space.yaml:3:19: participants.x.mcp_server: needs either 'command' or 'url'",
            marks=pytest.mark.part("mcp"),
        ),
        pytest.param(
            "space: {id: a}\nparticipants:\n  x: {mcp_server: {url: 'http://a', env: {K: v}}}",
            "space.yaml:3:19: participants.x.mcp_server: 'env' needs 'command', not 'url'; remove one of them",
            marks=pytest.mark.part("mcp"),
        ),
        pytest.param(
            "space: {id: a}\nparticipants:\n  x: {mcp_server: {url: 'ftp://a'}}",
            "space.yaml:3:25: participants.x.mcp_server.url: must be a URL like https://example.org/mcp, not 'ftp://a'",
            marks=pytest.mark.part("mcp"),
        ),
        pytest.param(
            "space: {id: a}\nparticipants:\n  x: {mcp_server: {command: a, headers: {K: v}}}",
            "space.yaml:3:19: participants.x.mcp_server: 'headers' need 'url', not 'command'; remove one of them",
            marks=pytest.mark.part("mcp"),
        ),
        pytest.param(
            "space: {id: a}\nparticipants:\n  x: {type: mcp-bridge}",
            "space.yaml:3:6: participants.x: type 'mcp-bridge' needs 'mcp_server'",
            marks=pytest.mark.part("mcp"),
        ),
        (
            "space: {id: a}\nlimits: {message_bytes: 1}",
            "space.yaml:2:25: limits.message_bytes: must be at least 1024, not 1",
        ),
        (
            "space: {id: a, default_participant: bo}\nparticipants: {bob: {}}",
            "space.yaml:1:37: no participant 'bo' under 'participants' (did you mean 'bob'?)",
        ),
        (
            "space: {id: a}\nparticipants:\n  ada: {}\n  coder:\n    agent: {compaction: {approve: [ada, adda]}}",
            "space.yaml:5:35: no participant 'adda' under 'participants' (did you mean 'ada'?)",
        ),
        (
            "space: {id: a}\nparticipants:\n  x: {tokens: [t]}\n  y: {tokens: [t]}",
            "space.yaml:4:16: 'y' and 'x' have the same token; give each participant its own",
        ),
        ("space: {id: a}\nspace: {id: b}", "space.yaml:2:1: duplicate key 'space'; remove one of the two"),
        ("", "space.yaml: 'space' is missing"),
        (
            "space:\n  id: a\x00",
            "space.yaml:2:8: invalid YAML: special characters are not allowed: '\\x00'",
        ),
        ("space: {id: 2026-13-01}", "space.yaml: invalid YAML: month must be in 1..12"),
        (
            "space: {id: a}\nparticipants: {x: {capabilities: [{kind: [chat, '" + "x" * 1_001 + "']}]}}",
            (
                "space.yaml:2:35: participants.x.capabilities.0: a text in this pattern has 1,001 characters; "
                "the limit is 1,000"
            ),
        ),
        (
            'space: {id: a}\nparticipants: {x: {capabilities: [{kind: "\\ud83d"}]}}',
            "space.yaml:2:35: participants.x.capabilities.0: a capability must be JSON",
        ),
        pytest.param(
            "space: {id: a}\nparticipants: {x: {acp: {agent: codex, together: 4}}}",
            (
                "space.yaml:2:25: participants.x.acp: 'together' is not possible over ACP: the agent's program"
                " answers one message in each turn"
            ),
            marks=pytest.mark.part("acp"),
        ),
        pytest.param(
            "space: {id: a}\nparticipants: {x: {acp: {}}}",
            "space.yaml:2:25: participants.x.acp: needs 'agent' or 'command'",
            marks=pytest.mark.part("acp"),
        ),
        (
            "space: {id: a}\nparticipants:\n  ada:\n  \u0430da:\n",
            "space.yaml:4:7: '\u0430da' looks like 'ada'; choose an id that people can tell from it",
        ),
        ("- a", "space.yaml:1:1: must be a mapping with the keys 'space' and 'participants'"),
        (
            "space: [\n",
            (
                "space.yaml:2:1: invalid YAML: while parsing a flow node expected the node content, but found "
                "'<stream end>'"
            ),
        ),
        (
            "a: !!python/object:os.system x",
            (
                "space.yaml:1:4: invalid YAML: could not determine a constructor for the tag "
                "'tag:yaml.org,2002:python/object:os.system'"
            ),
        ),
    ],
)
def test_an_error_names_position_cause_and_expectation(text: str, problem: str) -> None:
    assert problem_of(text) == problem


def test_an_error_names_its_file(tmp_path: Path) -> None:
    path = tmp_path / "space.yaml"
    path.write_text("space: {id: demo}\nfoo: 1", encoding="utf-8")
    with pytest.raises(SpaceConfigError, match=r"space\.yaml:2:1: unknown key 'foo'"):
        load_space(path)
    path.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(SpaceConfigError, match="is not UTF-8 text"):
        load_space(path)
    with pytest.raises(SpaceConfigError, match="no such file"):
        load_space(tmp_path / "other.yaml")


@given(text=st.text(alphabet="space:{}[] id\n-&*!'\"#|>ab", max_size=60))
def test_any_text_is_a_space_or_an_error(text: str) -> None:
    try:
        assert isinstance(parse_space(text), SpaceConfig)
    except SpaceConfigError as error:
        assert error.problem  # noqa: PT017 - either outcome is right


@pytest.mark.parametrize(
    ("place", "where"),
    [
        (("participants", "ada"), ":3:8"),
        (("participants", "ada", "capabilities", 0), ":3:24"),
        (("participants", "ada", "agent"), ":3:8"),
        (("participants", "bob"), ":3:3"),
        (("models", "x"), ":1:1"),
    ],
)
def test_a_position_is_that_of_the_value_or_its_nearest_parent(
    tmp_path: Path, place: tuple[str | int, ...], where: str
) -> None:
    path = tmp_path / "space.yaml"
    path.write_text("space: {id: s}\nparticipants:\n  ada: {capabilities: [{kind: chat}]}\n")
    assert place_in(path, place) == f"{path}{where}"


def test_a_missing_file_has_no_line_numbers(tmp_path: Path) -> None:
    assert place_in(tmp_path / "none.yaml", ("space",)) == str(tmp_path / "none.yaml")


@pytest.mark.parametrize(
    "text",
    [
        "space: {id: s}\nparticipants:\n  ada: {}\n",
        "space: {id: s}\nparticipants:\n  ada:\n    capabilities:\n      - {kind: chat}\n\n# the end\n",
        (
            "participants:\n    ada:\n        agent:\n            system_prompt: |\n                Be kind.\n\n"
            "space: {id: s}\n"
        ),
        "space: {id: s}\nparticipants:\n  ada:",
        "space: {id: s}",
    ],
)
@pytest.mark.parametrize("name", ["bob", "no", "b:c", "ünal"])
def test_adding_a_participant_keeps_everything_else(text: str, name: str) -> None:
    changed = with_participant(text, name, {"agent": {"system_prompt": "a\nb: c"}, "auto_start": True})
    before, after = parse_space(text), parse_space(changed)
    assert list(after.participants) == [*before.participants, name]
    added = after.participants[name].section("agent")
    assert added is not None
    assert added.system_prompt == "a\nb: c"
    assert {key: after.participants[key] for key in before.participants} == before.participants
    kept = [line for line in changed.splitlines() if line in text.splitlines()]
    assert kept == text.splitlines()


@pytest.mark.parametrize(
    ("text", "settings", "said"),
    [
        ("space: {id: s}\nparticipants: {ada: {}}\n", {}, "2:1: 'participants' is written in one line"),
        ("space: {id: s}\nparticipants:\n  bob: {}\n", {}, "3:3: 'bob' already exists"),
        ("space: {id: s}\nparticipants:\n  ada: {}\n", {"comand": "x"}, "5:5: unknown key 'comand'"),
    ],
)
def test_an_impossible_addition_names_its_position(text: str, settings: dict[str, str], said: str) -> None:
    with pytest.raises(SpaceConfigError, match=said):
        with_participant(text, "bob", settings)


def test_places_of_one_file_are_found_by_reading_it_once(tmp_path: Path) -> None:
    path = tmp_path / "space.yaml"
    path.write_text("space: {id: s}\nparticipants:\n" + "".join(f"  p{number}: {{}}\n" for number in range(50)))
    before = positions_of.cache_info().misses
    assert [place_in(path, ("participants", f"p{number}")) for number in range(50)] == [
        f"{path}:{number + 3}:{6 + len(str(number))}" for number in range(50)
    ]
    assert positions_of.cache_info().misses == before + 1


MISTAKES = {
    "unquoted star": (
        "space: {id: a}\nparticipants:\n  ada: {capabilities: [{kind: *}]}",
        'space.yaml:3:31: * needs quotes; write "*"',
    ),
    "unquoted pattern": (
        "space: {id: a}\nparticipants:\n  ada:\n    capabilities:\n      - */list",
        'space.yaml:5:9: */list needs quotes; write "*/list"',
    ),
    "tab": ("space: {id: a}\nparticipants:\n\tada: {}", "space.yaml:3:1: a tab; indent with spaces"),
    "section without a colon": (
        "space: {id: a}\nparticipants:\n  coder\n    agent:\n      model: m",
        "space.yaml:3:3: 'coder' has no colon; write `coder:`",
    ),
    "bracket without a colon": (
        "space: {id: a}\nparticipants:\n  ada: {}\n  bob {}\n",
        "space.yaml:4:3: a colon is missing, write `bob: {}`",
    ),
    "key without a colon": (
        "space: {id: a}\nparticipants:\n  coder:\n    agent:\n      model gpt-4o",
        (
            "space.yaml:5:7: participants.coder.agent: must be a mapping, not 'model gpt-4o'; "
            "a colon is missing, write `model: gpt-4o`"
        ),
    ),
    "no space after a colon": (
        "space: {id:a}",
        "space.yaml:1:9: unknown key 'id:a' under space; a space is missing after the colon, write `id: a`",
    ),
    "key a level too high": (
        "space: {id: a}\nparticipants:\n  coder:\n    agent:\n    model: gpt-4o",
        ("space.yaml:5:5: unknown key 'model' under participants.coder; it belongs one level deeper, under 'agent'"),
    ),
    "key a level too deep": (
        "space: {id: a}\nparticipants:\n  coder:\n    agent:\n      auto_start: true",
        (
            "space.yaml:5:7: unknown key 'auto_start' under participants.coder.agent; "
            "it belongs one level higher, under participants.coder"
        ),
    ),
    "address without a scheme": (
        "space: {id: a}\nparticipants:\n  coder: {agent: {base_url: localhost:1234}}",
        (
            "space.yaml:3:29: participants.coder.agent.base_url: must be a URL like http://127.0.0.1:1234/v1, "
            "'rehearsal' or 'local', not 'localhost:1234'"
        ),
    ),
    "id with a slash": (
        "space: {id: my team/one}\nparticipants: {}",
        (
            "space.yaml:1:13: space.id: invalid characters: an id must not contain '/', '\\', '..', "
            "invisible characters, or spaces at either end"
        ),
    ),
    "variable": (
        'space: {id: a}\nparticipants:\n  coder: {agent: {base_url: "${URL}"}}',
        (
            "space.yaml:3:29: participants.coder.agent.base_url: must be a URL like http://127.0.0.1:1234/v1, "
            "'rehearsal' or 'local', not '${URL}'; ${URL} is not replaced here, write the value"
        ),
    ),
    "variable as a model": (
        'space: {id: a}\nparticipants:\n  coder: {agent: {model: "${MODEL}"}}',
        (
            "space.yaml:3:26: participants.coder.agent.model: must be the name of a model, such as gpt-4o, "
            "not '${MODEL}'; ${MODEL} is not replaced here, write the value"
        ),
    ),
    "name with a space": (
        "space: {id: a}\nparticipants:\n  my coder: {}",
        "space.yaml:3:3: participants.my coder: an id of a participant must not contain a space; write my-coder",
    ),
    "misspelt key of a compaction": (
        "space: {id: a}\nparticipants:\n  coder: {agent: {compaction: {aprove: [ada]}}}",
        "space.yaml:3:32: unknown key 'aprove' under participants.coder.agent.compaction (did you mean 'approve'?)",
    ),
}


@pytest.mark.parametrize(("text", "problem"), MISTAKES.values(), ids=MISTAKES.keys())
def test_common_mistake_is_explained_with_its_mend(text: str, problem: str) -> None:
    assert problem_of(text) == problem


def test_empty_agent_section_is_an_agent() -> None:
    config = parse_space("space: {id: a}\nparticipants:\n  coder:\n    agent:\n    auto_start: true")
    assert config.participants["coder"].type_key == "agent"
