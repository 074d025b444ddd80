"""The content of a distribution, and its use where there is no checkout."""

import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

import generated
from codegen import __version__
from tests import installing
from tests.places import ROOT
from tests.turns import EVERY

USE = """
import jax.numpy as jnp

import cutefuse
from cutefuse import dense_gelu, rmsnorm
from generated import scaled

x = jnp.arange(12.0).reshape(3, 4) - 5
expected = scaled.reference(x, jnp.ones(4))
for implementation in (None, "xla", "interpret"):
    assert jnp.array_equal(scaled(x, jnp.ones(4), implementation=implementation), expected)
assert jnp.allclose(rmsnorm(x), rmsnorm.reference(x), rtol=1e-6)
assert dense_gelu.__name__ in cutefuse.__doc__
print(cutefuse.__version__, cutefuse.__file__)
"""
LIBRARY = """
import importlib.util

import cutefuse
import codegen.library

print(cutefuse.__version__, len(cutefuse.__all__), importlib.util.find_spec("generated"))
print(sum(path.name.endswith(".yaml") for path in codegen.library.folder("specs").iterdir()))
"""
# A process with the libraries that running an op needs, and no others of the environment
BARE = """
import sys

class Refuse:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in REFUSED:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

REFUSED = {"elftools", "flatbuffers", "hypothesis", "jinja2", "llvmlite", "matplotlib", "pytest", "rich", "typer", "yaml"}
sys.meta_path.insert(0, Refuse())
"""


@pytest.fixture(scope="module")
def wheel(tmp_path_factory) -> Path:
    """A wheel, made from an unpacked source distribution as pip does."""
    folder = tmp_path_factory.mktemp("dist")
    sdist = installing.build("sdist", installing.sources(folder / "checkout"), folder)
    return installing.build("wheel", installing.unpacked(sdist), folder)


def test_a_wheel_holds_the_program_and_its_library(wheel):
    names = set(zipfile.ZipFile(wheel).namelist())
    for folder, inside, pattern in (
        ("codegen", "codegen", "**/*.py"),
        ("codegen", "codegen", "language/prelude.txt"),
        ("codegen", "codegen", "py.typed"),
        ("generated", "cutefuse", "*.py*"),
        ("templates", "codegen/templates", "*"),
        ("specs", "codegen/specs", "*"),
    ):
        found = [p.relative_to(ROOT / folder) for p in (ROOT / folder).glob(pattern) if p.is_file()]
        assert found, folder
        assert {f"{inside}/{path}" for path in found} <= names
    assert {name.partition("/")[0] for name in names} == {
        "codegen", "cutefuse", "cutefuse_command.py", f"cutefuse-{__version__}.dist-info"
    }  # fmt: skip


def test_the_way_of_a_user(wheel, tmp_path):
    bin = installing.environment(tmp_path / "environment")
    installing.install(bin, wheel)
    home = tmp_path / "project"
    home.mkdir()

    def run(*words: str, status: int = 0) -> str:
        kept = {"CODEGEN_CACHE_DIR": str(tmp_path / "cache"), "JAX_PLATFORMS": "cpu"}
        return installing.run(bin / words[0], *words[1:], cwd=home, status=status, **kept)

    assert f"codegen {__version__} (cutefuse)" in run("codegen", "--version")
    run("codegen", "new", "scaled")
    spec = home / "specs/scaled.yaml"
    spec.write_text(spec.read_text().replace("[float32, float16, bfloat16]", "[float32]") + "grad: none\n")
    assert "1 op: 3 of 3 files changed" in run("cutefuse", "build")
    assert "1 op is up to date" in run("codegen", "check")
    (home / "use.py").write_text(USE)
    version, place = run("python", "use.py").split()
    assert version == __version__
    assert str(bin.parent) in place
    assert "elementwise" in run("codegen", "explain", "scaled")
    if EVERY:
        assert "1 of 1 ops agree" in run("codegen", "verify", "scaled", "--implementation", "xla", "--examples", "1")
        assert ".target sm_90a" in run("codegen", "compile", "scaled", "--arch", "sm_90a", "--ptx", "--jobs", "1")
        shape = ("--shape", "...=rows,N=64")
        run("codegen", "export", "scaled", "--arch", "sm_90a", *shape, "--types", "T=float32", "--out", "scaled.jax")
        assert (home / "scaled.jax").stat().st_size > 1000
        assert "2 passed" in run("python", "-m", "pytest", "tests/generated")
    run("codegen", "init")
    assert "2 passed" in run("python", "-P", "-m", "pytest", "tests/generated")  # as `pytest`
    (home / "use.py").unlink()
    if EVERY:  # mypy reads JAX, which takes as long as all before it
        assert "Success" in run("python", "-m", "mypy", "generated")
    assert "All checks passed" in run("python", "-m", "ruff", "check")


@pytest.mark.whole
def test_an_editable_install(tmp_path):
    """Outside the checkout there is no `generated`: that name is a user's own package. A checkout's own
    environment is such an install, which each run of the tests makes or uses."""
    checkout = installing.sources(tmp_path / "checkout")
    bin = installing.environment(tmp_path / "environment")
    installing.install(bin, "--editable", checkout)
    home = tmp_path / "project"
    home.mkdir()
    found = installing.run(bin / "python", "-c", LIBRARY, cwd=home).split()
    assert found == [__version__, str(len(generated.__all__)), "None", str(len(generated.__all__))]
    installing.run(bin / "codegen", "new", "mine", cwd=home)
    assert "1 op: 3 of 3 files changed" in installing.run(bin / "cutefuse", "build", cwd=home)


def test_in_a_checkout_cutefuse_is_generated():
    import cutefuse.rmsnorm_rstd
    from cutefuse import rmsnorm

    assert cutefuse is generated
    assert rmsnorm is generated.rmsnorm
    assert sys.modules["cutefuse.rmsnorm_rstd"] is sys.modules["generated.rmsnorm_rstd"]
    assert sys.modules["generated.rmsnorm_rstd"].__spec__.name == "generated.rmsnorm_rstd"
    assert cutefuse.__version__ == __version__


def test_an_op_runs_on_the_base_dependencies_alone():
    """And a feature that needs more says what to install."""
    found = bare(
        """
import jax, jax.numpy as jnp
from cutefuse import rmsnorm

x = jnp.ones((2, 8))
assert jnp.allclose(jax.grad(lambda x: rmsnorm(x).sum())(x), 0, atol=1e-5)
assert not REFUSED & set(sys.modules)
try:
    rmsnorm(x, implementation="interpret")
except ImportError as error:
    print(error)
REFUSED = {"hypothesis", "matplotlib"}
sys.argv = ["codegen", "verify", "relu"]
from cutefuse_command import main
main()
"""
    )
    assert found.returncode == 2, found.stderr
    assert found.stdout == "llvmlite is not installed: pip install 'cutefuse[interpret]'\n"
    assert found.stderr == "error: hypothesis is not installed: pip install 'cutefuse[test]'\n"


@pytest.mark.parametrize(("command", "missing"), [("build", "jinja2"), ("check", "yaml"), ("list", "typer")])
def test_a_command_says_what_to_install(command, missing):
    code = f"REFUSED = {{{missing!r}}}; sys.argv = ['codegen', {command!r}]; from cutefuse_command import main; main()"
    found = bare(code)
    assert (found.returncode, found.stdout) == (2, "")
    assert found.stderr == f"error: {missing} is not installed: pip install 'cutefuse[build]'\n"


def bare(code: str) -> subprocess.CompletedProcess:
    """The result of a Python process that finds none of the libraries in REFUSED."""
    return subprocess.run([sys.executable, "-c", BARE + code], cwd=ROOT, capture_output=True, text=True, check=False)


@pytest.mark.parametrize("whole", [False, True])
def test_another_distribution_named_codegen(tmp_path, whole):
    """The first line names it, whether its files replaced ours or are next to them."""
    (tmp_path / "codegen-1.0.dist-info").mkdir()
    (tmp_path / "codegen-1.0.dist-info/METADATA").write_text("Metadata-Version: 2.1\nName: codegen\nVersion: 1.0\n")
    if not whole:
        (tmp_path / "codegen.py").write_text("to_source = None\n")
    code = "import sys; sys.argv = ['cutefuse', '--version']; import cutefuse_command; cutefuse_command.main()"
    path = f"import sys; sys.path[:0] = [{str(tmp_path)!r}, {str(ROOT)!r}]; "
    found = subprocess.run(
        [sys.executable, "-c", path + code], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    first = found.stderr.splitlines()[0]
    assert "codegen 1.0" in first
    assert found.returncode == (0 if whole else 2)
    assert first.startswith("warning:" if whole else "error:")
    assert whole or "pip uninstall codegen" in found.stderr
