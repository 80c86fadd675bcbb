# SPDX-License-Identifier: Apache-2.0
"""The two implementations: what is built is what is listed, and the switch chooses between them."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
import tomllib
from pathlib import Path
from types import ModuleType

import pytest

from penstock import _compiled

ROOT = Path(__file__).resolve().parent.parent

REPORT = """
import importlib, json, sys
from penstock import _compiled
modules = {name: importlib.import_module(name) for name in _compiled.hot_modules()}
print(json.dumps([_compiled.implementation(), sorted({module.is_compiled() for module in modules.values()})]))
"""

built = pytest.mark.skipif(
    any(_compiled.extension_path(module) is None for module in _compiled.hot_modules()),
    reason="the hot modules are not compiled here",
)


def load_setup() -> ModuleType:
    spec = importlib.util.spec_from_file_location("penstock_setup", ROOT / "setup.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def run_python(code: str, **environment: str) -> str:
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("PENSTOCK_")}
    done = subprocess.run(
        [sys.executable, "-c", code],
        env=inherited | environment,
        capture_output=True,
        text=True,
        check=True,
        timeout=300,
    )
    return done.stdout.strip()


def test_saying_what_runs_imports_nothing_that_an_extra_brings() -> None:
    code = """
import sys
sys.modules["opentelemetry"] = None  # as where it is not installed
from penstock import _compiled
print(_compiled.implementation(), any(name.startswith("penstock.watching") for name in sys.modules))
"""
    assert run_python(code, PENSTOCK_PURE="1") == "pure False"


def test_hot_modules_are_the_ones_on_disk() -> None:
    setup = load_setup()
    assert sorted(_compiled.hot_modules()) == [setup.module_name(path) for path in setup.hot_sources()]


def test_the_type_checker_knows_all_hot_modules() -> None:
    """Its settings are the one place where they are listed: it takes no pattern for the end of a name."""
    config = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    (listed,) = (
        override["module"]
        for override in config["tool"]["mypy"]["overrides"]
        if "untyped-decorator" in override.get("disable_error_code", ())
    )
    assert sorted(listed) == sorted(_compiled.hot_modules())


def test_each_hot_module_has_its_source_and_can_say_what_it_is() -> None:
    for module in _compiled.hot_modules():
        assert "def is_compiled()" in _compiled.source_path(module).read_text(), module


@built
@pytest.mark.skipif(_compiled.pure_wanted(), reason="this run does not use the extensions")
def test_extensions_are_not_older_than_their_sources() -> None:
    assert _compiled.stale_extensions() == [], "run `make build`"


@built
def test_extensions_are_preferred() -> None:
    assert run_python(REPORT) == '["compiled", [true]]'


@pytest.mark.parametrize("value", ["1", "yes", "true"])
def test_switch_loads_the_sources(value: str) -> None:
    assert run_python(REPORT, PENSTOCK_PURE=value) == '["pure", [false]]'


@built
@pytest.mark.parametrize("value", ["", "0", "no", "False"])
def test_switch_turned_off_changes_nothing(value: str) -> None:
    assert run_python(REPORT, PENSTOCK_PURE=value) == '["compiled", [true]]'


def test_finder_answers_for_hot_modules_alone() -> None:
    assert _compiled.PureSourceFinder.find_spec("penstock.errors") is None
    assert _compiled.PureSourceFinder.find_spec("json") is None
    for module in _compiled.hot_modules():
        spec = _compiled.PureSourceFinder.find_spec(module)
        assert spec is not None
        assert spec.origin == str(_compiled.source_path(module))


def test_partly_built_is_called_mixed(monkeypatch: pytest.MonkeyPatch) -> None:
    first = _compiled.hot_modules()[0]
    monkeypatch.setattr(_compiled, "is_compiled", lambda module: module == first)
    assert _compiled.implementation() == "mixed"


def test_edited_source_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source, extension = tmp_path / "hot_cy.py", tmp_path / "hot_cy.so"
    for path, changed in ((source, 200), (extension, 100)):
        path.touch()
        os.utime(path, (changed, changed))
    monkeypatch.setattr(_compiled, "hot_modules", lambda: ("penstock.hot_cy",))
    monkeypatch.setattr(_compiled, "source_path", lambda _: source)
    monkeypatch.setattr(_compiled, "extension_path", lambda _: extension)
    assert _compiled.stale_extensions() == ["penstock.hot_cy"]
    os.utime(extension, (300, 300))
    assert _compiled.stale_extensions() == []
    signatures = tmp_path / "hot_cy.pxd"
    signatures.touch()
    os.utime(signatures, (400, 400))
    assert _compiled.stale_extensions() == ["penstock.hot_cy"]


def test_a_build_is_needed_after_an_edit_of_any_module(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They know each other's layout: one that was not edited may have to be compiled, too."""
    for name, changed in (("a_cy.py", 100), ("a_cy.so", 300), ("b_cy.py", 100), ("b_cy.so", 250)):
        (tmp_path / name).touch()
        os.utime(tmp_path / name, (changed, changed))
    monkeypatch.setattr(_compiled, "hot_modules", lambda: ("a_cy", "b_cy"))
    monkeypatch.setattr(_compiled, "source_path", lambda name: tmp_path / f"{name}.py")
    monkeypatch.setattr(_compiled, "extension_path", lambda name: tmp_path / f"{name}.so")
    assert _compiled.up_to_date()
    os.utime(tmp_path / "a_cy.py", (270, 270))  # older than its own extension, newer than the other's
    assert not _compiled.up_to_date()
    os.utime(tmp_path / "a_cy.py", (100, 100))
    (tmp_path / "inline_cy.pxd").touch()  # which has no module of its own
    assert not _compiled.up_to_date()
    os.utime(tmp_path / "inline_cy.pxd", (100, 100))
    assert _compiled.up_to_date()
    monkeypatch.setattr(
        _compiled, "extension_path", lambda name: tmp_path / "a_cy.so" if name == "a_cy" else None
    )
    assert not _compiled.up_to_date()


def test_build_can_be_switched_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PENSTOCK_DISABLE_EXT", "1")
    monkeypatch.delenv("PENSTOCK_REQUIRE_EXT", raising=False)
    assert load_setup().extensions() == []


def test_build_switches_that_contradict_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PENSTOCK_DISABLE_EXT", "1")
    monkeypatch.setenv("PENSTOCK_REQUIRE_EXT", "1")
    with pytest.raises(SystemExit, match="contradict"):
        load_setup().extensions()
