"""`codegen tune` on times that are made up, and what becomes of its file: the build, the modules, `explain`."""

import importlib
import json
import sys

import pytest

from codegen import __main__ as command_line
from codegen.measuring.tune import clock as tune_clock
from codegen.runtime.compiled import platform

SPEC = """\
op: tuned_softmax
summary: Softmax of each row.
types: {T: [float32, bfloat16]}
inputs: {x: 'T[..., N]'}
outputs: {y: 'T[..., N]'}
chain: y = softmax(x, axis=N)
reference: jax.nn.softmax(x, axis=-1)
bench: [{...: 8192, N: 4096}]
"""


class MadeUp:
    """A clock by which 256 threads are faster for the forward, and XLA for the backward."""

    def __init__(self, *given):
        pass

    def prepare(self, kernel, some):
        pass

    def measure(self, kernel, some):
        forward = not kernel.task.kernel.endswith("backward")
        return [0.9 if forward and changes == {"threads": 256} else 1.1 for changes in some]

    def compare(self, kernel, best):
        xla = 50.0 if kernel.task.kernel.endswith("backward") else 200.0
        return {"us": 90.0 if best else 100.0, "planned_us": 100.0, "xla_us": xla, "copy_us": 80.0}

    def close(self):
        pass


@pytest.fixture
def run(tmp_path, monkeypatch, capsys):
    """A command in a project with one op, on a machine with a GPU that is made up."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    monkeypatch.setattr(platform, "on_gpu", lambda: True)
    monkeypatch.setenv("CUTE_DSL_ARCH", "sm_90a")
    monkeypatch.setattr(tune_clock, "Device", MadeUp)
    (tmp_path / "pyproject.toml").write_text('[tool.cutefuse]\npackage = "tuned_ops"\n')
    (tmp_path / "specs").mkdir()
    (tmp_path / "specs/tuned_softmax.yaml").write_text(SPEC)

    def command(*words) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["codegen", *words])
        try:
            command_line.main()
            status = 0
        except SystemExit as ended:
            status = ended.code or 0
        return status, *capsys.readouterr()

    assert command("build")[0] == 0
    yield command
    forget()


def forget() -> None:
    """The package is imported anew."""
    for name in [name for name in sys.modules if name.partition(".")[0] == "tuned_ops"]:
        del sys.modules[name]


def test_what_was_measured_reaches_modules_and_calls(run, tmp_path):
    status, out, err = run("tune")
    assert status == 0, err
    assert "threads 256" in out and "XLA" in out
    assert "5.6% longer" in out and "11.1% at worst (tuned_softmax)" in out
    path = tmp_path / "specs/tuning/sm_90a.yaml"
    assert path.read_text().count("- kernel: ") == 2
    # a second run has nothing to do, another with --again has
    status, out, err = run("tune")
    assert "2 were measured before" in err and "nothing was measured" in out
    assert "2 were measured before" not in run("tune", "--again")[2]

    assert run("check")[0] == 1  # the modules lack it
    assert run("build")[0] == 0
    assert run("check")[0] == 0
    forget()
    op = importlib.import_module("tuned_ops.tuned_softmax").tuned_softmax
    assert {t.kernel: t.take for t in op.tuning} == {"tuned_softmax": "launch", "tuned_softmax_backward": "xla"}

    report = json.loads(run("explain", "tuned_softmax", "--json")[1])
    (cost,) = (cost for cost in report["costs"] if cost["types"] == {"T": "bfloat16"})
    assert cost["launch_in_clusters"]["threads"] == 256
    assert cost["launch_in_clusters"]["measured"]["us"] == 90.0


def test_explain_says_that_a_call_is_left_to_xla(run, monkeypatch):
    monkeypatch.setattr(
        MadeUp, "compare", lambda *given: {"us": 100.0, "planned_us": 100.0, "xla_us": 50.0, "copy_us": 40.0}
    )
    assert run("tune")[0] == 0
    out = run("explain", "tuned_softmax")[1]
    assert "left to XLA" in out and "bfloat16: measured: 50.0 us, the kernel 100.0 us" in out


def test_a_run_that_ends_early_goes_on_later(run, tmp_path):
    status, _, err = run("tune", "--minutes", "0")
    assert status == 0
    assert "0 of 2 were measured: run it again to go on" in err
    assert not (tmp_path / "specs/tuning").exists()


def test_a_file_that_is_not_one_of_tune_is_an_error(run, tmp_path):
    (tmp_path / "specs/tuning").mkdir()
    (tmp_path / "specs/tuning/sm_90a.yaml").write_text("ops: {}\n")
    for command in (["build"], ["tune"], ["explain", "tuned_softmax"]):
        status, out, err = run(*command)
        assert (status, out) == (2, "")
        assert "specs/tuning/sm_90a.yaml:1:1: error: not a file of measured launches in version 1" in err


def test_without_a_gpu_there_is_nothing_to_time(run, monkeypatch):
    monkeypatch.setattr(platform, "on_gpu", lambda: False)
    status, _, err = run("tune")
    assert status == 2 and err.startswith("error: JAX has no NVIDIA GPU here")
