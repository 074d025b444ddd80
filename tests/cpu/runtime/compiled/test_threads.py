"""First calls from many threads at once: each kernel is compiled once, and nothing fails or hangs."""

import gc
import threading
import time

import cutlass.jax
import cutlass.jax.compile as compiling
import jax
import numpy as np
import pytest
from jax import export

from codegen.pipeline import read_op
from tests.making import make_op

THREADS, OPS = 32, 20
SPEC = """
op: shifted_{0}
summary: S.
inputs:
  x: float32[N]
outputs:
  y: float32[N]
chain: |
  y = x * {0}.0 + {0}.0
reference: x * {0}.0 + {0}.0
"""


@pytest.fixture
def switches():
    """Python switches threads during garbage collection, for example while it parses: here at every chance, else once
    in a while."""

    def give_way(phase, found):
        del found
        if phase == "start":
            time.sleep(0)

    before = gc.get_threshold()
    gc.callbacks.append(give_way)
    gc.set_threshold(200, 1000, 1000)
    yield
    gc.set_threshold(*before)
    gc.callbacks.remove(give_way)


def exported(op):
    checks = cutlass.jax.get_export_disabled_safety_checks()
    call = jax.jit(lambda x: op(x, implementation="cute"))
    return export.export(call, platforms=("cuda",), disabled_checks=checks)(jax.ShapeDtypeStruct((8,), np.float32))


def test_first_calls_from_many_threads(tmp_path, cold_cache, monkeypatch, switches):
    del cold_cache, switches
    monkeypatch.setenv("CUTE_DSL_ARCH", "sm_90a")
    compiled, original = [], compiling.cutlass.cute.compile
    monkeypatch.setattr(compiling.cutlass.cute, "compile", lambda *a, **k: compiled.append(1) or original(*a, **k))
    made = [make_op(tmp_path, SPEC.format(i)) for i in range(1, OPS + 1)]
    start, failed, x = threading.Barrier(THREADS), [], np.arange(8, dtype=np.float32)

    def first_calls(thread):
        start.wait()
        for i in range(thread, thread + 2):
            op, number = made[i % OPS], np.float32(i % OPS + 1)
            try:
                if number % 2:
                    np.testing.assert_array_equal(op(x, implementation="interpret"), x * number + number)
                else:
                    exported(op)
            except BaseException as error:  # errors in the DSL have many types
                failed.append(f"{op.spec.op}: {error}")

    def read_others():  # the first call of yet another op parses while kernels are compiled
        while any(thread.is_alive() for thread in threads):
            time.sleep(0.005)
            try:
                read_op("specs/shifted_1.yaml", SPEC.format(1))
            except BaseException as error:
                failed.append(f"a spec: {error}")

    threads = [threading.Thread(target=first_calls, args=(i,), daemon=True) for i in range(THREADS)]
    for thread in threads:
        thread.start()
    reader = threading.Thread(target=read_others, daemon=True)
    reader.start()
    for thread in threads:
        thread.join(120)
    assert failed == []
    assert not any(thread.is_alive() for thread in threads)
    assert len(compiled) == OPS
