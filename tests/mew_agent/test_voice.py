"""The boundary between a participant and its parts."""

from mew_agent.participant import Participant
from mew_agent.voice import Voice


def test_a_participant_has_the_voice_that_its_parts_need() -> None:
    voice: Voice = Participant("ws://h", space="demo", id="ada", token="t")
    assert isinstance(voice, Voice)
