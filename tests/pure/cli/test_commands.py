"""Names of options, tables and suggestions of the commands. Nothing is compiled or run."""

import inspect
import re
import shutil
import sys
from types import ModuleType

import pytest

import codegen.__main__
import cutefuse_command
from codegen.cli.printing import gather
from codegen.cli.program import _formatted, app
from codegen.errors import suggested
from tests.places import ROOT, SPECS
from tests.pure.building import HERE, contents, process, write_specs

COMMANDS = {c.name: c.callback for c in app.registered_commands if c.callback}


def options(name: str) -> dict[str, str]:
    """The options of a command, by name: each with its annotated type."""
    found = {}
    for annotation in inspect.get_annotations(COMMANDS[name], eval_str=True).values():
        for option in getattr(annotation, "__metadata__", ()):
            names = (option.default, *(option.param_decls or ()))  # Typer takes the first name for a default
            found |= {word: annotation for word in names if str(word).startswith("-") and not option.hidden}
    return found


def test_one_thing_has_one_name():
    """An option of several commands is declared once, except where one command takes several values and others one."""
    own = {"--arch", "--shape", "--types", "--out"}  # one for export; several shapes for bench; a file or a folder
    declared: dict[str, set] = {}
    for name in COMMANDS:
        for word, annotation in options(name).items():
            declared.setdefault(word, set()).add(id(annotation) if word not in own else word)
    assert {word for word, found in declared.items() if len(found) > 1} == set()
    assert {"--specs", "--package", "--kind", "--types", "--json", "--tests", "--arch"} <= declared.keys()
    assert "--suite" not in declared
    assert "--out" not in {word for name in ("build", "check", "compile", "verify") for word in options(name)}


def test_names_that_options_had_before_still_work(run, tmp_path):
    write_specs(tmp_path / "specs", a=1.0)
    assert run("build", "--out", "ops").status == 0
    assert sorted(contents(tmp_path)) == ["ops/__init__.py", "ops/a.py", "specs/a.yaml", "tests/ops/test_a.py"]
    assert run("check", "--out", "ops").status == 0
    assert "--out" not in run("build", "--help").out
    assert "--suite" not in run("bench", "--help").out


@pytest.mark.parametrize("name", sorted(COMMANDS))
def test_help_has_a_short_name_and_examples(run, name):
    short, long = run(name, "-h"), run(name, "--help")
    assert short == long
    assert short.status == 0
    assert f"Example: codegen {name}" in " ".join(short.out.split())


def test_the_list_of_commands_is_whole_sentences(run):
    rows = run("--help").out.partition("Commands:\n")[2].strip().splitlines()
    assert [row.split()[0] for row in rows] == [c.name for c in app.registered_commands]
    assert [row for row in rows if not row.endswith(".") or "..." in row] == []


def test_an_error_names_the_file_that_was_asked_for(run, tmp_path):
    write_specs(tmp_path / "specs", short=1.0)
    result = run("explain", "short", "--svg", "missing/graph.svg")
    assert (result.status, result.err) == (2, "error: missing/graph.svg: No such file or directory\n")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("suggest named_late:f", "named_late cannot be imported at HERE/named_late.py:1: NameError: name 'f' is not defined"),
        ("suggest ./half:f", "./half cannot be imported: SyntaxError: invalid syntax (half.py, line 1)"),
        ("new a --from no_such:f", "no_such cannot be imported: ModuleNotFoundError: No module named 'no_such'"),
        ("new a --from ../sums.py:f", "../sums.py is not in this folder: run codegen in a folder that contains it"),
        ("new a --from sums:zero", "sums:zero is not a function"),
        ("new a --like x=float32[8]", "--like gives the arguments of a function that --from names"),
        ("suggest sums:f --arguments sums:f --like x=float32[8]", "--arguments and --like both give the function's arguments"),
        (
            "suggest sums:f --arguments HERE/sums.py:g",
            "HERE/sums.py:g, called without arguments, failed at HERE/sums.py:3: ZeroDivisionError: division by zero",
        ),
    ],
)  # fmt: skip
def test_an_error_in_or_of_a_users_function(run, tmp_path, monkeypatch, words, message):
    monkeypatch.syspath_prepend(tmp_path)
    sys.modules.pop("sums", None)
    (tmp_path / "named_late.py").write_text("f = f")
    (tmp_path / "half.py").write_text("f = 1 +")
    (tmp_path / "sums.py").write_text("import operator as f\nzero, f = 0, f.add\ndef g(): return f(0, 1 / zero)")
    result = run(*words.replace("HERE", str(tmp_path)).split())
    assert (result.status, result.out) == (2, "")
    assert result.err.startswith(f"error: {message.replace('HERE', str(tmp_path))}")
    assert not (tmp_path / "specs").exists()


def test_the_version(run):
    result = run("--version")
    assert result.status == 0
    assert re.fullmatch(r"codegen \d+\.\d+\.\d+\S* \(cutefuse\)\n", result.out)


def test_shells_can_complete(run):
    assert "--install-completion" in run("--help").out


# The list of ops


def test_the_list_has_a_line_an_op(run):
    result = run("list", "--specs", str(SPECS))
    lines = result.out.splitlines()
    assert len(lines) == len(list(SPECS.glob("*.yaml")))
    assert [line.split()[0] for line in lines] == sorted(line.split()[0] for line in lines)


def test_lines_of_the_list_fit_a_terminal(run, monkeypatch, tmp_path):
    write_specs(tmp_path / "specs", short=1.0)
    text = (tmp_path / "specs/short.yaml").read_text().replace("op: short", "op: a_longer_name")
    (tmp_path / "specs/a_longer_name.yaml").write_text(text.replace("Scales.", f"Scales {'much ' * 20}."))
    monkeypatch.setattr("sys.stdout.isatty", lambda: True, raising=False)
    monkeypatch.setenv("COLUMNS", "60")
    assert run("list").out.splitlines() == [
        "a_longer_name  elementwise  Scales much much much much much…",
        "short          elementwise  Scales.",
    ]


def test_the_list_is_searched(run, tmp_path):
    for name in ("softmax", "causal_softmax", "masked_softmax", "relu", "rmsnorm", "dense"):
        shutil.copy(SPECS / f"{name}.yaml", tmp_path)
    specs = ("--specs", str(tmp_path))
    names = [line.split()[0] for line in run("list", "softmax", "--kind", "row", *specs).out.splitlines()]
    assert {"softmax", "causal_softmax"} <= set(names)
    assert not {"relu", "rmsnorm", "dense"} & set(names)
    assert [line.split()[0] for line in run("list", "SOFTMAX", "mask", *specs).out.splitlines()] != []
    assert run("list", "nonsuch", *specs) == (2, "", "error: no op has 'nonsuch' in its name or summary\n")
    error = run("list", "--kind", "matrix", *specs).err
    assert error == "error: --kind 'matrix': the ops are of the kinds elementwise, gemm, row\n"


def test_the_long_list_has_types_and_arguments(run, tmp_path):
    write_specs(tmp_path / "specs", a=1.0)
    text = (
        (tmp_path / "specs/a.yaml")
        .read_text()
        .replace("float32[", "T[")
        .replace("inputs", "types: {T: [float32, float16]}\ninputs")
    )
    (tmp_path / "specs/a.yaml").write_text(text.replace("chain", "params: {eps: 1.0}\nchain").replace("1.0 *", "eps *"))
    assert run("list", "--long").out.splitlines() == [
        "a  elementwise",
        "  Scales.",
        "  types    T: float32, float16",
        "  inputs   x: T[..., N]",
        "  params   eps: float",
        "  outputs  y: T[..., N]",
    ]


# Names that are not there

NAMES = [path.stem for path in sorted(SPECS.glob("*.yaml"))]


@pytest.mark.parametrize(
    ("word", "first"),
    [("rmsnrom", "rmsnorm"), ("gelu_bias", "bias_gelu"), ("sofmax", "softmax"), ("bias_rellu", "bias_relu")],
)
def test_three_names_are_suggested(word, first):
    text = suggested(word, NAMES)
    found = re.findall(r"'(\w+)'", text)
    assert found[0] == first
    assert len(found) <= 3
    assert text == f"Did you mean {', '.join(map(repr, found[:-1]))} or {found[-1]!r}?"


def test_a_name_like_none_is_told_how_many_there_are():
    assert suggested("zzzzqq", NAMES) == f"There are {len(NAMES)} others."
    assert suggested("b", ["a"]) == "There is a."
    assert suggested("c", ["b", "a"]) == "There are a and b."


def test_what_is_not_printed_to_a_terminal_has_no_blanks_at_the_ends_of_lines(run):
    lines = run("explain", "rmsnorm", "--specs", str(SPECS)).out.splitlines()
    assert len(lines) > 20 and [line for line in lines if line.endswith(" ")] == []


def test_an_op_that_is_not_there(run, tmp_path):
    result = run("explain", "rmsnrom", "--specs", str(SPECS))
    assert (result.status, result.out) == (2, "")
    first, second = result.err.splitlines()
    assert first.startswith(f"error: no op 'rmsnrom' in {ROOT / 'specs'}. Did you mean 'rmsnorm', ")
    assert second == "  `codegen list WORD` searches the ops"
    message = run("explain", "specs/rmsnorm.yaml", "--specs", str(SPECS)).err
    assert message.startswith("error: no op 'specs/rmsnorm.yaml' in") and "without its file, as 'rmsnorm'" in message


def test_a_deleted_folder_is_named(run, tmp_path, monkeypatch):
    (tmp_path / "gone").mkdir()
    monkeypatch.chdir(tmp_path / "gone")
    monkeypatch.setenv("PWD", str(tmp_path / "gone"))
    (tmp_path / "gone").rmdir()
    assert run("build").err == f"error: the current folder {tmp_path / 'gone'}: No such file or directory\n"


@pytest.mark.parametrize("main", [cutefuse_command.main, codegen.__main__.main])
def test_ctrl_c_while_modules_are_imported(main, monkeypatch):
    class Interrupted(ModuleType):
        def __getattr__(self, name):
            raise KeyboardInterrupt

    monkeypatch.setitem(sys.modules, "codegen.cli.program", Interrupted("program"))
    with pytest.raises(SystemExit) as end:
        main()
    assert end.value.code == 130


def test_ctrl_c_before_the_first_result(capsys):
    def interrupted():
        raise KeyboardInterrupt
        yield

    with pytest.raises(SystemExit) as end:
        gather(interrupted(), 2, "verifying")
    assert (end.value.code, *capsys.readouterr()) == (130, "", "interrupted\n")


def test_the_ops_of_the_examples_are_current(run, monkeypatch):
    monkeypatch.chdir(ROOT / "examples")  # its pyproject.toml says where specs and package are
    assert run("check")[::2] == (0, "")


def test_a_warning_of_the_program_is_one_line(tmp_path):
    """And one of another library says where it is from."""
    cache = tmp_path / "cache"
    cache.mkdir()
    cache.chmod(0o777)
    write_specs(tmp_path / "specs", short=1.0)
    result = process(
        "-m", "codegen", "build", cwd=tmp_path, env=HERE | {"CODEGEN_CACHE_DIR": str(cache), "CODEGEN_BUILD_CACHE": "1"}
    )
    assert result.returncode == 0
    (line,) = result.stderr.splitlines()
    assert line.startswith(f"warning: no compiled kernel is kept in {cache}: other users may write to it")
    assert "elsewhere.py:3: UserWarning: of another" in _formatted("of another", UserWarning, "elsewhere.py", 3)
