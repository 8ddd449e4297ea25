"""Templates: which one is found, where values come from, and that secrets are never written."""

import json
from pathlib import Path

import pytest
from mew_spaces.config.loading import parse_space

from mew_agent.cli.space.templates import (
    Template,
    TemplateDescription,
    TemplateVariable,
    choose_values,
    find_templates,
    render,
)
from mew_agent.errors import ConfigError


def around(folder_name: str = "room", **environ: str) -> tuple[dict[str, str], dict[str, str]]:
    return {"dirname": folder_name, "username": "ada", "date": "2026-01-02"}, environ


def make_template(place: Path, name: str, **facts: object) -> Path:
    folder = place / name
    folder.mkdir(parents=True)
    (folder / "space.yaml").write_text("space: {id: x}\n")
    if facts:
        (folder / "template.json").write_text(json.dumps(facts))
    return folder


@pytest.mark.part("templates")
def test_built_in_templates_start_with_the_default(tmp_path: Path) -> None:
    found = find_templates(tmp_path, tmp_path)
    assert next(iter(found)) == "coder-agent"
    assert "demo" in found
    assert {one.origin for one in found.values()} == {"built-in"}


def test_local_template_overrides_own_and_built_in_ones(tmp_path: Path) -> None:
    home, folder = tmp_path / "home", tmp_path / "work"
    for name in ("demo", "mine"):
        make_template(home / ".mew" / "templates", name)
    make_template(folder / "templates", "mine")
    (folder / "templates" / "no-template").mkdir()
    found = find_templates(folder, home)
    assert (found["demo"].origin, found["mine"].origin) == ("yours", "local")
    assert "no-template" not in found


@pytest.mark.parametrize("template", find_templates(Path("none"), Path("none")).values(), ids=lambda one: one.name)
def test_built_in_templates_produce_valid_spaces(template: Template) -> None:
    facts = template.description()
    given = {"SPACE_NAME": 'a "quoted" room', "SPACE_DESCRIPTION": "x: y # z", "AGENT_MODEL": "m'\\n"}
    values = choose_values(facts.variables, given, *around(OPENAI_API_KEY="sk-secret"))
    text = render(template.text(), values, facts.variables, where="t")
    space = parse_space(text)
    assert space.space.id == 'a "quoted" room'
    assert space.space.description == "x: y # z"
    assert "sk-secret" not in text
    assert facts.description
    assert template.readme()
    programs = [one for one in space.participants.values() if one.command is not None]
    assert {(template.folder / one.args[0].removeprefix(".mew/")).is_file() for one in programs} <= {True}


def test_values_come_from_options_then_environment_then_defaults() -> None:
    variable = TemplateVariable(
        name="AGENT_MODEL", env_sources=("FIRST", "SECOND"), default="by ${username} on ${date}"
    )
    assert choose_values([variable], {"AGENT_MODEL": "flag"}, *around(FIRST="env"))["AGENT_MODEL"] == "flag"
    assert choose_values([variable], {}, *around(FIRST="", SECOND="env"))["AGENT_MODEL"] == "env"
    assert choose_values([variable], {}, *around())["AGENT_MODEL"] == "by ada on 2026-01-02"


def test_only_prompted_variables_are_asked_for() -> None:
    variables = [
        TemplateVariable(name="WHERE", default="here", prompt=True),
        TemplateVariable(name="QUIET", default="q"),
        TemplateVariable(name="AGENT_API_KEY", prompt=True, sensitive=True),
    ]
    requested: list[tuple[str, str]] = []

    def ask(variable: TemplateVariable, default: str) -> str:
        requested.append((variable.name, default))
        return "there"

    values = choose_values(variables, {}, *around(), ask)
    assert requested == [("WHERE", "here")]
    assert (values["WHERE"], values["QUIET"]) == ("there", "q")
    assert "AGENT_API_KEY" not in values


def test_rehearsal_model_sets_its_own_server() -> None:
    variables = [
        TemplateVariable(name="AGENT_MODEL"),
        TemplateVariable(name="AGENT_BASE_URL", env_sources=("AGENT_BASE_URL",)),
    ]
    values = choose_values(variables, {"AGENT_MODEL": "rehearsal"}, *around(AGENT_BASE_URL="http://x/v1"))
    assert values["AGENT_BASE_URL"] == "rehearsal"


@pytest.mark.parametrize(
    ("folder", "made"), [("my room", "my-room"), ("..", "space"), ("a/b", "a-b"), ("gateway", "space")]
)
def test_folder_name_becomes_a_valid_id(folder: str, made: str) -> None:
    variable = TemplateVariable(name="SPACE_NAME", default="${dirname}")
    assert choose_values([variable], {}, *around(folder))["SPACE_NAME"] == made


def test_invalid_given_name_is_refused() -> None:
    with pytest.raises(ConfigError, match="--name: 'a/b' is not a valid space id"):
        choose_values([], {"SPACE_NAME": "a/b"}, *around())


def test_secrets_are_left_empty() -> None:
    variables = [TemplateVariable(name="PIN", sensitive=True)]
    values = {"PIN": "1234", "DB_PASSWORD": "pw", "A": 'say "hi"', "EMPTY": ""}
    text = "{{PIN}}|{{PIN_JSON}}|{{DB_PASSWORD}}|{{OTHER_SECRET}}|{{ A }}|{{A_JSON}}|{{EMPTY_JSON}}"
    assert render(text, values, variables, where="t") == '|null|||say "hi"|"say \\"hi\\""|null'


def test_values_are_not_filled_twice() -> None:
    assert render("{{A}}", {"A": "{{B}}", "B": "x"}, [], where="t") == "{{B}}"


def test_unknown_variable_is_reported_with_its_line() -> None:
    with pytest.raises(ConfigError, match=r"t/space\.yaml:2: unknown variable 'NOPE' \(expected A\)"):
        render("x\n{{NOPE}}", {"A": ""}, [], where="t/space.yaml")


def test_template_without_a_description_has_none(tmp_path: Path) -> None:
    assert Template("x", make_template(tmp_path, "x"), "local").description() == TemplateDescription()


@pytest.mark.parametrize(("text", "said"), [("{", "cannot be read"), ('{"variables": [{}]}', "variables.0.name")])
def test_broken_description_names_its_file(tmp_path: Path, text: str, said: str) -> None:
    folder = make_template(tmp_path, "x")
    (folder / "template.json").write_text(text)
    with pytest.raises(ConfigError, match=said) as caught:
        Template("x", folder, "local").description()
    assert caught.value.where == str(folder / "template.json")
