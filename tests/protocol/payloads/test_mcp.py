"""Model Context Protocol messages in envelopes."""

import pytest
from mew_protocol.payloads.mcp import Proposal, Request, Response
from pydantic import ValidationError


@pytest.mark.parametrize("model", [Request, Proposal])
def test_a_request_names_its_method(model: type[Request] | type[Proposal]) -> None:
    assert model.model_validate({"method": "tools/list"}).method == "tools/list"
    with pytest.raises(ValidationError):
        model.model_validate({"method": ""})


def test_a_response_has_any_result_or_an_error() -> None:
    assert Response.model_validate({"result": 3}).result == 3
    failed = Response.model_validate({"error": {"code": -32601, "message": "no"}, "jsonrpc": "2.0", "id": "7"})
    assert failed.error is not None
    assert failed.error.code == -32601
