"""Entry points of installed packages: found, loaded, left out when their folder is gone."""

import importlib.metadata
import sys
from pathlib import Path

import pytest
from mew_settings.plugins import TwoPlugins, entry_points, load_only, load_table


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of installed packages, first on `sys.path`."""
    monkeypatch.syspath_prepend(tmp_path)
    return tmp_path


def install(site: Path, name: str, entries: str) -> None:
    """Install a package of one module as pip does."""
    (site / f"{name}.py").write_text("VALUE = 7\n")
    metadata = site / f"{name}-1.0.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
    (metadata / "entry_points.txt").write_text(entries)


def test_entries_of_another_package_are_loaded(site: Path) -> None:
    install(
        site, "other_part", "[console_scripts]\nx = a:b\n\n[mew_test.table]\n# why\nseven = other_part:VALUE [extra]\n"
    )
    assert load_table("mew_test.table") == {"seven": 7}


@pytest.fixture
def later(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Another folder of installed packages, last on `sys.path`."""
    folder = tmp_path_factory.mktemp("later")
    monkeypatch.setattr(sys, "path", [*sys.path, str(folder)])
    return folder


def test_first_package_on_the_path_wins(site: Path, later: Path, caplog: pytest.LogCaptureFixture) -> None:
    install(site, "first_part", "[mew_test.table]\nsame = first_part:VALUE\n")
    install(later, "second_part", "[mew_test.table]\nsame = second_part:VALUE\n")
    assert entry_points("mew_test.table")["same"].module == "first_part"
    assert "'same' of 'mew_test.table' is that of first-part, not of second-part" in caplog.text


def test_a_package_that_is_installed_twice_counts_once(site: Path, later: Path) -> None:
    for folder in (site, later):
        install(folder, "first_part", "[mew_test.table]\none = first_part:VALUE\n")
    install(later, "gone_part", "[mew_test.table]\none = no_such_module:VALUE\n")
    assert load_only("mew_test.table") == 7


def test_remains_of_a_package_do_not_count_as_a_second_one(site: Path) -> None:
    install(site, "first_part", "[mew_test.table]\none = first_part:VALUE\n")
    left = site / "~irst_part-0.9.dist-info"
    left.mkdir()
    (left / "entry_points.txt").write_text("[mew_test.table]\none = first_part:VALUE\n")
    assert load_only("mew_test.table") == 7


@pytest.mark.parametrize("name", ["one", "two"])
def test_two_packages_in_a_table_of_one_entry_are_an_error(site: Path, later: Path, name: str) -> None:
    install(site, "first_part", "[mew_test.table]\none = first_part:VALUE\n")
    install(later, "second_part", f"[mew_test.table]\n{name} = second_part:VALUE\n")
    with pytest.raises(TwoPlugins, match=r"first-part and second-part both add to 'mew_test\.table'"):
        load_only("mew_test.table")


@pytest.mark.parametrize("module", ["gone_part", "gone_part.inner.module"])
def test_an_entry_of_a_removed_folder_is_left_out(site: Path, module: str) -> None:
    install(site, "kept_part", f"[mew_test.table]\ngone = {module}:VALUE\nkept = kept_part:VALUE\n")
    assert load_table("mew_test.table") == {"kept": 7}


@pytest.mark.parametrize(
    ("source", "problem"), [("import no_such_module\n", "No module named 'no_such_module'"), ("", "'VALUE'")]
)
def test_a_broken_entry_is_left_out_with_a_warning(
    site: Path, source: str, problem: str, caplog: pytest.LogCaptureFixture
) -> None:
    install(site, "broken_part", "[mew_test.table]\nbad = broken_part:VALUE\n")
    (site / "broken_part.py").write_text(source)
    sys.modules.pop("broken_part", None)
    assert load_table("mew_test.table") == {}
    assert "entry point 'bad = broken_part:VALUE' of 'mew_test.table' cannot be loaded" in caplog.text
    assert problem in caplog.text


def test_entries_equal_those_of_the_standard_library() -> None:
    for group in ("console_scripts", "pytest11"):
        expected = {one.name: (one.module, one.attr or "") for one in importlib.metadata.entry_points(group=group)}
        assert {name: (one.module, one.attribute) for name, one in entry_points(group).items()} == expected
