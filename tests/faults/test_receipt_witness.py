"""The witness of receipts finds each kind of receipt that contradicts the prompts, and accepts those that are true."""

from dataclasses import dataclass

import pytest
from mew_protocol.payloads.read_receipts import PromptCall, ReadReceipt

from tests.faults.receipt_witness import SUMMARY, Change, Chat, Claim, ReceiptWitness

TEXT = "The port of Q00001 is 8080. Part 1 of Q00001 is amber."
CALL = PromptCall(number=1, id="c1", at="t10")


@dataclass
class Request:
    """A request to a model whose reply is complete."""

    received_at: str
    status: int | None = 200
    chunks_sent: int = 9
    completion_tokens: int | None = 30
    is_complete: bool = True


def seen(*, follows: bool = False) -> ReceiptWitness:
    """Prompts 0 to 4: without the chat, whole, whole, in the summary, without it."""
    witness = ReceiptWitness(("a0",))
    witness.add(Chat("m1", "s0", "a0", "Q00001", TEXT, follows, confirmed_at="t01"))
    texts = (("Hello.",), (f"s0: {TEXT}",), (TEXT, "And?"), (f"{SUMMARY}\n- The port of Q00001 is 8080 [m1]",), ("?",))
    for number, said in enumerate(texts):
        witness.prompt("a0", Request(f"t{number}1"), said)
    witness.agents["a0"].changes += [Change("t22", "t23", "compact"), Change("t32", "t33", "clear")]
    witness.agents["a0"].answers["m1"] = ("answer", "t12")
    return witness


def judged(
    witness: ReceiptWitness, at: str, state: str, form: str, call: PromptCall | None = CALL, trace: str | None = None
) -> list[str]:
    """Judge one receipt. Returns the first lines of what is wrong."""
    answer = "answer" if state == "answered" else None
    values = {"id": "m1", "participant": "a0", "sender": "s0", "state": state, "in_context": form, "basis": "prompt"}
    receipt = ReadReceipt.model_validate({**values, "call": call, "answer": answer, "summary": trace})
    witness.claims.append(Claim("a0", receipt, at, at, "asked"))
    witness.judge()
    return [one.partition("\n")[0] for one in witness.wrong]


@pytest.mark.parametrize(
    ("at", "state", "form", "call"),
    [
        ("t05", "queued", "no", None),
        ("t12", "in_prompt", "whole", CALL),
        ("t15", "answered", "whole", CALL),
        ("t24", "answered", "summary", CALL),
        ("t34", "answered", "recoverable", CALL),
        ("t105", "queued", "unknown", None),
    ],
)
def test_the_witness_accepts_true_receipts(at: str, state: str, form: str, call: PromptCall | None) -> None:
    assert judged(seen(), at, state, form, call) == []


@pytest.mark.parametrize(
    ("at", "state", "form", "call", "problem"),
    [
        ("t22", "queued", "no", None, "names no call, but prompt 1 was read"),
        ("t22", "in_prompt", "whole", CALL, "says in_prompt, but it was answered"),
        ("t25", "answered", "whole", CALL, "says whole, but prompts have it 2 whole, 3 summary"),
        ("t21", "answered", "recoverable", CALL, "says recoverable, but prompts have it 2 whole, 3 summary"),
        ("t34", "answered", "summary", CALL, "says summary, but prompts have it 3 summary, 4 out"),
        ("t22", "answered", "whole", PromptCall(number=1, id="c0", at="t00"), "call 1 of t00 is not the first"),
        ("t22", "answered", "whole", PromptCall(number=2, id="c2", at="t20"), "call 2 of t20 is not the first"),
        ("t04", "unknown", "unknown", None, "the agent does not know it"),
        ("t04", "queued", "whole", None, "says whole although no call read it"),
        ("t15", "answered", "no", CALL, "says no although a call read it"),
        ("t001", "in_prompt", "whole", CALL, "call 1 of t10 is not the first"),
    ],
)
def test_the_witness_finds_false_receipts(
    at: str, state: str, form: str, call: PromptCall | None, problem: str
) -> None:
    (found, *_) = judged(seen(), at, state, form, call)
    assert problem in found


@pytest.mark.parametrize(("failed_at", "problems"), [("t02", []), ("t06", ["is unknown (None) without a cause"])])
def test_an_unknown_form_needs_a_cause(failed_at: str, problems: list[str]) -> None:
    witness = ReceiptWitness(("a0",))
    witness.agents["a0"].failures.append(failed_at)
    witness.add(Chat("m1", "s0", "a0", "Q00001", TEXT, follows=False, confirmed_at="t01"))
    for number in range(2):
        witness.prompt("a0", Request(f"t{number}1"), ("Hello.",))
    assert judged(witness, "t05", "queued", "unknown", None) == problems


@pytest.mark.parametrize("ended", ["kills", "failures"])
def test_an_agent_may_name_the_call_after_one_that_ended_but_never_two_calls(ended: str) -> None:
    witness = seen()
    getattr(witness.agents["a0"], ended).append("t13")
    second = PromptCall(number=2, id="c2", at="t20")
    assert judged(witness, "t22", "answered", "whole", second) == []
    assert judged(witness, "t23", "answered", "whole", CALL) == ["an earlier receipt named another call, c2"]


def test_a_summary_with_only_the_name_of_a_message_does_not_quote_it() -> None:
    witness = seen()
    witness.agents["a0"].prompts[3].summary = "Names: Q00001, Q00002"
    assert judged(witness, "t24", "answered", "summary", trace="mentioned") == []
    (found,) = judged(witness, "t25", "answered", "summary", trace="quoted")
    assert "says summary, but prompts have it 2 whole, 3 named" in found


def test_a_summary_that_cites_an_item_names_its_message() -> None:
    witness = seen()
    witness.item("item-7", f"ada: {TEXT}")
    cited = f"{SUMMARY}\n- Something was decided. [item-7]"
    for number in (4, 5):
        witness.prompt("a0", Request(f"t{number}1"), (cited, "And?"))
    assert judged(witness, "t45", "answered", "summary", trace="mentioned") == []
    assert "says summary" in judged(witness, "t45", "answered", "summary", trace="quoted")[0]


@pytest.mark.parametrize(("at", "form"), [("t12", "shortened"), ("t32", "reference")])
def test_a_result_without_a_mark_is_known_by_its_item(at: str, form: str) -> None:
    witness = ReceiptWitness(("a0",))
    witness.expect(Chat("", "s0", "", "Q50001", RESULT, follows=False, is_result=True))
    witness.sent("Q50001", "m1", "a0", "t01")
    cut, cleared = "[... about 90 tokens are omitted; item-7 ...]", "[Cleared; kept as item-7]"
    for number, text in enumerate(("", cut, cut, cleared, cleared)):
        witness.prompt("a0", Request(f"t{number}1"), ("Hello.",), (("c1", text),) if text else ())
    witness.item("item-7", RESULT)
    assert judged(witness, at, "in_prompt", form) == []


def test_followers_and_requesters_get_the_same_receipt() -> None:
    (found,) = judged(seen(follows=True), "t34", "answered", "recoverable")
    assert found == "its follower was told None at last"


RESULT = "Decision: the station of Q50001 is 7. Reading 0 of Q50001 is amber."


@pytest.mark.parametrize(
    ("at", "form", "problems"),
    [
        ("t12", "whole", []),
        ("t22", "shortened", []),
        ("t32", "reference", []),
        ("t22", "whole", ["says whole, but prompts have it 2 shortened, 3 reference; changes between: []"]),
        ("t32", "shortened", ["says shortened, but prompts have it 3 reference, 4 reference; changes between: []"]),
    ],
)
def test_results_of_tools_are_judged_by_their_calls(at: str, form: str, problems: list[str]) -> None:
    witness = ReceiptWitness(("a0",))
    witness.expect(Chat("", "s0", "", "Q50001", RESULT, follows=False, is_result=True))
    witness.sent("Q50001", "m1", "a0", "t01")
    witness.agents["a0"].answers["m1"] = ("answer", "t99")
    texts = ("", RESULT, "Decision: the station of Q50001 [...]", "[Tool result cleared]", "[Tool result cleared]")
    for number, text in enumerate(texts):
        witness.prompt("a0", Request(f"t{number}1"), ("Hello.",), (("c1", text),) if text else ())
    assert judged(witness, at, "in_prompt", form) == problems


@pytest.mark.parametrize(
    ("held", "problems"), [(False, []), (True, ["the agent does not know it, although a prompt held it"])]
)
def test_a_result_that_no_prompt_held_may_be_unknown(held: bool, problems: list[str]) -> None:
    witness = ReceiptWitness(("a0",))
    witness.expect(Chat("", "s0", "", "Q50001", RESULT, follows=False, is_result=True))
    witness.sent("Q50001", "m1", "a0", "t01")
    witness.prompt("a0", Request("t11"), ("Hello.",), (("c1", RESULT),) if held else ())
    assert judged(witness, "t12", "unknown", "unknown", None) == problems


@pytest.mark.parametrize(
    ("form", "cause"),
    [("unknown", "the server shortened a prompt with it"), ("whole", "the server left it out unnoticed")],
)
def test_items_the_server_dropped_may_be_unknown_or_unnoticed(form: str, cause: str) -> None:
    witness = seen()
    witness.agents["a0"].changes.clear()
    del witness.agents["a0"].prompts[3:]
    for number in (3, 4):
        witness.prompt("a0", Request(f"t{number}1"), ("And?",), left_out=(TEXT,))
    assert judged(witness, "t35", "answered", form) == []
    assert (witness.unknown + witness.not_judged)[cause] == 1
