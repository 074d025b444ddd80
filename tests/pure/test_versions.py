"""The tests have passed with the installed versions of the libraries. With others this is the only test."""

import pytest

from tests import versions
from tests.conftest import of_tried_versions


def test_the_versions_installed_are_tried():
    found = versions.untried()
    assert not found, "; ".join([*found, "CODEGEN_UNTRIED=1 runs all tests with them"])


@pytest.mark.parametrize(
    ("version", "tried"),
    [("0.10.1", False), ("0.10.2", True), ("0.12.0.1", True), ("0.13.0.dev20260101", False), ("1.0", False)],
)
def test_a_newer_jax_fails_one_test(version, tried, monkeypatch):
    other = versions.metadata.version
    monkeypatch.setattr(versions.metadata, "version", lambda name: version if name == "jax" else other(name))
    monkeypatch.delenv("CODEGEN_UNTRIED", raising=False)
    names = ["test_a", "test_the_versions_installed_are_tried", "test_b"]
    assert of_tried_versions(names) == (names if tried else names[1:2])
    assert bool(versions.untried()) != tried
    monkeypatch.setenv("CODEGEN_UNTRIED", "1")
    assert of_tried_versions(names) == names
