"""The parameters of HTTP routes."""

import pytest
from mew_spaces.gateway.operations import Parameter


@pytest.mark.parametrize(
    ("text", "number"), [("1", 1), ("50", 50), ("0", None), ("51", None), ("x", None), ("", None), ("²", None)]
)
def test_a_number_is_parsed_within_its_bounds(text: str, number: int | None) -> None:
    assert Parameter("limit", "", minimum=1, maximum=50).parse_number(text) == number
