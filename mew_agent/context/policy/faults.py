"""[pure] What is wrong with a policy as somebody wrote it, in words for whoever wrote it.

Puts what pydantic found into the terms of a file: its places, its keys, its ways to write a value. It finds no fault.
"""

from collections.abc import Sequence

from pydantic_core import ErrorDetails

from mew_agent.context.policy.definition import Policy
from mew_agent.context.policy.threshold import PolicyPart
from mew_agent.suggestions import did_you_mean

BESIDE_THE_KEYS = ("based_on", "settings")
"""What a file may say beside the keys of a policy."""


def first_fault(found: Sequence[ErrorDetails]) -> tuple[str | None, str]:
    """The fault to tell: the policy's own key that it stands under, None for the whole, and a sentence.

    A key that nobody knows comes first, as it may be the other spelling of one that is missing.
    """
    detail = next((detail for detail in found if detail["type"] == "extra_forbidden"), found[0])
    return (str(detail["loc"][0]) if detail["loc"] else None), _sentence(detail)


def _sentence(detail: ErrorDetails) -> str:
    """Where inside of the policy, and what was expected there."""
    place, said = _place(detail["loc"]), detail["msg"].removeprefix("Value error, ").replace("Input should", "should")
    match detail["type"]:
        case "missing":
            return f"'{place}' is missing"
        case "extra_forbidden":
            *outer, key = detail["loc"]
            known = (*Policy.model_fields, *BESIDE_THE_KEYS) if not outer else _inner_keys()
            inside = f" in {_place(outer)}" if outer else ""
            return f"unknown key '{key}'{inside}{did_you_mean(str(key), known)}"
        case "union_tag_not_found":
            said = f"it needs {detail['ctx']['discriminator'].replace(chr(39), '`')}"
        case "union_tag_invalid":
            asked = detail["ctx"]
            said = f"there is no {asked['discriminator'].strip(chr(39))} '{asked['tag']}'; {asked['expected_tags']} are"
        case "tuple_type":
            said = "should be a list"
        case "too_short":
            said = "should not be empty"
        case "model_type" | "model_attributes_type":
            said = "should be a mapping"
        case _:
            pass
    return f"{place}: {said}" if place else said


def _place(loc: Sequence[int | str]) -> str:
    """`rules[0].when` for its parts. The kind of a rule, which pydantic counts as one, is not written as a key."""
    told = [part for at, part in enumerate(loc) if not _is_kind(loc, at)]
    return "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in told).lstrip(".")


def _is_kind(loc: Sequence[int | str], at: int) -> bool:
    return (at == 2 and loc[0] == "rules") or (at > 0 and loc[at - 1] == "repeat")


def _inner_keys() -> set[str]:
    models = [model for model in PolicyPart.__subclasses__() if model is not Policy]
    return {name for model in models for name in model.model_fields}
