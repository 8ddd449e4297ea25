"""`meter:` in a space.yaml: a relay that reports the context of an external agent."""

from mew_settings.participant_types import AddedBy, ParticipantStart, ParticipantType, ProgramStart

from mew_agent.parts.meter.settings import MeterSettings


class MeterType(ParticipantType):
    """Starts `mew meter`."""

    settings = MeterSettings
    answers_chats = False
    with_variables = ("upstream",)
    added_by = AddedBy("--meter", "URL", "meter", "Meter an agent that calls the model server at URL.")

    def start(self, start: ParticipantStart) -> ProgramStart:
        """Return the command with the address of the model server, and the window if it is known."""
        settings = start.settings
        window = ("--window", str(settings["window"])) if "window" in settings else ()
        options = ("--upstream", settings["upstream"], "--listen", settings["listen"], *window)
        return ProgramStart(start.program("mew", ("meter", *options, *start.joins)))


METER = MeterType()
