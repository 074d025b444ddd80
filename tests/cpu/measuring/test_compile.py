"""Some of the generated kernels, in turns: they compile, and their memory accesses are as wide as planned."""

import dataclasses
import inspect
import itertools
import json
import re
import sys
from pathlib import Path

import jax
import pytest
from instruction_list import forms, listed
from making import make_op

import generated
from codegen import __main__ as command_line
from codegen import cache
from codegen.graph.nodes import DTYPES, topological
from codegen.language import sizes
from codegen.measuring.compiled import compile as compiling
from codegen.measuring.compiled import tasks as many
from codegen.measuring.compiled.compile import (
    Compiled,
    Variant,
    compile_call,
    compile_kernel,
    entries,
    launch_of,
    memory_accesses,
    parameters_of,
    row_lengths,
    variants,
)
from codegen.measuring.compiled.tasks import Task, compile_tasks
from codegen.plan.gemms.hopper_tiles import HALVES
from codegen.plan.limits import lacks
from codegen.plan.planner import overrides
from codegen.runtime.call.arguments import Types
from codegen.runtime.compiled import kernels
from codegen.runtime.ops.gemm_op import GemmOp
from codegen.runtime.ops.op import Op
from codegen.shared import Launch
from codegen.targets import USUAL
from tests.turns import some

ARCHITECTURES = USUAL.split(",")
# ptxas may park one value in memory to get below a register count at which one more block fits: rotary_pairs on sm_120a,
# kernels that reduce
SPILLS_WHERE_RAGGED = 16
# If a block of 1024 threads holds its piece of a row that a cluster shares, a thread has 64 registers: a few values
# spill, which costs less than reading the row again.
SPILLS_OF_LONG_ROWS = 256
# Spills that should be removed: a ragged row with weights that are loaded one by one
KNOWN_SPILLS = {"dgroup_norm": 528, "scaled_matmul_fp8": 24}
# Also too many: on Hopper, attention's scores without a softmax, and its gradients, hold products, sums and what scores need
SPILLS_OF_ATTENTION = 1536
# Also too many: kernels that walk down rows hold the next rows in registers while they are in flight
SPILLS_OF_WALKS = 448
COMPILED_WHOLE = ("bias_relu",)
# Where accumulators leave an epilogue few registers, and elements are stored one by one
SPILLS_OF_RAGGED_PRODUCTS = 256
# Kernels whose reductions along rows hold registers as well, on Hopper
ROW_FOLDS = (
    "dense_amax", "dense_residual_squares", "logits_logsumexp", "linear_cross_entropy_forward", "linear_cross_entropy",
)  # fmt: skip


EVERYTHING = {k.__name__: k for name in generated.__all__ for k in getattr(generated, name).kernels}
PRODUCTS = {name: k for name, k in EVERYTHING.items() if isinstance(k, GemmOp)}
KERNELS = {name: k for name, k in EVERYTHING.items() if name not in PRODUCTS}


# More of the ops' own kernels than of derived ones, and the known spills
OWN = [name for name in PRODUCTS if name in generated.__all__]
SAVING = [name for name in PRODUCTS if name not in generated.__all__]
ON_HOPPER = list(dict.fromkeys([*some(OWN, 9), *some(SAVING, 24), *some(ROW_FOLDS, 2)]))


@pytest.mark.parametrize("name", ON_HOPPER)
def test_products_compile_for_hoppers_tensor_cores(name):
    """With one of their types and sets of defaults, in turns: TMA loads the factors, and nothing is spilled."""
    op, turn = PRODUCTS[name], ON_HOPPER.index(name)
    found = [v for v in variants(op) if not v.ragged and not lacks(op, v.types, "sm_90a")]
    hopper = [v for v in found if on_tensor_cores(op, v)] or found
    variant = hopper[turn % len(hopper)]
    compiled = compile_kernel(op, variant, "sm_90a")
    assert ("wgmma.mma_async" in compiled.ptx) == on_tensor_cores(op, variant)
    assert ("cp.async.bulk.tensor" in compiled.ptx) == on_tensor_cores(op, variant)
    assert compiled.spills == 0, variant
    assert unlisted(compiled.ptx) == []


def on_tensor_cores(op: GemmOp, variant: Variant) -> bool:
    """Whether WGMMA multiplies these factors."""
    factor = variant.types.dtype(op.plan.products[0].a)
    return factor in HALVES or (factor != "float32" and op.plan.tile.b_is_nk)


ELSEWHERE = some(PRODUCTS, 25)


@pytest.mark.parametrize("name", ELSEWHERE)
def test_products_compile_elsewhere(name):
    """Ragged products, with one of the types for one architecture, in turns."""
    op, turn = PRODUCTS[name], ELSEWHERE.index(name)
    found = [(v, a) for v in variants(op) if v.ragged for a in ARCHITECTURES if not lacks(op, v.types, a)]
    variant, arch = found[turn % len(found)]
    compiled = compile_kernel(op, variant, arch)
    assert "mma.sync" in compiled.ptx and "wgmma" not in compiled.ptx
    assert unlisted(compiled.ptx) == []
    assert compiled.spills <= KNOWN_SPILLS.get(name, SPILLS_OF_RAGGED_PRODUCTS), (variant, arch)


@pytest.mark.parametrize("name", ["matmul_dswiglu_pairs", "matmul_dgelu", "dense_swiglu"])
def test_ragged_rows_of_products_for_hopper(name):
    """The outputs' rows are not whole vectors; TMA can load rows of K elements."""
    op = PRODUCTS[name]
    types = next(v for v in variants(op) if "bfloat16" in str(v)).types
    extents = dict.fromkeys(op.spec.axes, 4096) | {"N": 4100}
    arrays = {a.name: jax.ShapeDtypeStruct(sizes.array_shape(a, extents), types.dtype(a)) for a in op.spec.inputs}
    key, operands = op.bind((), {**arrays, "implementation": "cute"})
    compiled = compile_call(op, op._kernel_call(key, operands, "sm_90a"), "sm_90a")
    assert "wgmma.mma_async" in compiled.ptx and compiled.spills == 0


def test_factors_that_are_converted_compile():
    """In numbers of 4 bits with scales, which take the most registers."""
    op = PRODUCTS["dense_int4_stage1"]
    types = next(v for v in variants(op) if "bfloat16" in str(v)).types
    extents = {"...": 100, "K": 4096, "N": 14336, "P": 2048, "B": 32}
    arrays = {a.name: jax.ShapeDtypeStruct(sizes.array_shape(a, extents), types.dtype(a)) for a in op.spec.inputs}
    key, operands = op.bind((), {**arrays, "implementation": "cute"})
    compiled = compile_call(op, op._kernel_call(key, operands, "sm_80"), "sm_80")
    assert "fma.rn.bf16x2" in compiled.ptx and compiled.spills == 0
    assert "cp.async.cg" in compiled.ptx and "ld.global.v4" not in compiled.ptx  # factors whose rows are aligned
    assert unlisted(compiled.ptx) == []


# More of the ops' own kernels than of derived ones
DERIVED = [name for name in KERNELS if name not in generated.__all__]
SOME_KERNELS = [*some([name for name in KERNELS if name in generated.__all__], 25), *some(DERIVED, 120)]


@pytest.mark.parametrize("name", SOME_KERNELS)
def test_kernels_compile_with_wide_accesses_and_without_spills(name):
    op = KERNELS[name]
    count, problems = 0, []
    for variant, arch in dealt_out(op):
        count += 1
        compiled = compile_kernel(op, variant, arch)
        found = unexpected(op, variant, arch, compiled) + unlisted(compiled.ptx)
        problems += [f"{variant} {arch}: {p}" for p in found]
    assert not problems, "\n".join(problems)
    assert count


def dealt_out(op: Op) -> list[tuple[Variant, str]]:
    """The kernels that are compiled here; `codegen compile` compiles all. An element-wise op has every other kernel
    compiled for one of the architectures, with one of the types, in turns. An op that reduces has a kernel for every
    length of a row, whole and ragged: one of them is compiled, for one architecture, in turns. Its shuffles, shared
    memory and clusters are in device functions that all these ops share."""
    everything = [(v, a) for a in ARCHITECTURES for v in variants(op) if not lacks(op, v.types, a)]
    if op.spec.op in COMPILED_WHOLE:
        return everything
    if op.plan.kind == "elementwise" and op.spec.op in generated.__all__:
        kept = {a for _, a in everything}
        own = [a for i, a in enumerate(ARCHITECTURES) if (i + SOME_KERNELS.index(op.spec.op)) % 4 == 0 and a in kept]
        everything = [(v, a) for v, a in everything if a in (own or kept)]
    forward = op.spec.op in generated.__all__
    kernels: dict[object, list[tuple[Variant, str]]] = {}
    for variant, arch in everything:
        length = row_lengths(op, variant.types).index(variant.columns) if forward else 0
        whole = forward and op.plan.kind == "elementwise"
        kernel = (arch, variant.defaults) if whole else (length,)
        kernels.setdefault((*kernel, variant.ragged), []).append((variant, arch))
    turn = SOME_KERNELS.index(op.spec.op)
    dealt = [found[(turn + 7 * i) % len(found)] for i, found in enumerate(kernels.values())]
    return dealt[turn % 2 :: 2] or dealt if op.plan.kind == "elementwise" else [dealt[turn % len(dealt)]]


def unlisted(text: str) -> list[str]:
    """The instructions that the list of all kernels' instructions lacks, since it is older than the kernels;
    test_instructions decodes the listed ones."""
    return [
        f"not in tests/instructions.txt: {form}; run `make instructions`" for form in sorted(forms(text) - listed())
    ]


def test_an_instruction_that_is_not_listed_is_found():
    text = compile_kernel(generated.relu, variant_of(generated.relu, "T=float32"), "sm_80").ptx
    assert unlisted(text) == []
    (found,) = unlisted(text.replace("st.global.v4.b32", "st.async.v4.b32"))
    assert "instructions.txt: st.async.v4.b32 [%r], {%r, %r, %r, %r};" in found
    (found,) = unlisted(text.replace("setp.", "setq.", 1))
    assert ": setq." in found


def unexpected(op: Op, variant: Variant, arch: str, compiled: Compiled) -> list[str]:
    """The accesses that differ from the plan. The expected widths follow from the sizes of the dtypes: of the arrays
    from which a thread loads whole vectors, the one with the widest type fills 16 bytes, and the others have as many
    elements at a time."""
    together = {array.name: count for array, count in op.plan.full}
    sizes = {a.name: DTYPES[variant.types.dtype(a)].bits / 8 for a in op.spec.arrays}
    columns = {id(s.node) for s in op.plan.columns}
    folded = {s.name for s in op.statements if any(id(n) in columns for n in topological([s.value]))}
    own = {a.name for a, _ in op.plan.full if op.plan.kind != "row" or variant.ragged or op.plan.order[0] in a.axes}
    wide = {n: count for n, count in together.items() if n in own} or together  # what all rows share may be wider
    widest = max((max(1, int(sizes[n])) * count for n, count in wide.items() if n not in folded), default=4)
    # Lanes with scans of their own have 4 bytes of a row each: a warp reads 128
    apart = getattr(launch_of(op, variant, arch), "apart", False)
    vec = max(1, (4 if apart else overrides(op.spec, arch).get("vector_bytes", 16)) // widest)
    scans = op.plan.kind == "scan"
    if variant.ragged and op.plan.kind != "elementwise" and not op.plan.columns and (widest >= 4 or scans):
        vec = 1  # elements of at least 4 bytes in whole rows, and elements that are scanned: none is shifted
    most = 32 if int(arch[3:].rstrip("a")) >= 100 else 16  # the width of one instruction on the architecture
    found = {operand.name: operand for operand in compiled.operands}
    rows = op.plan.kind != "elementwise"
    by_runs = getattr(launch_of(op, variant, arch), "by_runs", False)
    problems = []
    for access in (*op.plan.loads, *op.plan.stores):
        if access.array is None or access.array.name not in found:
            continue  # a coordinate, or an array that is left out for its default
        name, size = access.array.name, sizes[access.array.name]
        widths = found[name].stores if access in op.plan.stores else found[name].loads
        whole = min(most, size * together.get(name, 1) * vec)
        if by_runs and access.mode == "flat" and name not in folded:
            # rows of their own in whole vectors and the ends of runs, what rows share in single columns
            good = widths[:1] == (16,) if op.plan.of_row(access) else widths == (size,)
        elif op.plan.columns and access in op.plan.loads and not op.plan.of_row(access) and widths == (size,):
            good = True  # read by the finishing kernel alone, one column a thread
        elif name in folded:
            # written by the finishing kernel, one column a thread; parts that are neighbours may be stored together
            good = widths == (size,) or access.array.parts is not None
        elif rows and len({a.mode for a in op.plan.loads if a.array == access.array}) > 1 and access in op.plan.loads:
            good = widths == tuple(
                dict.fromkeys((whole, size))
            )  # along the row in vectors, or one element at its own place
        elif access.mode == "flat" and variant.ragged and rows and access.tokens[-1:] == ("parts",) and op.plan.columns:
            good = widths[-1:] == (size,)  # interleaved parts with rows at any offset, element by element
        elif access.mode == "flat" and variant.ragged and rows:
            good = widths[:1] == ((whole if size * together.get(name, 1) * vec % 4 == 0 else size),)
        elif access.mode == "flat" and variant.ragged and access in op.plan.stores and op.plan.turned is not None:
            good = widths == (size,)  # of a tile that may have rows and columns outside
        elif access.mode == "flat" and variant.ragged:
            good = widths[:1] == (whole,)  # in addition to whole vectors, the ends of arrays element by element
        elif access.into and variant.ragged:
            good = widths[-1:] == (size,)  # at places that an index gives, element by element
        elif access.mode == "tile" and variant.ragged:
            # aligned vectors are shifted into place; ends of rows (and of warps that store) element by element; words
            # are shifted
            good = widths[:1] == ((whole if size * vec % 4 == 0 else size),)
        elif access.mode in ("flat", "tile"):
            good = widths == ((size if variant.ragged else whole),)
        else:
            good = access.array.parts is not None or widths == (size,)
        if not good:
            problems.append(f"{access.mode} {name} is accessed {widths} bytes at a time; a whole vector has {whole}")
    attends = op.plan.kind == "attention"
    long = variant.columns == max(row_lengths(op, variant.types), key=lambda n: n or 0) and op.plan.rows
    most_spills = SPILLS_OF_LONG_ROWS if long else SPILLS_WHERE_RAGGED if variant.ragged or rows else 0
    most_spills = max(most_spills, SPILLS_OF_WALKS) if op.plan.columns else most_spills
    most_spills = max(most_spills, KNOWN_SPILLS.get(op.spec.op, 0)) if variant.ragged else most_spills
    most_spills = max(most_spills, SPILLS_OF_ATTENTION) if attends else most_spills
    if compiled.spills > most_spills:
        problems.append(f"{compiled.spills} bytes of spills")
    alone = attends and getattr(launch_of(op, variant, arch), "processors", 0)  # a block for each multiprocessor
    if re.search(r"bar\.sync\s+%", compiled.ptx) and not alone:
        problems.append("a barrier's number is no constant: a block has all 16, and a multiprocessor fewer blocks")
    return problems


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
    tasks = [Task("relu", variant, "sm_90a") for variant in variants(generated.relu)]
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
    made = compiling.Compiled("", b"", 255, 64, 1024, 65536, (compiling.Operand("x", (16, 8, 4, 2, 1), (16, 8, 4, 2)),))

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
