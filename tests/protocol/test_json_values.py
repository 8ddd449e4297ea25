"""Reading decoded JSON whose shape is not known."""

import pytest
from mew_protocol.json_values import object_at, objects_at, value_at

BODY = {"params": {"name": "add", "arguments": {"a": 1}, "items": [{"id": 1}, "text", {"id": 2}]}}


def test_a_path_leads_to_the_value() -> None:
    assert value_at(BODY, "params", "name") == "add"
    assert value_at("alone") == "alone"


@pytest.mark.parametrize("keys", [("absent",), ("absent", "name"), ("params", "name", "deeper")])
def test_a_path_that_leads_nowhere_reads_as_empty(keys: tuple[str, ...]) -> None:
    assert value_at(BODY, *keys) is None
    assert object_at(BODY, *keys) == {}
    assert objects_at(BODY, *keys) == []


def test_a_part_of_another_type_reads_as_empty() -> None:
    assert object_at(BODY, "params", "items") == {}
    assert objects_at(BODY, "params", "arguments") == []


def test_a_list_of_objects_loses_its_other_entries() -> None:
    assert objects_at(BODY, "params", "items") == [{"id": 1}, {"id": 2}]
