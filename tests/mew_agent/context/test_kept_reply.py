"""The reply of the newest call: what it is of the present figure, and what of it is never sent again."""

from mew_agent.context.kept_reply import KeptReply
from mew_agent.context.measures import Measure
from mew_agent.model.usage import Usage
from mew_agent.tokens.projection import Calibration

CALIBRATION = Calibration()


def test_only_the_awaited_item_is_the_reply() -> None:
    reply = KeptReply()
    assert not reply.enter(Measure(3, 10.0), CALIBRATION)
    reply.reported(Usage(100, 50, 150))
    assert reply.enter(Measure(4, 10.0, known_tokens=50), CALIBRATION)
    assert not reply.enter(Measure(5, 10.0), CALIBRATION)
    assert (reply.tokens, reply.hidden_tokens, reply.seq) == (50, 0, 4)
    assert reply.is_in(4, 4)
    assert not reply.is_in(5, 9)


def test_what_of_it_is_not_sent_again_is_hidden() -> None:
    reply = KeptReply()
    reply.reported(Usage(100, 20, 180))
    reply.enter(Measure(0, 10.0, known_tokens=20), CALIBRATION)
    assert (reply.tokens, reply.hidden_tokens) == (80, 60)


def test_of_a_reply_whose_size_nobody_told_its_projection_is_visible_and_never_more_than_was_reported() -> None:
    for features, hidden in ((30.0, 50), (500.0, 0)):
        reply = KeptReply()
        reply.reported(Usage(100, 80, 180))
        reply.enter(Measure(0, features), CALIBRATION)
        assert reply.hidden_tokens == hidden


def test_a_total_below_its_prompt_leaves_nothing_for_the_reply() -> None:
    reply = KeptReply()
    reply.reported(Usage(600, 1, 500))
    assert reply.tokens == 0


def test_a_forgotten_reply_is_no_part_of_anything() -> None:
    reply = KeptReply(80, 60, 4)
    reply.forget()
    assert (reply.tokens, reply.hidden_tokens, reply.seq) == (0, 0, None)
    assert not reply.is_in(0, 9)
