"""How the gateway's own errors speak."""

from pathlib import Path

from mew_spaces.errors import PortInUse, SpaceConfigError, SpacesError, TokenError


def test_a_config_error_names_its_known_place() -> None:
    assert str(SpaceConfigError(Path("space.yaml"), "odd", 7, 5)) == "space.yaml:7:5: odd"
    assert str(SpaceConfigError(Path("space.yaml"), "odd")) == "space.yaml: odd"


def test_a_port_in_use_is_reported_with_advice() -> None:
    assert "8080" in str(PortInUse("127.0.0.1", 8080))
    assert "--port" in str(PortInUse("127.0.0.1", 8080))


def test_all_are_of_one_family() -> None:
    assert issubclass(SpaceConfigError, SpacesError)
    assert issubclass(TokenError, SpacesError)
    assert issubclass(PortInUse, SpacesError)
