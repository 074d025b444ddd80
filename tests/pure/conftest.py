import sys
from collections.abc import Callable

import pytest

from codegen import __main__ as command
from tests.pure.building import Result, write_specs


@pytest.fixture
def run(tmp_path, monkeypatch, capsys) -> Callable[..., Result]:
    """Runs `codegen` in an empty folder, as `main` does in its own process."""
    monkeypatch.chdir(tmp_path)

    def run(*args: str) -> Result:
        monkeypatch.setattr(sys, "argv", ["codegen", *args])
        try:
            command.main()
            status = 0
        except SystemExit as error:
            status = int(error.code or 0)
        return Result(status, *capsys.readouterr())

    return run


@pytest.fixture
def built(run, tmp_path) -> Callable[..., Result]:
    """Runs `codegen` after a build of a and b."""
    write_specs(tmp_path / "specs", a=1.0, b=1.0)
    assert run("build").status == 0
    return run
