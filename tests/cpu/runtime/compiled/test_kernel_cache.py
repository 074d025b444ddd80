"""A kernel is compiled once: by one process for all, whatever the number of rows, and again if anything that determines
it changed."""

import contextlib
import json
import os
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import cutlass.jax
import cutlass.jax.compile as compiling
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from cutlass.cutlass_dsl.cutlass import CuTeDSL
from jax import export
from jax._src.interpreters import partial_eval

import generated
from codegen import cache, shared
from codegen.checking.draw import Case
from codegen.plan.rows import middle
from codegen.plan.rows.launching import walking
from codegen.plan.rows.middle import Middle
from codegen.plan.rows.reductions import Reduction
from codegen.plan.rows.strided import Strided
from codegen.runtime.call.arguments import all_types
from codegen.runtime.compiled import interpreted, kernels
from tests import faulty_kernels
from tests.making import make_op
from tests.turns import some

COUNTING = """
import json, sys
import jax, jax.numpy as jnp, numpy as np
import cutlass.jax.compile as compiling
counted, original = [], compiling.cutlass.cute.compile
compiling.cutlass.cute.compile = lambda *a, **k: counted.append(1) or original(*a, **k)
import generated

def interpret(op, *shapes, **static):
    inputs = [jnp.asarray(np.random.default_rng(0).standard_normal(s), jnp.bfloat16) for s in shapes]
    return op(*inputs, **static, implementation="interpret")

def export(op, *shapes):
    inputs = [jax.ShapeDtypeStruct(s, jnp.bfloat16) for s in shapes]
    checks = compiling.cutlass.jax.get_export_disabled_safety_checks()
    call = jax.jit(lambda *x: op(*x, implementation="cute"))
    return jax.export.export(call, platforms=("cuda",), disabled_checks=checks)(*inputs).mlir_module()
"""
SOME = """
y = interpret(generated.bias_relu, (3, 64), (64,))
assert jnp.array_equal(y, interpret(generated.bias_relu, (3, 64), (64,)))
found = [export(generated.bias_relu, (5, 256), (256,))]
print(json.dumps([len(counted), float(y.astype(jnp.float32).sum()), found]))
"""


def process(code, folder):
    """The output of another process that uses this cache."""
    extra = {"CODEGEN_CACHE_DIR": str(folder), "CUTE_DSL_ARCH": "sm_90a", "JAX_PLATFORMS": "cpu"}
    path = os.pathsep.join(filter(None, sys.path))
    made = os.environ | {"PYTHONPATH": path} | extra
    done = subprocess.run(
        [sys.executable, "-c", COUNTING + code], env=made, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.fixture
def counted(cold_cache, monkeypatch):
    """Counts what CuTe DSL compiles, with an empty cache. On request it clears the cache in memory."""
    found, original = [], compiling.cutlass.cute.compile
    monkeypatch.setenv("CUTE_DSL_ARCH", "sm_90a")
    monkeypatch.setattr(compiling.cutlass.cute, "compile", lambda *a, **k: found.append(1) or original(*a, **k))
    return found


def forget():
    """Clears the caches that a new process would not have, and of JAX's that of traced functions, where it has kernels: then a call
    that is lowered asks for its kernel. The bridge's function for it would also collect garbage, which takes seconds among many
    programs."""
    kernels.forget()
    cache._warn.cache_clear()
    clear = getattr(getattr(partial_eval, "trace_to_jaxpr", None), "cache_clear", None)
    if clear is not None:
        clear()
    interpreted.compile_call.cache_clear()
    compiling._CUTLASS_COMPILE_CACHE.clear()
    CuTeDSL._get_dsl().jit_cache.clear()


def exported(op, *shapes, dtype=jnp.bfloat16, **static):
    call = jax.jit(lambda *inputs: op(*inputs, **static, implementation="cute"))
    checks = cutlass.jax.get_export_disabled_safety_checks()
    inputs = [jax.ShapeDtypeStruct(s, dtype) for s in shapes]
    return export.export(call, platforms=("cuda",), disabled_checks=checks)(*inputs).mlir_module()


def test_processes_that_start_together_agree_and_the_next_compiles_nothing(tmp_path):
    with ThreadPoolExecutor(2) as pool:
        one, other = pool.map(lambda _: process(SOME, tmp_path / "cache"), range(2))
    assert max(one[0], other[0]) <= 2 <= one[0] + other[0]
    assert one[1:] == other[1:]
    assert process(SOME, tmp_path / "cache") == [0, *one[1:]]  # to the byte: JAX's own cache finds them again


def test_a_cache_that_holds_nothing_changes_no_kernel(counted, cold_cache, monkeypatch):
    monkeypatch.setenv("CODEGEN_CACHE_LIMIT", "0")
    made = []
    for _ in range(2):
        forget()
        made.append(exported(generated.relu, (4, 64)))
    assert len(counted) == 2 and made[0] == made[1]
    assert not cold_cache.exists()


@pytest.mark.parametrize(("op", "small"), [("bias_relu", 1), ("rmsnorm", 2)])
def test_more_rows_never_recompile(op, small, counted):
    """But for small calls: vectors are narrow, or blocks are single warps, and few rows have more threads each."""
    (rows,) = export.symbolic_shape("rows")
    for shape in ((100_000, 512), (rows, 512), (600, 512), (700, 512)):
        exported(getattr(generated, op), shape, (512,))
    assert len(counted) == 1
    for shape in ((1, 512), (0, 512), (4, 512), (7, 512), (3, 5, 512), (100, 512), (200, 512), (400, 512)):
        exported(getattr(generated, op), shape, (512,))
    assert len(counted) == 1 + small
    for shape in ((2, 512), (3, 1, 512), (4, 512), (3, 3, 512)):
        x = jax.random.normal(jax.random.key(0), shape, jnp.bfloat16)
        getattr(generated, op)(x, jnp.ones(512, jnp.bfloat16), implementation="interpret")
    assert 1 + small < len(counted) <= 3 + small


@pytest.mark.parametrize("arch", ["sm_80", "sm_90a"])
def test_no_launch_of_a_reduction_depends_on_the_number_of_rows(arch, monkeypatch):
    """The lengths whose threads meet count: the rows, or the places along the first axis that a block walks. Few rows at
    each of many places have kernels of their own, by how many of them a thread holds at a time. Other rows that meet have one each
    for 1, 2, 4 and 8 of them, and one for all other numbers. Where vectors lie along rows, or a block reads a long row again, blocks
    are others if there are few. Blocks that meet in small calls are 1, 2, 4 or 8."""
    monkeypatch.setenv("CUTE_DSL_ARCH", arch)
    derived = [kernel for name in generated.__all__ for kernel in getattr(generated, name).kernels]
    found = [op for op in derived if isinstance(op.plan, Reduction) and not op.plan.collapsed and op.plan.walked_groups]
    found = [op for op in found if not isinstance(op.plan, Middle) or op.plan.leading > 1]
    assert any(op.plan.apart for op in found) and any(isinstance(op.plan, Middle) for op in found)
    for op in some(found, 4, first=4 * (arch == "sm_90a")):
        axis, types = op.plan.walked_groups[0].axes[0], next(all_types(op.spec))
        for extent in (16, 64, 300, 4096):
            extents = {a: op.spec.extents.get(a, extent) for a in op.spec.axes if a != "..."}
            constants = set()
            for rows in (1, 2, 3, 4, 5, 8, 64, 65, 4096):
                extents |= {axis: rows} if axis != "..." else {}
                own = (rows if axis == "..." else 3,) * ("..." in op.spec.axes)
                axes = Case(types, own, tuple(extents.items()), (), (), False, 1.0, 0).axes
                if not isinstance(op.plan, Middle | Strided) or op._refused(types, axes) is None:
                    constants.add(tuple(op.launch_for(types, axes).constants.items()))
            held = walking.MOST_ROWS_HELD if op.plan.by_place else 0
            held += len(middle.PIECES) - 1 if isinstance(op.plan, Middle) else 0
            few = 3 + 4 * op.plan.meets if op.plan.columns else 1
            assert len(constants) <= 2 + held + few + bool(op.plan.apart), (op, extents)


def test_what_decides_a_kernel_recompiles_it(counted, monkeypatch):
    def cold(**changed):
        before = len(counted)
        forget()
        exported(generated.saxpy, (4, 64), (4, 64), **({"alpha": 2.0} | changed))
        return len(counted) - before

    assert [cold(), cold()] == [1, 0]
    assert [cold(alpha=2.5), cold(alpha=2.5), cold()] == [1, 0, 0]
    assert [cold(dtype=jnp.float32), cold(dtype=jnp.float32), cold()] == [1, 0, 0]
    monkeypatch.setenv("CUTE_DSL_ARCH", "sm_80")
    assert [cold(), cold()] == [1, 0]
    monkeypatch.setenv("CUTE_DSL_ARCH", "sm_90a")
    assert cold() == 0
    monkeypatch.setitem(kernels.OPTIONS, "binary", "")
    assert [cold(), cold()] == [1, 0]


def test_versions_and_settings_of_the_compiler_are_part_of_the_key(counted, monkeypatch):
    def cold():
        before = len(counted)
        forget()
        exported(generated.relu, (4, 64))
        return len(counted) - before

    assert [cold(), cold()] == [1, 0]
    monkeypatch.setattr(kernels, "_version", lambda: "another version")
    assert [cold(), cold()] == [1, 0]
    monkeypatch.undo()
    monkeypatch.setenv("CUTE_DSL_ARCH", "sm_90a")
    monkeypatch.setattr(CuTeDSL._get_dsl().envar, "enable_assertions", True)
    key = kernels._compiler("sm_90a")
    monkeypatch.undo()
    assert kernels._compiler("sm_90a") != key
    assert kernels._version() in key


SPEC = """
op: shifted
summary: S.
inputs:
  x: float32[N]
outputs:
  y: float32[N]
chain: y = x + {}
reference: x + {}
"""


def test_a_changed_spec_is_another_kernel_and_the_old_one_is_known_again(counted, tmp_path):
    x = np.arange(8, dtype=np.float32)
    for constant, compiled in ((1.0, 1), (2.0, 2), (1.0, 2)):
        forget()
        made = make_op(tmp_path, SPEC.format(constant, constant))
        # the same path each time: only the content differs
        source = Path(made._launch.__wrapped__.__code__.co_filename)
        folder = tmp_path / "ops"
        folder.mkdir(exist_ok=True)
        shutil.copy(source, folder / "shifted.py")
        op = imported(folder / "shifted.py")
        np.testing.assert_array_equal(op(x, implementation="interpret"), x + constant)
        assert len(counted) == compiled


def imported(path):
    import importlib.util

    spec = importlib.util.spec_from_file_location(path.stem, path)
    module = importlib.util.module_from_spec(spec)
    with contextlib.suppress(FileNotFoundError):  # Python compares the times of files in whole seconds
        shutil.rmtree(path.parent / "__pycache__")
    spec.loader.exec_module(module)
    return getattr(module, path.stem)


def test_a_source_edited_after_its_import_is_not_kept(counted, cold_cache, tmp_path):
    op = make_op(tmp_path, SPEC.format(1.0, 1.0))
    source = Path(op._launch.__wrapped__.__code__.co_filename)
    source.write_text(source.read_text().replace("x + 1.0", "x + 2.0"))
    op(np.ones(8, np.float32), implementation="interpret")
    assert len(counted) == 1
    assert not cold_cache.exists()


def test_the_device_functions_behind_a_kernel_count():
    from codegen.device import functions as device
    from codegen.device import reduce

    hashes, _ = kernels._sources(generated.rmsnorm._launch)
    assert {device.__file__, reduce.__file__, kernels.__file__} < hashes.keys()
    assert any(file.endswith("/rmsnorm.py") for file in hashes)
    assert not any("site-packages" in file for file in hashes)
    hashes, constants = kernels._sources(faulty_kernels.double)
    assert faulty_kernels.__file__ in hashes
    assert f"THREADS = {faulty_kernels.THREADS}" in constants


def test_every_field_of_a_launch_and_its_source_are_part_of_the_key():
    tensor = ("float32", (1, 4), 16)

    def key(how):
        call = kernels.CompiledCall(
            generated.rmsnorm._launch, (tensor, None), (tensor,), (("eps", 1e-6), ("how", how)), "sm_80"
        )
        return kernels.key_of(call, "")

    row = shared.RowLaunch(4, False, 128, 32, 1, 1, True, True, False)
    walk = shared.Walk(4, False, 128, 32, 1, 1, 1, True, True, first=row)
    other = replace(row, at_once=2)
    assert None not in (key(row), key(walk))
    assert len({key(row), key(other), key(walk), key(replace(walk, first=other)), key(replace(walk, vec=8))}) == 5
    assert key(row) == key(replace(other, at_once=1))
    attention = shared.AttentionLaunch(64, 64, 128, 128, 4, 1)
    assert None not in {key(attention), key(replace(attention, converted=("k", "v")))}
    assert key(attention) != key(replace(attention, converted=("k", "v")))
    records = tuple(kernels._records(walk))
    assert records == (shared.Walk, shared.RowLaunch)
    assert shared.rows.__file__ in kernels._sources(faulty_kernels.double, records)[0]
    assert shared.rows.__file__ not in kernels._sources(faulty_kernels.double)[0]
    steps = shared.StepsLaunch(4, False, 128, 32, 1, 8, steps=(row,))
    assert tuple(kernels._records(steps)) == (shared.StepsLaunch, shared.RowLaunch)
    inheriting = type("Inheriting", (shared.RowLaunch,), {})
    assert shared.rows.__file__ in kernels._sources(faulty_kernels.double, (inheriting,))[0]
    assert key(replace(row, vec=object())) is None  # nothing distinguishes it from others


def test_a_damaged_entry_is_compiled_again(counted, cold_cache):
    x = jnp.arange(8.0)
    for damage in (lambda b: b, lambda b: b[:-7], lambda b: b"", lambda b: b[:80] + b"\0\0" + b[82:]):
        before = len(counted)
        for path in cold_cache.glob("*"):
            path.write_bytes(damage(path.read_bytes()))
        forget()
        np.testing.assert_array_equal(generated.relu(x - 4, implementation="interpret"), jnp.maximum(x - 4, 0))
        assert len(counted) - before == (0 if damage(b"x" * 99) == b"x" * 99 and before else 1)
    assert len(list(cold_cache.glob("*"))) == 1


def test_what_is_whole_and_nothing_that_was_compiled_is_compiled_again(counted, monkeypatch):
    x, stored = jnp.arange(-4.0, 4.0), []
    monkeypatch.setattr(kernels.cache, "store", lambda *entry: stored.append(entry))
    monkeypatch.setattr(kernels.cache, "load", lambda *_: found)

    def cold(interpret):
        """Whether a first call compiles, given the entries that are `found`."""
        before = len(counted)
        forget()
        if interpret:
            np.testing.assert_array_equal(generated.relu(x, implementation="interpret"), jnp.maximum(x, 0))
        else:
            exported(generated.relu, (8,), dtype=jnp.float32)
        return len(counted) > before

    for interpret in (False, True):
        found = None
        assert cold(interpret)
        found = good = dict(stored[-1][2])
        assert not cold(interpret)
        module, ptx = good["module"], good["ptx"]
        found = {"module": b"no object" * 99, "ptx": ptx}
        assert cold(interpret)
        for bad in (
            {}, {"module": module}, {"module": b"", "ptx": ptx}, {"module": b"\x7fELF", "ptx": ptx},
            {"module": module[:-100], "ptx": ptx}, {"module": module[:64], "ptx": ptx},
            {"module": module.replace(b"cutlass_jit_wrapper", b"another_jit_wrapper"), "ptx": ptx},
            {"module": Path(sys.executable).read_bytes(), "ptx": ptx}, {"module": module, "ptx": b"\xff" + ptx},
            {"module": module, "ptx": b"" if interpret else b".entry"},
        ):  # fmt: skip
            assert not kernels._is_compiled(bad, "ptx" if interpret else "binary"), bad.keys()


def test_a_folder_that_others_may_write_to_is_not_used(counted, cold_cache):
    cold_cache.mkdir()
    cold_cache.chmod(0o777)
    for _ in range(2):
        forget()
        with pytest.warns(RuntimeWarning, match="no compiled kernel is kept in .*: other users may write to it"):
            exported(generated.relu, (8,))
    assert len(counted) == 2
    assert not [*cold_cache.iterdir()]


def test_a_bad_limit_is_one_error(cold_cache, monkeypatch):
    monkeypatch.setenv("CODEGEN_CACHE_LIMIT", "lots")
    with pytest.raises(ValueError, match=r"^CODEGEN_CACHE_LIMIT is 'lots'; it is a number of bytes, as in 512M or 2G"):
        generated.relu(jnp.ones(4), implementation="interpret")


def test_a_kernel_for_no_architecture_is_refused(monkeypatch):
    monkeypatch.delenv("CUTE_DSL_ARCH", raising=False)
    with pytest.raises(ValueError, match=r"^relu: CUTE_DSL_ARCH must say which GPU to compile for, as in sm_90a$"):
        exported(generated.relu, (4, 64))
