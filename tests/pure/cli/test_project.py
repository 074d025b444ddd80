"""`[tool.cutefuse]` of a pyproject.toml: the commands that read it, the files that are read, and errors in one."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from codegen.cli.project import Project, find_project
from tests.pure.building import HERE, contents, write_specs

SECTION = '[tool.cutefuse]\nspecs = "ops/yaml"\npackage = "src/mine"\ntests = "checks"\narch = ["sm_90a", "sm_120a"]\n'
WRITTEN = {"src/mine/__init__.py", "src/mine/a.py", "checks/test_a.py"}


@pytest.fixture
def project(run, tmp_path):
    """Runs `codegen` in a project with a section and one spec, from a subfolder."""
    (tmp_path / "pyproject.toml").write_text(SECTION)
    write_specs(tmp_path / "ops/yaml", a=1.0)
    (tmp_path / "deep/down").mkdir(parents=True)
    os.chdir(tmp_path / "deep/down")
    return run


def written(folder: Path) -> set[str]:
    return {name for name in contents(folder) if name.endswith(".py")}


def test_every_command_reads_it_from_any_subfolder(project, tmp_path):
    result = project("build")
    assert (result.status, result.err) == (0, "")
    assert "  ../../src/mine/a.py\n" in result.out  # as it is written here
    assert written(tmp_path) == WRITTEN
    assert project("check").status == 0
    os.chdir(tmp_path)
    assert project("check").status == 0
    os.chdir(tmp_path / "ops")
    assert [row["op"] for row in json.loads(project("list", "--json").out)] == ["a"]
    assert json.loads(project("explain", "a", "--json").out)["op"] == "a"
    assert project("new", "b").out == "wrote yaml/b.yaml; next: codegen build\n"
    assert project("check").status == 1
    assert project("build", "yaml/b.yaml").status == 0
    assert project("check").status == 0


def test_options_come_before_it_and_are_of_the_current_folder(project, tmp_path):
    write_specs(tmp_path / "deep/down/here", c=1.0)
    assert project("build", "--specs", "here", "--package", "there").status == 0
    assert written(tmp_path) == {
        f"deep/down/{name}" for name in ("there/__init__.py", "there/c.py", "tests/there/test_c.py")
    }
    line = project("check", "--specs", "here", "--package", "elsewhere").out.splitlines()[-1]
    assert line.endswith("Run: codegen build --specs here --package elsewhere")


def test_what_it_leaves_out_is_usual_and_beside_it(run, tmp_path):
    (tmp_path / "pyproject.toml").write_text("[tool.cutefuse]\n")
    write_specs(tmp_path / "specs", a=1.0)
    (tmp_path / "sub").mkdir()
    os.chdir(tmp_path / "sub")
    assert run("build").status == 0
    assert written(tmp_path) == {"generated/__init__.py", "generated/a.py", "tests/generated/test_a.py"}


def test_the_nearest_file_with_a_section_counts(tmp_path, monkeypatch):
    (tmp_path / "a/b/c").mkdir(parents=True)
    monkeypatch.chdir(tmp_path / "a/b/c")
    assert find_project() == Project()
    (tmp_path / "pyproject.toml").write_text('[tool.cutefuse]\nspecs = "far"\n')
    (tmp_path / "a/pyproject.toml").write_text('[tool.cutefuse]\nspecs = "near"\ntests = ""\n')
    (tmp_path / "a/b/pyproject.toml").write_text('[project]\nname = "no-cutefuse-here"\n')
    assert find_project() == Project(Path("../../near"), Path("../../generated"), Path())


def test_files_that_say_nothing_of_us_are_not_judged(run, tmp_path):
    (tmp_path / "pyproject.toml").write_text("[[[ no TOML")
    write_specs(tmp_path / "specs", a=1.0)
    assert run("build").status == 0


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            '[tool.cutefuse]\nspecs = "a"\nspces = "b"\n',
            "pyproject.toml:3:1: error: unknown key 'spces' in [tool.cutefuse]\n    spces = \"b\"\n    ^^^^^\n"
            "  known here: arch, package, specs, tests. Did you mean 'specs'?\n",
        ),
        (
            "[tool.cutefuse]\npackage = 3\n",
            "pyproject.toml:2:1: error: package must be the path of a folder\n    package = 3\n    ^^^^^^^\n  relative to this file\n",
        ),
        (
            '[tool.cutefuse]\narch = ["sm_90a", "sm_91"]\n',
            "pyproject.toml:2:1: error: no architecture 'sm_91'\n    arch = [\"sm_90a\", \"sm_91\"]\n    ^^^^\n  there are: sm_100,",
        ),
        (
            "[tool.cutefuse]\narch = 90\n",
            "pyproject.toml:2:1: error: arch must be a list of architectures\n    arch = 90\n    ^^^^\n  such as arch = [\"sm_90a\"]\n",
        ),
        (
            "[tool]\ncutefuse = 1\n",
            "pyproject.toml:2:1: error: [tool.cutefuse] must be a table\n    cutefuse = 1\n    ^^^^^^^^\n  such as specs = \"specs\"\n",
        ),
        ("[tool.cutefuse]\nspecs = \n", "pyproject.toml:2:9: error: not valid TOML: Invalid value\n"),
    ],
)  # fmt: skip
def test_what_is_wrong_with_it_is_one_error(run, tmp_path, text, message):
    (tmp_path / "pyproject.toml").write_text(text)
    write_specs(tmp_path / "specs", a=1.0)
    for words in (["build"], ["list"], ["explain", "a"], ["new", "b"]):
        result = run(*words)
        assert (result.status, result.out) == (2, "")
        assert result.err.startswith(message), result.err
    assert not (tmp_path / "generated").exists()


# codegen init


def test_init_makes_a_project(run, tmp_path):
    result = run("init", "--package", "src/mine", "--specs", "ops")
    assert (result.status, result.err) == (0, "")
    assert (
        result.out
        == "wrote pyproject.toml\nwrote .pre-commit-config.yaml\nwrote ops/bias_relu.yaml\nnext: codegen build\n"
    )
    assert (tmp_path / "pyproject.toml").read_text() == (
        '[tool.cutefuse]\nspecs = "ops"\npackage = "src/mine"\ntests = "src/tests/mine"\n'
        '\n[tool.pytest.ini_options]\npythonpath = ["src"]\n'
    )
    hooks = yaml.safe_load((tmp_path / ".pre-commit-config.yaml").read_text())
    assert [hook["entry"] for hook in hooks["repos"][0]["hooks"]] == ["codegen check"]
    assert (tmp_path / "ops/spec.schema.json").is_file()
    assert run("build").status == run("check").status == 0
    assert "src/mine/bias_relu.py" in written(tmp_path)
    before = contents(tmp_path)
    assert run("init").out == "next: codegen build\n"
    assert contents(tmp_path) == before


def test_init_keeps_what_is_there(run, tmp_path):
    write_specs(tmp_path / "specs", a=1.0)
    (tmp_path / "pyproject.toml").write_text('[project]\nname = "mine"  # ours\n')
    (tmp_path / ".pre-commit-config.yaml").write_text(
        "# hooks\nrepos:\n- repo: https://a\n  rev: v1\n  hooks:\n  - id: b\n"
    )
    assert run("init").status == 0
    assert (tmp_path / "pyproject.toml").read_text().startswith('[project]\nname = "mine"  # ours\n\n[tool.cutefuse]\n')
    text = (tmp_path / ".pre-commit-config.yaml").read_text()
    assert text.startswith("# hooks\nrepos:\n- repo: https://a\n")
    assert [repo["repo"] for repo in yaml.safe_load(text)["repos"]] == ["https://a", "local"]
    assert [path.stem for path in (tmp_path / "specs").glob("*.yaml")] == ["a"]


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        (".pre-commit-config.yaml", "repos: []\n", ": its hooks are not at its end\n  add this to its `repos`:\n- repo: local\n"),
        (".pre-commit-config.yaml", "repos:\n  - repo: a\nfail_fast: true\n", ": its hooks are not at its end\n"),
        ("pyproject.toml", "tool = 3\n", ": Cannot "),
        ("pyproject.toml", "[[[", ": "),
    ],
)  # fmt: skip
def test_init_says_what_to_add_where_it_cannot(run, tmp_path, name, text, message):
    (tmp_path / name).write_text(text)
    result = run("init")
    assert (result.status, result.out) == (2, "")
    assert result.err.startswith(f"error: {name}{message}"), result.err
    assert contents(tmp_path) == {name: text.encode()}


# codegen build --watch


@pytest.mark.long
def test_watching_builds_what_is_saved_until_ctrl_c(tmp_path):
    write_specs(tmp_path / "specs", a=1.0)
    command = [sys.executable, "-m", "codegen", "build", "--watch"]
    # Started in the background of a shell, tests ignore Ctrl-C, and so would what they start
    restored = signal.signal(signal.SIGINT, signal.default_int_handler)
    watching = subprocess.Popen(
        command, cwd=tmp_path, env=HERE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    signal.signal(signal.SIGINT, restored)
    try:
        assert watching.stdout.readline() == "watching specs (Ctrl-C ends)\n"
        assert watching.stdout.readline() == "1 op: 3 of 3 files changed\n"
        for _ in range(3):
            watching.stdout.readline()
        (tmp_path / "specs/b.yaml").write_text("op: b\n")
        assert watching.stdout.readline().startswith("specs/b.yaml:1:1: error: ")
        write_specs(tmp_path / "new", b=2.0)
        (tmp_path / "new/b.yaml").replace(tmp_path / "specs/b.yaml")  # as editors save
        line = next(line for line in watching.stdout if line.startswith("2 ops"))
        assert line == "2 ops: 3 of 5 files changed\n"
        watching.send_signal(signal.SIGINT)
        assert watching.wait(20) == 0
        assert "Traceback" not in watching.stdout.read()
    finally:
        watching.kill()
        watching.stdout.close()
        watching.wait()
