"""The boundary between a participant and its parts."""

from mew_agent.participant.messenger import Voice
from mew_agent.participant.participant import Participant


def test_a_participant_has_the_voice_that_its_parts_need() -> None:
    voice: Voice = Participant("ws://h", space="demo", id="ada", token="t")
    assert isinstance(voice, Voice)
