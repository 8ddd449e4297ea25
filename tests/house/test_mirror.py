"""Each source module has its test file at the mirrored place, and says what it owns."""

from tests.house.conftest import ROOT, Module

WITHOUT_A_MIRROR = {"_version.py", "__main__.py", "__init__.py"}
MAX_SOURCE_LINES = 500
MAX_TEST_LINES = 800


def test_every_module_has_its_test_file(modules: list[Module]) -> None:
    """A package of small declarations (`protocol/payloads`) may be tested together, in a file of its name."""
    missing = []
    for module in modules:
        if not module.has_code or module.path.name in WITHOUT_A_MIRROR:
            continue
        mirror = ROOT / "tests" / module.path.parent / f"test_{module.path.name}"
        together = ROOT / "tests" / module.path.parent.parent / f"test_{module.path.parent.name}.py"
        if not mirror.exists() and not together.exists():
            missing.append(mirror.relative_to(ROOT).as_posix())
    assert not missing, f"modules without a test file: {missing}"


def test_every_module_says_what_it_owns(modules: list[Module]) -> None:
    silent = [module.path.as_posix() for module in modules if module.has_code and not module.docstring]
    assert not silent


def test_no_file_grew_past_its_ceiling() -> None:
    grown = []
    for folder, ceiling in (
        ("protocol", MAX_SOURCE_LINES),
        ("spaces", MAX_SOURCE_LINES),
        ("mew_agent", MAX_SOURCE_LINES),
        ("tests", MAX_TEST_LINES),
    ):
        for file in (ROOT / folder).rglob("*.py"):
            lines = len(file.read_text(encoding="utf-8").splitlines())
            if lines > ceiling:
                grown.append(f"{file.relative_to(ROOT)}: {lines}")
    assert not grown
