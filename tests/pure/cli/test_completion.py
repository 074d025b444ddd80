"""Completion in shells: their scripts ask the program by variables of the environment, as Typer documents."""

import os
import shutil
import subprocess
import sys

import pytest

from tests.places import ROOT
from tests.pure.building import HERE, write_specs


@pytest.fixture
def complete(run, monkeypatch):
    """The program's answer to bash for a command line whose last word is to be completed."""

    monkeypatch.setattr(sys.modules["__main__"], "__package__", "")  # else the program is `python -m pytest`

    def complete(line: str) -> list[str]:
        words = line.split(" ")
        monkeypatch.setenv("_CODEGEN_COMPLETE", "complete_bash")
        monkeypatch.setenv("COMP_WORDS", line)
        monkeypatch.setenv("COMP_CWORD", str(len(words) - 1))
        result = run()
        monkeypatch.delenv("_CODEGEN_COMPLETE")
        assert (result.status, result.err) == (0, "")
        return result.out.split()

    return complete


@pytest.mark.parametrize("command", ["compile", "verify", "bench", "export", "explain", "list"])
def test_names_of_ops(complete, run, tmp_path, command):
    write_specs(tmp_path / "specs", aa=1.0, ab=1.0, b=1.0)
    assert complete(f"codegen {command} a") == ["aa", "ab"]  # nothing is built
    assert run("build").status == 0
    (tmp_path / "generated/about.py").write_text("# by hand\n")
    assert complete(f"codegen {command} a") == ["aa", "ab"]
    assert complete(f"codegen {command} ") == ["aa", "ab", "b"]
    assert complete(f"codegen {command} c") == []
    shutil.rmtree(tmp_path / "specs")
    assert complete(f"codegen {command} aa --json a" if command == "verify" else f"codegen {command} a") == ["aa", "ab"]


def test_names_come_from_the_folders_that_are_named(complete, run, tmp_path):
    write_specs(tmp_path / "specs", aa=1.0)
    write_specs(tmp_path / "more", ab=1.0)
    assert run("build").status == 0
    assert run("build", "--specs", "more", "--package", "ops").status == 0
    assert complete("codegen verify --package ops a") == ["ab"]
    assert complete("codegen explain --specs more a") == ["ab"]
    assert complete("codegen verify a") == complete("codegen explain a") == ["aa"]
    (tmp_path / "pyproject.toml").write_text('[tool.cutefuse]\nspecs = "more"\npackage = "ops"\n')
    assert complete("codegen verify a") == complete("codegen explain a") == ["ab"]
    (tmp_path / "pyproject.toml").write_text("[tool.cutefuse]\nspecs = 1\n")  # the command itself says so
    assert complete("codegen verify a") == ["aa"]


def test_files_are_left_to_the_shell(complete, tmp_path):
    """The shell completes files if the program answers nothing."""
    write_specs(tmp_path / "specs", aa=1.0)
    for line in ("codegen build specs/a", "codegen build ", "codegen build --specs s", "codegen verify --package g"):
        assert complete(line) == []
    assert complete("codegen ver") == ["verify"]
    assert "--watch" in complete("codegen build --w")


@pytest.mark.long
def test_bash(tmp_path):
    """A real shell, with the program's own script; also for the program's other name."""
    write_specs(tmp_path / "specs", aa=1.0, ab=1.0)
    for name in ("codegen", "cutefuse"):
        program = tmp_path / name
        program.write_text(f"#!{sys.executable}\nimport cutefuse_command\n\ncutefuse_command.main()\n")
        program.chmod(0o755)
        script = f"""
        eval "$({name} --show-completion bash)"
        declare -f _{name}_completion > /dev/null || exit 1
        COMP_WORDS=({name} verify a); COMP_CWORD=2; _{name}_completion {name}; echo "${{COMPREPLY[*]}}"
        COMP_WORDS=({name} build specs/a); COMP_CWORD=2; _{name}_completion {name}; echo "${{#COMPREPLY[@]}}"
        complete -p {name}
        """
        env = HERE | {"PATH": f"{tmp_path}:{os.environ['PATH']}", "_TYPER_COMPLETE_TEST_DISABLE_SHELL_DETECTION": "1"}
        found = subprocess.run(
            ["bash", "-c", script], cwd=tmp_path, env=env, capture_output=True, text=True, check=True
        )
        assert found.stdout.split("\n")[:2] == ["aa ab", "0"]
        assert "-o default" in found.stdout  # files where there is nothing else


def test_no_jax_is_loaded():
    code = "import sys\nfor name in ('jax', 'cutlass', 'yaml', 'jinja2'): sys.modules[name] = None\n"
    code += "sys.argv = ['codegen']\nfrom codegen.__main__ import main\nmain()"
    env = HERE | {"_CODEGEN_COMPLETE": "complete_bash", "COMP_WORDS": "codegen verify rmsnorm_r", "COMP_CWORD": "2"}
    found = subprocess.run([sys.executable, "-c", code], cwd=ROOT, env=env, capture_output=True, text=True, check=True)
    assert "rmsnorm_rstd" in found.stdout.split()
