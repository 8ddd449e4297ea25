"""Lists of tools that peers send to other participants."""

from typing import Any

import pytest
from mew_protocol.envelope import Envelope

from mew_agent.participant.discovery import MAX_OBSERVED_REQUESTS, ObservedListings

TOOLS = {"result": {"tools": [{"name": "add"}], "_meta": {"mew/lists": ["resources"]}}}


def request(name: str = "r", *, to: tuple[str, ...] = ("sums",), method: str = "tools/list", **params: Any) -> Envelope:
    payload = {"method": method, "params": params}
    return Envelope.write("mcp/request", id=name, ts="t", sender="bob", payload=payload, to=to)


def response(*about: str, sender: str = "sums", payload: Any = TOOLS) -> Envelope:
    return Envelope.write("mcp/response", id="a", ts="t", sender=sender, payload=payload, correlation_id=about)


def reported(requested: Envelope, answered: Envelope) -> list[tuple[str, list[str], set[str]]]:
    observed = ObservedListings()
    observed.add_request(requested)
    return [
        (peer, [tool.name for tool in listing.offers], listing.others)
        for peer, listing in observed.listings_in(answered)
    ]


def test_response_to_another_participant_gives_the_peers_list() -> None:
    assert reported(request(), response("other", "r")) == [("sums", ["add"], set({"resources"}))]


@pytest.mark.parametrize(
    ("requested", "answered"),
    [
        pytest.param(request(), response("another"), id="another answer"),
        pytest.param(request(), response("r", sender="eve"), id="a stranger's answer"),
        pytest.param(request(cursor="x"), response("r"), id="a later page"),
        pytest.param(request(), response("r", payload={"result": {"tools": [], "nextCursor": "x"}}), id="one of pages"),
        pytest.param(request(), response("r", payload={"error": {"code": -1, "message": "no"}}), id="an error"),
        pytest.param(request(method="tools/call"), response("r"), id="another method"),
        pytest.param(request(to=("sums", "words")), response("r"), id="asked of two"),
        pytest.param(request(to=()), response("r"), id="asked of everybody"),
    ],
)
def test_incomplete_or_forged_lists_are_not_used(requested: Envelope, answered: Envelope) -> None:
    assert reported(requested, answered) == []


def test_each_list_is_used_once_and_forged_ones_do_not_count() -> None:
    observed = ObservedListings()
    observed.add_request(request())
    assert list(observed.listings_in(response("r", sender="eve"))) == []
    assert len(list(observed.listings_in(response("r")))) == 1
    assert list(observed.listings_in(response("r"))) == []


def test_oldest_unanswered_requests_are_forgotten() -> None:
    observed = ObservedListings()
    for number in range(MAX_OBSERVED_REQUESTS + 1):
        observed.add_request(request(str(number)))
    assert list(observed.listings_in(response("0"))) == []
    assert len(list(observed.listings_in(response("1")))) == 1
