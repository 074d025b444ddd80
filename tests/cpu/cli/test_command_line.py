"""Commands that load JAX: an error in a package, the environment or a reference is one message."""

import json
import os
import signal
import subprocess
import sys

import pytest
from cutlass.base_dsl.enums import Arch

from codegen import __main__ as command_line
from codegen.checking.verify import verify
from codegen.cli.files.outputs import put
from codegen.pipeline import read_op
from codegen.plan.planner import overrides
from codegen.targets import ARCHITECTURES
from tests.making import make_op, spec_text
from tests.places import ROOT


def run(monkeypatch, capsys, *words) -> tuple[int, str, str]:
    """The exit status and the output of a command."""
    monkeypatch.setattr(sys, "argv", ["codegen", *map(str, words)])
    try:
        command_line.main()
        status = 0
    except SystemExit as ended:
        status = ended.code or 0
    return status, *capsys.readouterr()


@pytest.fixture
def packages(tmp_path, monkeypatch, capsys):
    """A project in which `codegen build` made a package of the given specs."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])

    def build(package: str, **specs: str) -> None:
        folder = tmp_path / f"specs_of_{package}"
        folder.mkdir()
        for name, text in specs.items():
            (folder / f"{name}.yaml").write_text(text.replace("op: made", f"op: {name}"))
        words = ("build", "--specs", folder, "--out", package, "--tests", "")
        assert run(monkeypatch, capsys, *words)[0] == 0

    return build


DOUBLE = spec_text("x: float32[..., N]", "y: float32[..., N]", "y = x * 2", "x * 2")


def test_a_reference_that_fails_is_a_line_of_its_op(packages, monkeypatch, capsys):
    misshapen = spec_text("x: float32[..., N]", "y: float32[..., N]", "y = x * 2", "jnp.ones((3, 5, 7))")
    unknown = spec_text("x: float32[..., N]", "y: float32[..., N]", "y = x * 2", "jax.nn.reluu(x)")
    packages("of_references", double=DOUBLE, misshapen=misshapen, unknown=unknown)
    words = ("verify", "--package", "of_references", "--implementation", "xla", "--examples", 2, "--json")
    status, out, err = run(monkeypatch, capsys, *words)
    assert (status, err) == (1, "")
    found = {o["op"]: o for o in json.loads(out)}
    assert (found["double"]["failure"], found["double"]["gradient"]) == ("", "agrees")
    assert found["unknown"]["failure"].startswith(
        "unknown: its reference fails: AttributeError: module 'jax.nn' has no"
    )
    for key in ("failure", "gradient"):
        assert found["misshapen"][key].startswith("misshapen: its reference gives y the shape (3, 5, 7); it is float32")
    assert found["unknown"]["gradient"].startswith("unknown: its reference fails: ")


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("CODEGEN_CACHE_LIMIT", "abc", "CODEGEN_CACHE_LIMIT is 'abc'\n  it is a number of bytes, as in 512M or 2G; 0 keeps none"),
        ("CUTE_DSL_ARCH", "sm_70", "CUTE_DSL_ARCH: there is no architecture 'sm_70'\n  There are: sm_100,"),
    ],
)  # fmt: skip
def test_the_environment_is_looked_at_first(name, value, message, packages, monkeypatch, capsys):
    packages("of_settings", double=DOUBLE)
    monkeypatch.setenv(name, value)
    for words in (("verify",), ("compile",), ("explain", "double", "--interpret", "--specs", "specs_of_of_settings")):
        status, out, err = run(monkeypatch, capsys, *words, "--package", "of_settings")
        assert (status, out, err.startswith(f"error: {message}")) == (2, "", True)


def test_a_platform_that_jax_has_not():
    words = (sys.executable, "-m", "codegen", "verify", "relu")
    environment = {**os.environ, "JAX_PLATFORMS": "foo"}
    found = subprocess.run(words, env=environment, cwd=ROOT, capture_output=True, text=True, check=False)
    assert (found.returncode, found.stdout) == (2, "")
    assert found.stderr.startswith("error: JAX finds no device: Unable to initialize backend 'foo'")


def test_a_package_that_cannot_be_imported(packages, tmp_path, monkeypatch, capsys):
    packages("of_parts", double=DOUBLE)
    (tmp_path / "of_parts/double.py").unlink()
    status, _, err = run(monkeypatch, capsys, "verify", "--package", "of_parts")
    assert status == 2
    assert err.startswith("error: of_parts cannot be imported")
    assert err.endswith(": No module named 'of_parts.double'\n  `codegen build` makes it again\n")
    (tmp_path / "of_parts/double.py").write_text("double = double")
    status, _, err = run(monkeypatch, capsys, "compile", "--package", "of_parts")
    assert (status, f"{tmp_path}/of_parts/double.py:1: NameError: name 'double' is not defined\n" in err) == (2, True)
    (tmp_path / "own").mkdir()
    (tmp_path / "own/__init__.py").write_text("")
    message = "error: no ops in own: run `codegen build`, or name their package with --package\n"
    assert run(monkeypatch, capsys, "verify", "--package", "own") == (2, "", message)


def changed_spec(folder, spec):
    spec.write_text(spec.read_text().replace("x * 2", "x * 3"))


def edited_kernel(folder, spec):
    edited(folder, "rX, = ", "rZ, = ")


def broken_module(folder, spec):
    edited(folder, "import jax", "import jax jax")


def edited_spec_of_a_module(folder, spec):
    """Without the spec's file, the spec that the module contains counts."""
    spec.unlink()
    edited(folder, "y = x * 2", "y = x * 3")


def edited(folder, before, after):
    module = folder / "double.py"
    assert before in module.read_text()
    module.write_text(module.read_text().replace(before, after, 1))


@pytest.mark.parametrize("change", [changed_spec, edited_kernel, broken_module, edited_spec_of_a_module])
def test_stale_code_is_not_verified(change, packages, tmp_path, monkeypatch, capsys):
    name = f"with_{change.__name__}"
    packages(name, double=DOUBLE, same=DOUBLE)
    specs = tmp_path / f"specs_of_{name}"
    change(tmp_path / name, specs / "double.yaml")
    words = ("verify", "--package", name, "--specs", specs.name, "--implementation", "xla", "--examples", 1)
    status, out, err = run(monkeypatch, capsys, *words)
    assert (status, out) == (2, "")
    assert err == (
        f"error: {name}/double.py is out of date: a file was changed since the build, or codegen was\n"
        f"  Run: codegen build --specs {specs.name} --package {name} (or name the folder of their specs with --specs)\n"
    )
    assert run(monkeypatch, capsys, *words, "same")[0] == 0
    if change is not edited_spec_of_a_module:
        assert run(monkeypatch, capsys, "build", "--specs", specs.name, "--out", name, "--tests", "")[0] == 0
        assert run(monkeypatch, capsys, *words, "double")[0] == 0


def test_specs_that_are_not_there_are_no_specs_to_verify_by(packages, monkeypatch, capsys):
    packages("of_nowhere", double=DOUBLE)
    words = ("verify", "--package", "of_nowhere", "--specs", "nowhere")
    assert run(monkeypatch, capsys, *words) == (2, "", "error: --specs nowhere: no such folder\n")


def test_a_package_comes_before_others_of_its_name(packages, tmp_path, monkeypatch, capsys):
    packages("of_one_name", double=DOUBLE)
    (tmp_path / "other/of_one_name").mkdir(parents=True)
    (tmp_path / "other/of_one_name/__init__.py").write_text("")
    monkeypatch.setattr(sys, "path", [str(tmp_path / "other"), str(tmp_path), *sys.path])
    words = ("verify", "--package", "of_one_name", "--implementation", "xla", "--examples", 1)
    assert run(monkeypatch, capsys, *words)[0] == 0


def test_what_is_too_large_to_interpret(packages, monkeypatch, capsys):
    packages("of_sizes", double=DOUBLE)
    words = ("explain", "double", "--interpret", "--package", "of_sizes", "--specs", "specs_of_of_sizes")
    assert run(monkeypatch, capsys, *words, "--shape", "...=200000,N=100000") == (
        2, "", "error: 'y' has 20000000000 elements, too many to interpret\n  at most 16777216: give a smaller --shape\n"
    )  # fmt: skip


def test_what_an_architecture_lacks_is_not_interpreted(packages, monkeypatch, capsys):
    packages("of_float8", double=DOUBLE.replace("float32", "float8_e4m3fn"))
    monkeypatch.setenv("CUTE_DSL_ARCH", "sm_80")
    words = ("explain", "double", "--interpret", "--package", "of_float8", "--specs", "specs_of_of_float8")
    code, out, _ = run(monkeypatch, capsys, *words)
    assert code == 0 and "interpreted: nothing, since the architecture in CUTE_DSL_ARCH has no kernel" in out


def test_the_architectures_are_those_of_the_compiler():
    assert set(ARCHITECTURES) == set(Arch.__members__)


def test_a_schedule_for_an_architecture_is_that_of_its_variants():
    more = "schedule: {threads: 64, vector_bytes: 8, sm_90: {threads: 128}, sm_100: {threads: 256}, sm_100f: {threads: 512}}"
    spec = read_op("specs/made.yaml", spec_text("x: float32[N]", "y: float32[N]", "y = x", more=more)).spec
    expected = {None: 64, "sm_80": 64, "sm_90": 128, "sm_90a": 128, "sm_100a": 256, "sm_100f": 512}
    assert {arch: overrides(spec, arch) for arch in expected} == {
        arch: {"threads": threads, "vector_bytes": 8} for arch, threads in expected.items()
    }


def test_a_file_is_written_whole_or_not_at_all(tmp_path, monkeypatch):
    path = tmp_path / "drawing.svg"
    put(path, b"old")

    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.replace", full)
    with pytest.raises(OSError, match=r"No space left on device: '.*drawing\.svg'"):
        put(path, b"new")
    assert (path.read_bytes(), list(tmp_path.iterdir())) == (b"old", [path])


def test_verifying_runs_the_backward_s_kernel(tmp_path, monkeypatch):
    op = make_op(tmp_path, DOUBLE)
    (right,) = verify([op], "interpret", 8, None)
    assert right.good and right.gradient == "agrees"
    run_interpret = op._backward._run_interpret
    monkeypatch.setattr(op._backward, "_run_interpret", lambda *a, **k: [2 * dx for dx in run_interpret(*a, **k)])
    for made in (op, op._backward):
        made._functions.cache_clear()
    (wrong,) = verify([op], "interpret", 8, 1)
    assert not wrong.good and "the gradient of 'x' is off by" in wrong.gradient


def test_verifying_that_is_terminated_shows_what_it_has(packages, monkeypatch, capsys):
    from codegen.checking import verify as verifying

    packages("of_two", double=DOUBLE, same=DOUBLE, third=DOUBLE)
    whole = verifying.verify

    def interrupted(ops, *rest):
        yield from whole(ops[:2], *rest)
        signal.raise_signal(signal.SIGTERM)  # as `timeout` sends it

    monkeypatch.setattr(verifying, "verify", interrupted)
    words = ("verify", "--package", "of_two", "--implementation", "xla", "--examples", 1)
    status, out, err = run(monkeypatch, capsys, *words)
    assert (status, err) == (130, "interrupted: these are 2 of 3\n")
    assert "double" in out and "same" in out and "third" not in out
    assert "2 of 2 ops agree" in out
