"""Plug-in discovery: what a person sees when a parallelizer is unknown, broken, or claimed twice."""

from importlib.metadata import EntryPoint

import pytest

from tangram_sim import registry
from tangram_sim.errors import TangramError, UnknownNameError


class _Distribution:
    name = "their-plugin"


def _install(monkeypatch, *values: tuple[str, str]) -> None:
    found = [EntryPoint(name, value, registry.PARALLELIZERS)._for(_Distribution()) for name, value in values]
    monkeypatch.setattr(
        registry, "entry_points", lambda group: [entry for entry in found if entry.group == group]
    )


def test_names_are_listed_without_importing_anything(monkeypatch):
    _install(monkeypatch, ("zeta", "no_such_module:X"), ("alpha", "collections:OrderedDict"))
    assert registry.names(registry.PARALLELIZERS) == ("alpha", "zeta")


def test_a_known_name_gives_the_registered_class(monkeypatch):
    from collections import OrderedDict

    _install(monkeypatch, ("alpha", "collections:OrderedDict"))
    assert registry.parallelizer("alpha") is OrderedDict


def test_an_unknown_name_shows_the_nearest(monkeypatch):
    _install(monkeypatch, ("grid", "collections:OrderedDict"))
    with pytest.raises(UnknownNameError, match=r"'gird'.*Nearest: grid"):
        registry.parallelizer("gird")


def test_an_installation_without_entry_points_says_what_to_type(monkeypatch):
    _install(monkeypatch)
    with pytest.raises(UnknownNameError, match="pip install"):
        registry.parallelizer("grid")


@pytest.mark.parametrize(
    ("value", "problem"),
    [("no_such_module_at_all:X", "No module named"), ("collections:NoSuchClass", "NoSuchClass")],
)
def test_a_plugin_that_fails_to_import_names_its_distribution(monkeypatch, value, problem):
    _install(monkeypatch, ("broken", value))
    with pytest.raises(TangramError, match="their-plugin") as caught:
        registry.parallelizer("broken")
    assert problem in str(caught.value)


def test_a_plugin_whose_module_raises_anything_is_an_error_in_words(monkeypatch, tmp_path):
    (tmp_path / "bad_plugin_module.py").write_text("raise ZeroDivisionError('at import')\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    _install(monkeypatch, ("bad", "bad_plugin_module:X"))
    with pytest.raises(TangramError, match="ZeroDivisionError: at import"):
        registry.parallelizer("bad")


def test_two_distributions_claiming_one_name_is_an_error_and_a_repeated_copy_is_not(monkeypatch):
    _install(monkeypatch, ("x", "collections:OrderedDict"), ("x", "collections:OrderedDict"))
    registry.parallelizer("x")
    _install(monkeypatch, ("x", "collections:OrderedDict"), ("x", "collections:Counter"))
    with pytest.raises(TangramError, match="more than once"):
        registry.parallelizer("x")
