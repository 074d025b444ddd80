"""Some of the generated kernels, in turns: they compile, and their memory accesses are as wide as planned."""

import dataclasses
import inspect
import itertools
import json
import re
import sys
import types
from pathlib import Path

import jax
import pytest
from making import make_op, spec_text

import generated
from codegen import __main__ as command_line
from codegen import cache
from codegen.measuring.compiled import compile as compiling
from codegen.measuring.compiled import tasks as many
from codegen.measuring.compiled.accesses import Operand, entries, memory_accesses
from codegen.measuring.compiled.compile import compile_kernel, kernels_name, parameters_of
from codegen.measuring.compiled.tasks import Task, compile_tasks
from codegen.measuring.compiled.variants import Variant, variants
from codegen.runtime.call.arguments import Types
from codegen.runtime.compiled import kernels
from codegen.runtime.ops.op import Op
from codegen.shared import Launch
from codegen.targets import USUAL

ARCHITECTURES = USUAL.split(",")


# What is read from a kernel


def variant_of(op: Op, words: str) -> Variant:
    return next(v for v in variants(op) if str(v) == words)


@pytest.mark.parametrize("arch", ARCHITECTURES)
def test_spills_are_counted(arch, monkeypatch):
    """128 values a thread and 1024 threads: 64 registers cannot hold them."""
    monkeypatch.setattr(compiling, "launch_of", lambda op, variant, arch=None: Launch(128, variant.ragged, 1024))
    compiled = compile_kernel(generated.relu, variant_of(generated.relu, "T=float32"), arch)
    assert compiled.spills > 0
    assert compiled.stack > 0
    assert compiled.registers <= 64


def test_a_stack_that_the_source_asks_for_is_no_spill(tmp_path):
    """The float64 sine of the library keeps a table on the stack."""
    spec = [
        "op: sine",
        "summary: Sine.",
        "inputs: {x: 'float64[N]'}",
        "outputs: {y: 'float64[N]'}",
        "chain: y = sin(x)",
    ]
    op = make_op(tmp_path, "\n".join([*spec, "reference: jnp.sin(x)"]))
    compiled = compile_kernel(op, variant_of(op, "-"), "sm_90a")
    assert compiled.stack > 0 == compiled.spills
    assert compiled.loads == compiled.stores == (16,)


def test_a_product_may_be_stored_in_float64(tmp_path):
    """The call to compile has types that JAX has only with jax_enable_x64."""
    op = make_op(tmp_path, spec_text("x: float32[..., K]; w: float32[K, F]", "y: float64[..., F]", "y = relu(x @ w)"))
    call, _ = compiling._call(op, next(variants(op)), "sm_90a")
    assert "float64" in {dtype for dtype, *_ in call.outputs}


PTX = """
.visible .entry kernel(
	.param .align 8 .b8 kernel_param_0[24],
	.param .align 8 .b8 kernel_param_1[8]
)
{
	ld.param.b64 	%rd1, [kernel_param_0];
	ld.param.b32 	%r1, [kernel_param_0+8];
	ld.param.b64 	%rd2, [kernel_param_1];
$L__BB0_1:
	ld.global.v4.b32 	{%r2, %r3, %r4, %r5}, [%rd5+16];
	ld.global.nc.L1::no_allocate.b16 	%rs1, [%rd2];
	add.s64 	%rd4, %rd3, %rd1;
	mov.b64 	%rd5, %rd4;
	mov.b64 	%rd6, table;
	ld.global.f32 	%f1, [%rd6+4];
	@%p1 st.global.v2.b64 	[%rd5], {%rd7, %rd8};
	ld.shared.b32 	%r6, [%r7];
	bra $L__BB0_1;
}
"""


SUMS = """
op: totals
summary: A product whose backward sums over columns, and over everything.
inputs:
  x: float32[..., K]
  w: float32[K, N]
  c: float32[2]
  h: float32[N]
outputs:
  y: float32[..., N]
chain: |
  y = (x @ w) * c[0] * h + c[1]
reference: |
  y = (x @ w) * c[0] * h + c[1]
"""


def test_a_kernel_is_told_from_one_whose_name_begins_alike(tmp_path):
    """The types of a kernel's arguments follow its name: here None, which begins with the last letter of the other name."""
    op = next(op for op in make_op(tmp_path, SUMS).kernels if op.spec.op == "totals_backward")
    tensors = list(inspect.signature(op._launch).parameters)[1:]
    everything, columns = (
        parameters_of(op, f"kernel_cutlass_{name}_None_tensorptr_1", tensors)
        for name in ("totals_backward_finish", "totals_backward_finish_N")
    )
    assert "mDc" in everything
    assert "mDh" not in everything
    assert "mDh" in columns


def test_kernels_that_ops_share_are_named_after_one_of_them(tmp_path):
    """The forward that saves more may have the launcher of the op."""
    op = next(op for op in make_op(tmp_path, SUMS).kernels if op.spec.op == "totals_backward")
    other = types.SimpleNamespace(spec=dataclasses.replace(op.spec, op="totals_forward"), _launch=op._launch)
    tensors = list(inspect.signature(op._launch).parameters)[1:]
    found = [parameters_of(o, "kernel_cutlass_totals_backward_kernel_None_1", tensors) for o in (op, other)]
    assert "mW" in found[0] or "mDy" in found[0]
    assert found[1] == found[0]


def test_accesses_are_followed_to_their_operands():
    """Through address arithmetic and around a loop; accesses of tables and of shared memory are told apart."""
    found = {(a.store, a.width, tuple(a.sources)) for _, text in entries(PTX) for a in memory_accesses(text)}
    assert found == {(False, 16, (0,)), (False, 2, (1,)), (False, 4, ("table",)), (True, 16, (0,))}


# Many kernels at once, and the command


def run(monkeypatch, *words) -> int:
    """The exit status of `codegen ...`."""
    monkeypatch.setattr(sys, "argv", ["codegen", *map(str, words)])
    with pytest.raises(SystemExit) as stopped:
        command_line.main()
    return stopped.value.code or 0


def test_processes_agree_with_one(cold_cache, monkeypatch):
    monkeypatch.setenv("CODEGEN_CACHE_LIMIT", "0")  # each process compiles them
    tasks = [Task("relu", variant, "sm_90a") for variant in [*variants(generated.relu)][:3]]
    one, two = ({o.task: o.compiled for o in compile_tasks(Path("generated"), tasks, jobs)} for jobs in (1, 2))
    assert one == two
    assert None not in one.values()


def test_compile_prints_a_table_as_json(monkeypatch, capsys):
    words = ["compile", "swiglu", "--arch", "sm_80,sm_120a", "--types", "T=bfloat16", "--jobs", 1, "--json"]
    assert run(monkeypatch, *words) == 0
    rows = json.loads(capsys.readouterr().out)
    assert [r["op"] for r in rows] == ["swiglu"] * 4 + ["swiglu_backward"] * 4
    rows = rows[:4]
    assert [(r["arch"], r["ragged"]) for r in rows] == [(a, g) for g in (False, True) for a in ("sm_80", "sm_120a")]
    assert rows[0]["op"] == "swiglu"
    assert rows[0]["types"] == {"T": "bfloat16"}
    assert rows[0]["operands"]["x"] == {"loads": [16], "stores": []}
    assert rows[0]["spills"] == 0 < rows[0]["registers"]


def test_what_was_compiled_before_is_not_compiled_again(cold_cache, monkeypatch):
    tasks = [Task("relu", variant, "sm_90a") for variant in variants(generated.relu, {"T": "float32"})]
    tasks.append(Task("dense_relu", next(variants(generated.dense_relu)), "sm_80"))
    first = {o.task: o.compiled for o in compile_tasks(Path("generated"), tasks, 1)}
    assert None not in first.values()
    assert {entry.kernel for entry in cache.entries(cold_cache)} == {"relu", "dense_relu"}
    monkeypatch.setattr(compiling, "_compile", lambda *_: pytest.fail("it is compiled again"))
    monkeypatch.setattr(many, "ProcessPoolExecutor", lambda *_: pytest.fail("a process is started"))
    assert {o.task: o.compiled for o in compile_tasks(Path("generated"), tasks, 2)} == first
    assert compiling.kept_kernel(generated.relu, tasks[0].variant, "sm_80") is None


@pytest.fixture
def pretended(monkeypatch):
    """Replaces compiling by a function that takes no time and gives two outcomes, and then raises KeyboardInterrupt if
    there are more tasks; gives its tasks."""
    asked: list[Task] = []
    made = compiling.Compiled("", b"", 255, 64, 1024, 65536, (Operand("x", (16, 8, 4, 2, 1), (16, 8, 4, 2)),))

    def compile_tasks(folder, tasks, jobs):
        asked.extend(tasks)
        for place, task in enumerate(tasks):
            if place == 2:
                raise KeyboardInterrupt
            yield many.Outcome(task, made)

    monkeypatch.setattr(many, "compile_tasks", compile_tasks)
    return asked


def test_backwards_can_be_left_out(pretended, monkeypatch, capsys):
    words = ["compile", "bias_relu", "dense_gelu", "--arch", "sm_90a", "--types", "T=bfloat16", "--json"]
    names = {}
    for option in ("--no-backward", "--backward", "--json"):
        run(monkeypatch, *words, option)
        capsys.readouterr()
        names[option] = {task.op for task in pretended}
        pretended.clear()
    assert names["--no-backward"] == {"bias_relu", "dense_gelu", "dense_gelu_epilogue"}
    assert {"bias_relu_backward", "bias_relu_frozen", "dense_gelu_backward"} <= names["--backward"]
    assert names["--json"] == names["--no-backward"] | names["--backward"]
    assert not names["--no-backward"] & names["--backward"]


@pytest.mark.parametrize("form", [[], ["--json"]])
def test_a_compile_that_is_interrupted_shows_what_it_has(form, pretended, monkeypatch, capsys):
    words = ["compile", "relu", "--no-backward", "--arch", "sm_90a"]
    assert run(monkeypatch, *words, *form) == 130
    out, err = capsys.readouterr()
    assert err == f"interrupted: these are 2 of {len(pretended)}\n"
    if form:
        assert [row["registers"] for row in json.loads(out)] == [255, 255]
    else:
        assert len([line for line in out.splitlines() if line.startswith("relu T=")]) == 2


def test_the_table_fits_80_columns_and_loses_nothing(pretended):
    from rich.console import Console

    variant = Variant(Types((("T", "bfloat16"), ("S", "float32"))), True, True, 131072)
    task = Task("dense_row_scaled_residual_backward", variant, "sm_100a")
    outcomes = [next(many.compile_tasks(Path(), [task], 1)), many.Outcome(task, None, "ptxas: no\nmore")]
    console = Console(width=80)
    with console.capture() as shown:
        console.print(many.as_table(outcomes))
    text = shown.get()
    assert "".join(text.split()).count("dense_row_") == 2
    for cell in ("sm_100a", " 255 ", " 1024 ", " 64 ", " 65536 ", " 16 8 4 2 1 ", "16 8 4 2", "columns=131072", "no"):
        assert cell in text
    assert "…" not in text


def test_a_bound_of_registers_that_gave_way_is_shown(pretended):
    from rich.console import Console

    task = Task("softmax", Variant(Types((("T", "bfloat16"),)), False, False, 512), "sm_90a")
    (outcome,) = itertools.islice(many.compile_tasks(Path(), [task], 1), 1)
    given_way = many.Outcome(task, dataclasses.replace(outcome.compiled, unbound=3))
    assert [many.as_row(o)["unbound"] for o in (outcome, given_way)] == [0, 3]
    console = Console(width=120)
    with console.capture() as shown:
        console.print(many.as_table([outcome, given_way]))
    assert shown.get().count("registers of fewer than 3 blocks per SM") == 1


def test_a_kernel_that_does_not_compile_is_a_row_and_status_1(cold_cache, monkeypatch, capsys):
    def refuse(op, variant, arch):
        raise RuntimeError("ptxas: no\nmore")

    monkeypatch.setattr(many, "compile_kernel", refuse)
    words = ["compile", "relu", "--arch", "sm_80", "--types", "T=float32", "--jobs", 1]
    assert run(monkeypatch, *words, "--json") == 1
    assert all("ptxas: no" in row["error"] for row in json.loads(capsys.readouterr().out))
    assert run(monkeypatch, *words) == 1
    assert "ptxas: no" in capsys.readouterr().out


def test_ptx_of_one_kernel(monkeypatch, capsys):
    words = ["compile", "relu", "--arch", "sm_100a", "--ptx", "--types", "T=float16", "--jobs", 1]
    assert run(monkeypatch, *words) == 0
    whole = capsys.readouterr().out
    assert ".target sm_100a" in whole
    assert "ld.global.v4.b32" in whole
    assert run(monkeypatch, *words, "--ragged") == 0
    assert "ld.global.b16" in capsys.readouterr().out


def test_ptx_of_a_contraction_is_that_of_its_products(monkeypatch, capsys):
    words = ["compile", "dense_relu", "--arch", "sm_90a", "--ptx", "--types", "T=bfloat16", "--jobs", 1]
    assert run(monkeypatch, *words) == 0
    assert "wgmma.mma_async" in capsys.readouterr().out


def test_sass_needs_a_tool(monkeypatch, capsys, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    words = ["compile", "relu", "--arch", "sm_80", "--sass", "--types", "T=float16", "--jobs", 1]
    assert run(monkeypatch, *words) == 2
    assert "neither cuobjdump nor nvdisasm" in capsys.readouterr().err
    tool = tmp_path / "cuobjdump"
    tool.write_text(f"#!{sys.executable}\nimport sys\nprint(sys.argv[1], open(sys.argv[2], 'rb').read(4))\n")
    tool.chmod(0o755)
    assert run(monkeypatch, *words) == 0
    assert capsys.readouterr().out == "-sass b'\\x7fELF'\n\n"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["nonsuch"], "no op 'nonsuch'"),
        (["relu", "--arch", "sm_7"], "no architecture 'sm_7'"),
        (["relu", "--types", "T=int8"], "no op named here has a kernel with T=int8"),
        (["relu", "--types", "T"], "cannot read"),
        (["relu", "swiglu", "--ptx"], "--ptx and --sass show one op"),
        (
            ["gelu_fp8", "--arch", "sm_80"],
            "error: gelu_fp8: 'q' is float8_e4m3fn, which sm_80 cannot convert; its kernel needs sm_89 or newer\n",
        ),
        (["--package", "nowhere"], "codegen build"),
        (["relu", "--jobs", "0"], "--jobs"),
    ],
)
def test_errors_end_in_one_message(words, message, monkeypatch, capsys):
    assert run(monkeypatch, "compile", *words) == 2
    out, err = capsys.readouterr()
    assert message in err
    assert out == ""
    assert "Traceback" not in err


@pytest.mark.parametrize("arch", ["sm_80", "sm_90a"])
def test_the_last_kernel_waits_before_it_reads(arch):
    """It is launched before the kernel that writes the parts has ended; the interpreter runs one after the other."""
    op = generated.bias_grad
    texts = dict(entries(compile_kernel(op, next(variants(op)), arch).ptx))
    (first,) = [t for name, t in texts.items() if "finish" not in name]
    (last,) = [t for name, t in texts.items() if "finish" in name]
    overlap = arch != "sm_80"
    assert ("griddepcontrol.launch_dependents" in first) == ("griddepcontrol.wait" in last) == overlap
    assert not overlap or last.index("griddepcontrol.wait") < last.index("ld.global")


def test_rows_of_a_block_have_a_barrier_each(monkeypatch):
    """A block of 128 threads with two rows, in the shape of attention scores."""
    monkeypatch.setenv("CUTE_DSL_ARCH", "sm_90a")
    op = generated.causal_softmax
    key, operands = op.bind((jax.ShapeDtypeStruct((64, 2048, 2048), "bfloat16"),), {"implementation": "cute"})
    text = kernels.binary(op._kernel_call(key, operands).compiled_for("sm_90a"), "ptx").ptx
    assert re.findall(r"bar\.sync\s+(\S+), (\d+);", text) == [("1", "64"), ("2", "64")]


def test_a_stage_with_the_kernels_of_another_reads_their_parameters():
    """A module has a kernel once: the backward's stages that the frozen one has too are these."""
    found = [k for k in generated.global_response_norm.kernels if k.spec.op != kernels_name(k)]
    assert found
    for op in found:
        tensors = list(inspect.signature(op._launch).parameters)[1:]
        assert len(parameters_of(op, f"kernel_cutlass_{kernels_name(op)}_kernel_tensorptr_1", tensors)) > 1
