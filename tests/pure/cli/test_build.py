"""The commands that need neither JAX nor a GPU, as a user runs them."""

import importlib.util
import json
import os
import re
import shutil

import pytest

from tests.places import ROOT, SPECS
from tests.pure.building import HERE, SPEC, contents, process, write_specs
from tests.turns import EVERY, some

LIBRARY = sorted(SPECS.glob("*.yaml"))

# What a build loads


IMPORTED = (
    "import sys; print(sorted({n.partition('.')[0] for n in sys.modules} & {'jax', 'jaxlib', 'cutlass', 'numpy'}))"
)


@pytest.mark.long
@pytest.mark.parametrize(
    "arguments", [["--help"], ["build"], ["check"], ["list"], ["schema"], ["new", "op"]], ids=" ".join
)
def test_commands_load_neither_jax_nor_cutlass(arguments, tmp_path):
    write_specs(tmp_path / "specs", double=2.0)
    code = f"import sys; sys.argv = ['codegen', *{arguments!r}]\nfrom codegen.__main__ import main\n"
    code += f"try:\n    main()\nexcept SystemExit:\n    pass\n{IMPORTED}"
    result = process("-c", code, cwd=tmp_path)
    assert result.stdout.splitlines()[-1] == "[]", result


TWO_CORES = "import os; os.sched_getaffinity = lambda pid: {0, 1}\n"  # whatever this machine has


SHARED = f"""{TWO_CORES}
import time
from codegen.render.workers import mapping
def who(item):
    time.sleep(0.005)
    return item, os.getpid()
for items in (31, 64):
    with mapping(items) as mapped:
        found = list(mapped(who, range(items)))
    print([item for item, _ in found] == [*range(items)], len({{pid for _, pid in found}} - {{os.getpid()}}))
"""


@pytest.mark.long
def test_many_specs_are_shared_among_processes(tmp_path):
    result = process("-c", SHARED, cwd=tmp_path)
    assert result.stdout.splitlines() == ["True 0", "True 2"], result


@pytest.mark.long
def test_processes_build_what_one_builds_and_report_errors_in_order(run, tmp_path):
    names = [f"op{i:02}" for i in range(34)]
    write_specs(tmp_path / "specs", **dict.fromkeys(names, 2.0))
    assert run("build").status == 0
    alone = contents(tmp_path / "generated")
    shutil.rmtree(tmp_path / "generated")
    code = f"{TWO_CORES}import sys; sys.argv = ['codegen', 'build']\nfrom codegen.__main__ import main\nmain()\n"
    assert process("-c", code, cwd=tmp_path).returncode == 0
    assert contents(tmp_path / "generated") == alone
    for name in ("op03", "op30", "op11"):
        path = tmp_path / "specs" / f"{name}.yaml"
        path.write_text(path.read_text().replace("* x", "* z"))
    result = process("-c", code, cwd=tmp_path)
    assert result.returncode == 2
    assert list(dict.fromkeys(re.findall(r"op\d\d(?=\.yaml)", result.stderr))) == ["op03", "op11", "op30"]
    assert contents(tmp_path / "generated") == alone


def test_that_test_can_fail(tmp_path):
    result = process("-c", f"import numpy\n{IMPORTED}", cwd=tmp_path)
    assert result.stdout.splitlines()[-1] == "['numpy']"
    assert importlib.util.find_spec("jax")


def test_help_lists_the_commands(tmp_path):
    result = process("-m", "codegen", "--help", cwd=tmp_path)
    assert result.returncode == 0
    for name in ("new", "build", "check", "list", "schema"):
        assert name in result.stdout


@pytest.mark.parametrize("name", ["new", "build", "check", "list", "schema"])
def test_every_command_has_help_with_an_example(run, name):
    result = run(name, "--help")
    assert result.status == 0
    assert f"Example: codegen {name}" in " ".join(result.out.split())


# Exit statuses


def test_build_then_check(run, tmp_path):
    write_specs(tmp_path / "specs", double=2.0, triple=3.0)
    result = run("build")
    assert result == (0, result.out, "")
    assert result.out.startswith("2 ops: 5 of 5 files changed\n")
    assert sorted(contents(tmp_path)) == [
        "generated/__init__.py",
        "generated/double.py",
        "generated/triple.py",
        "specs/double.yaml",
        "specs/triple.yaml",
        "tests/generated/test_double.py",
        "tests/generated/test_triple.py",
    ]
    assert run("check") == (0, "2 ops are up to date\n", "")
    assert run("build").out == "2 ops: 0 of 5 files changed\n"


def test_mistakes_of_all_files_are_printed_and_nothing_is_written(run, tmp_path):
    write_specs(tmp_path / "specs", a=1.0, b=1.0, c=1.0)
    for name in "ac":
        path = tmp_path / "specs" / f"{name}.yaml"
        path.write_text(path.read_text().replace("* x", "* xx"))
    before = contents(tmp_path)
    for name in ("build", "check", "list"):
        result = run(name)
        assert result.status == 2
        assert result.out == ""
        assert [line for line in result.err.splitlines() if "error:" in line] == [
            "specs/a.yaml:7:18: error: unknown name 'xx'",
            "specs/a.yaml:8:18: error: unknown name 'xx'",
            "specs/c.yaml:7:18: error: unknown name 'xx'",
            "specs/c.yaml:8:18: error: unknown name 'xx'",
        ]
    assert contents(tmp_path) == before
    assert not (tmp_path / "generated").exists()


def test_a_mistake_leaves_an_earlier_build_alone(run, tmp_path):
    write_specs(tmp_path / "specs", a=1.0, b=1.0)
    run("build")
    (tmp_path / "specs/a.yaml").write_text("op: a")
    (tmp_path / "specs/b.yaml").unlink()
    before = contents(tmp_path)
    assert run("build").status == 2
    assert contents(tmp_path) == before


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["build", "--specs", "nowhere"], "nowhere: error: no such folder\n  `codegen new OP` writes a first one\n"),
        (["build", "--specs", "empty"], "empty: error: no spec (*.yaml) in this folder\n  `codegen new OP` writes"),
        (["build", "--specs", "yml"], "yml: error: no spec (*.yaml) in this folder\n  name it NAME.yaml, not .yml\n"),
        (["build", "specs/none.yaml"], "specs/none.yaml: error: cannot read the file: No such file or directory\n"),
        (["build", "specs/a.yaml", "other/a.yaml"], "error: two specs have the same name: other/a.yaml, specs/a.yaml\n"),
        (["build", "--out", "not-a-name"], "error: --package not-a-name: 'not-a-name' is not a valid package name\n"),
        (["build", "--out", "x; import os"], "error: --package x; import os: 'x; import os' is not a valid package name\n"),
        (["build", "--out", "class"], "error: --package class: 'class' is not a valid package name\n"),
        (["build", "--out", "."], "error: --package .: '' is not a valid package name\n"),
        (["build", "--out", "a", "--tests", "b/../a"], "error: --package and --tests are both b/../a; they must be two folders\n"),
        (["build", "--out", "file"], "error: file: File exists\n"),
        (["build", "--out", "file/sub"], "error: file/sub: Not a directory\n"),
        (["check", "--specs", "nowhere"], "nowhere: error: no such folder\n"),
        (["list", "--specs", "nowhere"], "nowhere: error: no such folder\n"),
        (["list", "--specs", "specs/a.yaml"], "specs/a.yaml: error: this is a file\n  --specs takes the folder of specs"),
        (["new", "Bad-Name"], "error: 'Bad-Name' is not a valid name for an op\n  names are lower-case letters, digits and"),
        (["new", "../evil"], "error: '../evil' is not a valid name for an op\n"),
        (["new", "lambda"], "error: 'lambda' cannot name an op: Python or the generated file uses it\n"),
        (["new", ""], "error: '' is not a valid name for an op\n"),
        (["new", "a"], "error: specs/a.yaml exists already; pick another name or edit it\n"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)  # fmt: skip
def test_a_mistake_on_the_command_line(run, tmp_path, arguments, message):
    write_specs(tmp_path / "specs", a=1.0)
    write_specs(tmp_path / "other", a=1.0)
    (tmp_path / "empty").mkdir()
    (tmp_path / "yml").mkdir()
    (tmp_path / "yml/a.yml").write_text("op: a")
    (tmp_path / "file").write_text("")
    before = contents(tmp_path)
    result = run(*arguments)
    assert result.status == 2
    assert result.out == ""
    assert result.err.startswith(message)
    assert "Traceback" not in result.err
    assert contents(tmp_path) == before
    assert not (tmp_path / "generated").exists()


@pytest.mark.parametrize("arguments", [["nothing"], ["build", "--nothing"], ["new"], ["new", "a", "b"]], ids=" ".join)
def test_usage_errors_end_in_status_2(run, arguments):
    result = run(*arguments)
    assert result.status == 2
    assert "Traceback" not in result.err


# What check finds


def test_check_finds_a_stale_file(built, tmp_path):
    write_specs(tmp_path / "specs", a=2.0)
    result = built("check")
    assert result.status == 1
    assert "generated/a.py: stale or edited by hand\n" in result.out
    assert '-    "chain": "y = 1.0 * x",\n' in result.out
    assert '+    "chain": "y = 2.0 * x",\n' in result.out
    assert result.out.endswith("1 of 5 files differ. Run: codegen build\n")
    assert built("build").status == 0
    assert built("check").status == 0


def test_check_finds_an_edit_by_hand(built, tmp_path):
    path = tmp_path / "generated/a.py"
    path.write_text(path.read_text() + "# a note")
    result = built("check")
    assert result.status == 1
    assert "generated/a.py: stale or edited by hand\n" in result.out
    assert "\n-# a note\n" in result.out


@pytest.mark.parametrize("change", [b"\r\n", b"\n\xff", b"\n\n"], ids=["line ends", "bytes", "empty line"])
def test_check_compares_bytes(built, tmp_path, change):
    path = tmp_path / "generated/a.py"
    path.write_bytes(path.read_bytes().replace(b"\n", change))
    result = built("check")
    assert result.status == 1
    assert "generated/a.py: stale or edited by hand\n" in result.out


def test_check_finds_what_a_build_would_not_replace(built, tmp_path):
    path = tmp_path / "generated/a.py"
    path.write_text(path.read_text().split("\n", 1)[1])
    (tmp_path / "generated/b.py").unlink()
    (tmp_path / "generated/b.py").mkdir()
    result = built("check")
    assert result.status == 1
    for name in "ab":
        assert f"generated/{name}.py: not generated, and in the way of a build: move it elsewhere first\n" in result.out
    assert built("build").status == 2


def test_check_finds_a_missing_file(built, tmp_path):
    (tmp_path / "generated/b.py").unlink()
    (tmp_path / "tests/generated/test_a.py").unlink()
    result = built("check")
    assert result == (
        1,
        "generated/b.py: missing\ntests/generated/test_a.py: missing\n2 of 5 files differ. Run: codegen build\n",
        "",
    )


def test_check_finds_a_left_over_file(built, tmp_path):
    (tmp_path / "specs/b.yaml").unlink()
    (tmp_path / "generated/notes.py").write_text("mine = True\n")
    result = built("check")
    assert result.status == 1
    assert "generated/b.py: left over: no spec makes it\n" in result.out
    assert "tests/generated/test_b.py: left over: no spec makes it\n" in result.out
    assert "notes" not in result.out
    assert built("build").status == 0
    assert sorted(contents(tmp_path / "generated")) == ["__init__.py", "a.py", "notes.py"]


def test_check_prints_the_command_to_run(run, tmp_path):
    write_specs(tmp_path / "my specs", a=1.0)
    options = ["--specs", "my specs", "--out", "ops", "--tests", ""]
    result = run("check", *options)
    assert result.status == 1
    line = result.out.splitlines()[-1]
    assert line == "2 of 2 files differ. Run: codegen build --specs 'my specs' --package ops --tests ''"
    assert run("build", *options).status == 0
    assert run("check", *options).status == 0
    assert not (tmp_path / "tests").exists()


def test_check_changes_nothing(built, tmp_path):
    (tmp_path / "generated/b.py").unlink()
    before = contents(tmp_path)
    built("check")
    assert contents(tmp_path) == before


# Same input, same bytes


@pytest.mark.long
def test_builds_agree_to_the_byte(tmp_path):
    """Whatever Python's hash seed, the folder and the locale: the repository's files were made with others."""
    assert len(LIBRARY) >= 60
    folder = tmp_path / "some folder"
    folder.mkdir()
    environment = HERE | {"PYTHONHASHSEED": "12345", "LC_ALL": "POSIX", "PYTHONUTF8": "0"}
    named = some(LIBRARY, 6)  # `make test` checks all of them, too
    result = process("-m", "codegen", "build", *map(str, named), cwd=folder, env=environment)
    assert result.returncode == 0, result.stderr
    made = contents(folder)
    assert len(made) == 2 * len(named) + 1
    if EVERY:
        assert made["generated/__init__.py"] == (ROOT / "generated/__init__.py").read_bytes()
    del made["generated/__init__.py"]
    assert {path: (ROOT / path).read_bytes() for path in made} == made


def test_files_that_agree_are_not_touched(built, tmp_path):
    paths = [*(tmp_path / "generated").iterdir(), *(tmp_path / "tests/generated").iterdir()]
    assert len(paths) == 5
    for path in paths:
        os.utime(path, (1, 1))
    write_specs(tmp_path / "specs", a=2.0)
    assert built("build").status == 0
    assert [p.name for p in paths if p.stat().st_mtime != 1] == ["a.py"]


@pytest.mark.long
def test_text_beyond_ascii_survives_every_locale(tmp_path):
    (tmp_path / "specs").mkdir()
    text = SPEC.format(op="a", factor=1.0).replace("Scales.", "Größe 漢字 😀.")
    (tmp_path / "specs/a.yaml").write_text(text, encoding="utf-8")
    environment = HERE | {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    for name in ("build", "check", "list"):
        result = process("-m", "codegen", name, cwd=tmp_path, env=environment, encoding="utf-8", errors="replace")
        assert result.returncode == 0, result.stderr
    assert "Größe 漢字 😀." in (tmp_path / "generated/a.py").read_text(encoding="utf-8")


HOSTILE_NAMES = [
    "\x1b[31mred",
    "a\nb.yaml:1:1: error: nothing",
    "back\u202ewards",
    "\udcff",
    "a\x7f",
    "\u2028",
]


@pytest.mark.parametrize("name", HOSTILE_NAMES, ids=ascii)
def test_names_of_files_are_escaped(run, tmp_path, name):
    """A file's name is printed as printable text on one line."""
    (tmp_path / "specs").mkdir()
    (tmp_path / "specs" / f"{name}.yaml").write_text(SPEC.format(op="a", factor=1.0))
    (tmp_path / name[:1]).mkdir()
    for arguments in (
        ["build"], ["check"], ["explain", "b"], ["build", "--specs", name], ["list", "--specs", name[:1]], ["build", f"specs/{name}.yaml"],
        ["build", "--out", f"{name}/x"], ["build", "--out", name[:1]], ["build", f"{name}.yaml"],
    ):  # fmt: skip
        result = run(*arguments)
        assert result.status == 2, arguments
        assert result.out == ""
        assert all(line.isprintable() for line in result.err.split("\n")), result.err
        assert len([line for line in result.err.split("\n") if line and line[0] != " "]) == 1, result.err


def test_names_of_folders_are_escaped(run, tmp_path):
    folder = "\x1b[31mred"
    for arguments in (["new", "a", "--specs", folder], ["build", "--specs", folder, "--tests", f"{folder}/t"], ["check", "--specs", folder, "--tests", folder]):  # fmt: skip
        result = run(*arguments)
        assert result.err == ""
        assert "red" in result.out
        assert all(line.isprintable() for line in result.out.split("\n")), result.out


# Building some


def test_naming_a_spec_builds_it_alone(built, tmp_path):
    write_specs(tmp_path / "specs", a=2.0, c=3.0)
    (tmp_path / "specs/b.yaml").write_text("an error")
    result = built("build", "specs/c.yaml", "./specs/c.yaml", str(tmp_path / "specs/c.yaml"))
    assert result.status == 0, result.err
    assert "1 op: 3 of 3 files changed" in result.out
    assert "y = 1.0 * x" in (tmp_path / "generated/a.py").read_text()
    assert "y = 3.0 * x" in (tmp_path / "generated/c.py").read_text()
    init = (tmp_path / "generated/__init__.py").read_text()
    assert [name for name in "abcd" if f'    "{name}",\n' in init] == ["a", "b", "c"]


def test_naming_a_spec_first(run, tmp_path):
    write_specs(tmp_path / "elsewhere", a=1.0)
    assert run("build", "elsewhere/a.yaml").status == 0
    assert run("check", "--specs", "elsewhere").status == 1  # the package names another folder
    assert run("build", "elsewhere/a.yaml", "--specs", "elsewhere").status == 0
    assert run("check", "--specs", "elsewhere").status == 0


def test_the_package_is_named_by_its_parents(run, tmp_path):
    write_specs(tmp_path / "specs", a=1.0)
    (tmp_path / "mine/kernels").mkdir(parents=True)
    (tmp_path / "mine/__init__.py").write_text("")
    assert run("build", "--out", "mine/ops", "--tests", "mine/tests").status == 0
    assert "from mine.ops import a\n" in (tmp_path / "mine/tests/test_a.py").read_text()
    assert "from .a import a as a\n" in (tmp_path / "mine/ops/__init__.py").read_text()


# The other commands


def test_new_writes_a_spec_that_builds(run, tmp_path):
    result = run("new", "my_op")
    assert result == (0, "wrote specs/my_op.yaml; next: codegen build\n", "")
    assert "op: my_op\n" in (tmp_path / "specs/my_op.yaml").read_text()
    assert run("build").status == 0
    assert run("check").status == 0


def test_new_does_not_overwrite(run, tmp_path):
    run("new", "my_op")
    (tmp_path / "specs/my_op.yaml").write_text("mine")
    assert run("new", "my_op").status == 2
    assert (tmp_path / "specs/my_op.yaml").read_text() == "mine"


def test_list(built, tmp_path):
    text = (tmp_path / "specs/b.yaml").read_text()
    text = text.replace("chain", "params:\n  beta: {type: int, static: false}\ntypes:\n  T: [float32, float16]\nchain")
    text = text.replace("float32[..., N]", "T[..., N]").replace("1.0 *", "beta *")
    (tmp_path / "specs/b.yaml").write_text(text)
    result = built("list", "--json")
    assert result.status == 0, result.err
    assert json.loads(result.out) == [
        {
            "op": "a",
            "kind": "elementwise",
            "types": {},
            "inputs": {"x": "float32[..., N]"},
            "outputs": {"y": "float32[..., N]"},
            "params": {},
            "summary": "Scales.",
        },
        {
            "op": "b",
            "kind": "elementwise",
            "types": {"T": ["float32", "float16"]},
            "inputs": {"x": "T[..., N]"},
            "outputs": {"y": "T[..., N]"},
            "params": {"beta": "int"},
            "summary": "Scales.",
        },
    ]
