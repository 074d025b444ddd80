"""The interpreter's counts of what kernels move, against counts by hand."""

import json
import sys

import jax.numpy as jnp
import numpy as np
import pytest
from ptx_running import kernel_of, result, source

import generated
from codegen import __main__ as command_line
from codegen.interpret.lanes import LaunchConfig
from codegen.interpret.machine import Machine
from codegen.runtime.compiled import interpreted


def report_of(op, *operands):
    op(*operands, implementation="interpret")
    (report,) = interpreted.last_reports()
    return report


@pytest.mark.parametrize(("dtype", "size"), [("float32", 4), ("bfloat16", 2)])
def test_bias_relu_moves_each_byte_once(dtype, size):
    """A warp accesses 32 x 16 bytes with one instruction: 16 sectors of 32 bytes."""
    rows, columns = 256, 1024  # small calls have narrow vectors
    report = report_of(generated.bias_relu, jnp.ones((rows, columns), dtype), jnp.ones(columns, dtype))
    x, y, bias = (report.operands[name] for name in ("x", "y", "bias"))
    total = rows * columns * size
    assert (x.size, x.loaded, x.stored, x.touched) == (total, total, 0, total)
    assert (y.size, y.loaded, y.stored, y.touched) == (total, 0, total, total)
    assert (bias.loaded, bias.touched) == (total, columns * size)
    for operand in (x, y, bias):
        assert operand.requests == total // 16 // 32
        assert operand.sectors_per_request == 16
        assert operand.coalescing == 1.0
    assert report.divergence == 0
    assert report.threads % 32 == 0
    assert report.blocks * report.threads * 16 >= total


@pytest.mark.parametrize("op", [generated.swiglu, generated.geglu], ids=lambda op: op.__name__)
def test_gated_ops_read_both_halves_once(op):
    rows, columns = 1024, 1024
    report = report_of(op, jnp.ones((rows, 2 * columns), "bfloat16"))
    (source_array,) = (report.operands[a.name] for a in op.spec.inputs)
    (output,) = (report.operands[a.name] for a in op.spec.outputs)
    assert source_array.loaded == source_array.touched == source_array.size == rows * 2 * columns * 2
    assert output.stored == output.touched == output.size == rows * columns * 2
    for operand in (source_array, output):
        assert operand.sectors_per_request == 16
        assert operand.coalescing == 1.0
    assert report.divergence == 0


def test_ragged_rows_keep_wide_accesses():
    """With rows of 1023 elements, a thread still accesses 16 bytes of x and y at a time."""
    rows, columns = 256, 1023
    report = report_of(generated.bias_relu, jnp.ones((rows, columns)), jnp.ones(columns))
    x, y, bias = (report.operands[name] for name in ("x", "y", "bias"))
    total = rows * columns * 4
    assert x.loaded == x.touched == total
    assert y.stored == y.touched == total
    assert x.sectors_per_request == y.sectors_per_request == 16  # 2046 warps, each with 128 elements
    assert x.coalescing == y.coalescing == 1.0
    assert bias.touched == columns * 4


def test_the_end_of_an_array_goes_element_by_element():
    report = report_of(generated.bias_relu, jnp.ones((5, 67)), jnp.ones(67))
    assert report.operands["x"].loaded == report.operands["x"].touched == 5 * 67 * 4
    assert report.operands["y"].stored == report.operands["y"].touched == 5 * 67 * 4
    assert 0 < report.divergence < 0.5


@pytest.mark.parametrize(("stride", "sectors"), [(1, 4), (2, 8), (8, 32), (16, 32)])
def test_sectors_of_strided_loads(stride, sectors):
    """A warp's 4-byte loads at a stride: 4 sectors if they are neighbours, at most one for each lane."""
    x, y = source(np.arange(32 * stride, dtype=np.uint32)), result(32, np.uint32)
    body = f"""
  mul.wide.u32 %rd5, %r0, {4 * stride};
  add.s64 %rd6, %rd0, %rd5;
  ld.global.b32 %r1, [%rd6];
  mul.wide.u32 %rd5, %r0, 4;
  add.s64 %rd6, %rd1, %rd5;
  st.global.b32 [%rd6], %r1;
"""
    addresses = tuple(int(a.address).to_bytes(8, "little") for a in (x, y))
    launch = LaunchConfig("made", (1, 1, 1), (32, 1, 1), 0, addresses)
    report = Machine(kernel_of(body, 2), launch, [x, y]).run()
    assert (report.operands["x"].requests, report.operands["x"].sectors) == (1, sectors)
    assert report.operands["x"].coalescing == 4 / sectors
    assert report.operands["x"].loaded == report.operands["x"].touched == 128
    assert report.instructions == 32 * 10  # two parameters, the thread's number, these six, and ret
    assert report.divergence == 0


def test_divergence_is_the_share_of_idle_lanes():
    """Half a warp runs four instructions that the other half jumps over."""
    body = "  setp.lt.u32 %p1, %r0, 16;\n  @%p1 bra end;\n" + "  add.s32 %r1, %r0, 1;\n" * 4 + "end:\n"
    report = Machine(kernel_of(body, 0), LaunchConfig("made", (1, 1, 1), (32, 1, 1), 0, ()), []).run()
    assert report.instructions == 32 * 4 + 16 * 4
    assert report.slots == 32 * 8
    assert report.divergence == 0.25
    assert report.instructions_per_thread == 6


# codegen explain --interpret


def explained(monkeypatch, capsys, *words: str) -> str:
    monkeypatch.setattr(sys, "argv", ["codegen", "explain", *words])
    with pytest.raises(SystemExit) as stopped:
        command_line.main()
    assert not stopped.value.code
    return capsys.readouterr().out


def test_explain_shows_what_the_interpreter_counts(monkeypatch, capsys):
    words = ("bias_relu", "--interpret", "--shape", "...=128,N=1024")
    calls = json.loads(explained(monkeypatch, capsys, *words, "--json"))["interpreted"]
    assert [c["types"]["T"] for c in calls] == ["float32", "float16", "bfloat16"]
    total = 128 * 1024 * 4
    x = calls[0]["arrays"]["x"]
    assert (x["minimum"], x["loaded"], x["touched"], x["stored"]) == (total, total, total, 0)
    assert (x["sectors_per_request"], x["coalescing"]) == (16, 1)
    assert calls[0]["instructions_per_element"] == pytest.approx(
        calls[0]["instructions_per_thread"] * calls[0]["blocks"] * calls[0]["threads"] / (128 * 1024), abs=0.02
    )
    text = explained(monkeypatch, capsys, *words)
    assert "interpreted: ... = 128, N = 1024" in text
    assert "sectors per request" in text
    assert "idle lanes" in text


def test_explain_interprets_a_smaller_call_than_the_bench(monkeypatch, capsys):
    report = json.loads(explained(monkeypatch, capsys, "dequantize_fp8", "--interpret", "--json"))
    small = report["interpreted"][0]["shape"]
    assert all(small[axis] <= extent for axis, extent in report["shape"].items())
    assert np.prod(list(small.values())) <= 2**18
    assert "interpreted" not in json.loads(explained(monkeypatch, capsys, "dequantize_fp8", "--json"))
