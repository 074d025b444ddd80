"""Device functions and generic addresses, in PTX written by hand and by the compiler."""

import jax.numpy as jnp
import numpy as np
import pytest
from making import make_op
from ptx_running import kernel_of, result, run, source, values, words

from codegen.interpret.machine import InterpretError
from codegen.interpret.ptx import PtxError

OUT = "  st.global.u32 [%rd16], %r5;\n"

FUNCTIONS = """
.func  (.param .b32 result) collatz(.param .b32 start);
.func  (.param .b32 func_retval0) collatz(
  .param .b32 collatz_param_0
)
{
  .reg .pred %p<3>;
  .reg .b32 %r<9>;
  ld.param.b32 %r1, [collatz_param_0];
  mov.u32 %r2, 0;
again:
  setp.le.u32 %p1, %r1, 1;
  @%p1 bra done;
  and.b32 %r3, %r1, 1;
  setp.eq.u32 %p2, %r3, 1;
  shr.u32 %r4, %r1, 1;
  mad.lo.u32 %r5, %r1, 3, 1;
  selp.u32 %r1, %r5, %r4, %p2;
  add.u32 %r2, %r2, 1;
  setp.gt.u32 %p1, %r2, 100;
  @%p1 ret;
  bra again;
done:
  st.param.b32 [func_retval0], %r2;
  ret;
}
.func (.param .align 8 .b8 both[8]) sum_and_twice(.param .b32 a, .param .b32 b)
{
  .reg .b32 %r<9>;
  .local .align 8 .b8 depot[8];
  ld.param.b32 %r1, [a];
  ld.param.b32 %r2, [b];
  { .param .b32 param0;
    .param .b32 retval0;
    st.param.b32 [param0], %r1;
    call.uni (retval0),
    collatz,
    (
    param0
    );
    ld.param.b32 %r3, [retval0];
  }
  st.local.b32 [depot+4], %r3;
  add.u32 %r4, %r2, %r3;
  ld.local.b32 %r5, [depot+4];
  shl.b32 %r5, %r5, 1;
  st.param.b32 [both], %r4;
  st.param.b32 [both+4], %r5;
  ret;
}
"""
CALL = """
  { // callseq 0, 0
    .param .b32 param0; .param .b32 param1; .param .align 8 .b8 retval0[8];
    st.param.b32 [param0], {0};
    st.param.b32 [param1], {1};
    call.uni (retval0), sum_and_twice, (param0, param1);
    ld.param.v2.b32 {{{2}, {3}}}, [retval0];
  }
"""


def call(a: str, b: str, first: str, second: str) -> str:
    return CALL.replace("{ //", "{{ //").replace("\n  }", "\n  }}").format(a, b, first, second)


def steps(n: int) -> int:
    count = 0
    while n > 1:
        n, count = 3 * n + 1 if n % 2 else n // 2, count + 1
    return count


def test_device_functions():
    """Each lane has its own loop within two calls; registers that a function writes belong to its call."""
    body = "  mov.u32 %r1, 1000;\n" + call("%r0", "%r1", "%r5", "%r6") + "  add.u32 %r5, %r5, %r6;\n"
    wanted = [1000 + 3 * steps(i) for i in range(24)]
    assert words(24, 24, body + OUT, outside=FUNCTIONS) == wanted
    half = "  setp.lt.u32 %p2, %r0, 12;\n  mov.u32 %r5, 7;\n  @!%p2 bra skip;\n" + body + "skip:\n"
    assert words(24, 24, half + OUT, outside=FUNCTIONS) == wanted[:12] + [7] * 12
    twice = body + call("%r0", "%r5", "%r5", "%r6")
    assert words(24, 24, twice + OUT, outside=FUNCTIONS) == [w + steps(i) for i, w in enumerate(wanted)]


def test_a_function_that_gives_no_result():
    """Lane 27 takes more than 100 steps, and returns early."""
    with pytest.raises(InterpretError, match=r"read of byte .* of local memory, which nothing has written") as caught:
        words(32, 32, call("%r0", "%r0", "%r5", "%r6") + OUT, outside=FUNCTIONS)
    assert "thread (27, 0, 0)\n  ld.param.b32 %r3, [retval0]" in str(caught.value)


def test_calls_that_are_not_known():
    itself = ".func loop() { call.uni loop; ret; }\n"
    with pytest.raises(PtxError, match="made: the device function 'loop' calls itself"):
        kernel_of("  call.uni loop;", 1, outside=itself)
    with pytest.raises(PtxError, match=r"made: unknown instruction 'call\.uni': call\.uni vprintf"):
        kernel_of("  call.uni vprintf;", 1, outside=".extern .func vprintf();\n")
    with pytest.raises(PtxError, match="made: unknown instruction 'call'"):
        kernel_of("  call %rd0, (), prototype;", 1)
    with pytest.raises(PtxError, match=r"made: unknown instruction 'call\.uni'"):
        kernel_of("  @%p1 call.uni loop;", 1, outside=itself)


# Generic addresses


GENERIC = """
  mov.u32 %r8, buffer;
  mad.lo.u32 %r1, %r0, 4, %r8;
  cvt.u64.u32 %rd2, %r1;
  cvta.shared.u64 %rd3, %rd2;
  mov.u64 %rd4, depot;
  cvta.local.u64 %rd5, %rd4;
  mov.u64 %rd6, %rd16;
  cvta.to.global.u64 %rd7, %rd6;
"""
DECLARED = "  .shared .align 4 .b8 buffer[128];\n  .local .align 4 .b8 depot[8];\n"


def generic(body: str) -> list[int]:
    return words(32, 32, GENERIC + body, declarations=DECLARED)


def test_generic_addresses():
    shared = "  st.u32 [%rd3], %r0;\n  ld.shared.u32 %r5, [%r1];\n"
    assert generic(shared + OUT) == list(range(32))
    local = "  st.local.u32 [depot+4], %r0;\n  ld.u32 %r5, [%rd5+4];\n"
    assert generic(local + "  st.u32 [%rd6], %r5;\n") == list(range(32))
    back = "  st.shared.u32 [%r1], %r0;\n  cvta.to.shared.u64 %rd8, %rd3;\n  ld.shared.u32 %r5, [%rd8];\n"
    assert generic(back + "  st.global.u32 [%rd7], %r5;\n") == list(range(32))


def test_generic_addresses_of_several_spaces_at_once():
    body = "  and.b32 %r9, %r0, 1;\n  setp.eq.u32 %p1, %r9, 0;\n  selp.b64 %rd8, %rd3, %rd5, %p1;\n  add.u32 %r6, %r0, 50;\n"
    body += "  st.v1.u32 [%rd8], %r6;\n".replace(".v1", "")
    body += "  ld.u32 %r5, [%rd8];\n  @%p1 ld.shared.u32 %r7, [%r1];\n  @!%p1 ld.local.u32 %r7, [depot];\n"
    assert generic(body + "  add.u32 %r5, %r5, %r7;\n" + OUT) == [2 * (i + 50) for i in range(32)]


def test_generic_accesses_are_checked():
    for line, message in [
        ("ld.u32 %r5, [%rd3+128];", "load of 4 bytes out of bounds of shared memory: byte 128 of 128"),
        ("ld.u32 %r5, [%rd5+6];", "load of 4 bytes out of bounds of local memory: byte 6 of 8"),
        ("st.u32 [%rd0+-4], %r5;", "store of 4 bytes out of bounds of 'y'"),
        ("ld.u32 %r5, [%rd2];", "where no array is|out of bounds of 'y'"),
        ("ld.u32 %r5, [%rd3];", "read of byte 0 of shared memory, which nothing has written"),
        ("mov.u64 %rd9, -8; ld.u32 %r5, [%rd9];", "where no array is|out of bounds of 'y'"),
        ("add.u32 %r9, %r8, -4; ld.shared.u32 %r5, [%r9];", "out of bounds of shared memory: byte -4 of 128"),
    ]:
        with pytest.raises(InterpretError, match=message):
            generic(f"  {line}\n")


def test_functions_reach_memory_by_generic_addresses():
    add = ".func add(.param .b64 place, .param .b32 value)\n{ .reg .b64 %rd<2>; .reg .b32 %r<3>;\n"
    add += (
        "  ld.param.u64 %rd1, [place];\n  ld.param.u32 %r1, [value];\n  ld.u32 %r2, [%rd1];\n  add.u32 %r2, %r2, %r1;\n"
    )
    add += "  st.u32 [%rd1], %r2;\n  ret;\n}\n"
    y = result(32, np.uint32)
    body = "  mul.wide.u32 %rd5, %r0, 4;\n  add.u64 %rd6, %rd0, %rd5;\n  add.u64 %rd7, %rd1, %rd5;\n  ld.global.u32 %r1, [%rd6];\n"
    body += "  st.global.u32 [%rd7], 500;\n  { .param .b64 p0; .param .b32 p1; st.param.u64 [p0], %rd7; st.param.u32 [p1], %r1;\n"
    body += "  call add, (p0, p1); }\n"
    run(body, [source(np.arange(32, dtype=np.uint32)), y], outside=add)
    assert values(y, np.uint32).tolist() == [500 + i for i in range(32)]


# From the compiler


TANGENT = """
op: tangent
summary: The tangent of each element.
types:
  T: [float32, float64]
inputs:
  x: T[..., N]
outputs:
  y: T[..., N]
math: precise
chain: |
  y = tan(x)
reference: jnp.tan(x)
"""


def test_a_precise_tangent(tmp_path):
    """The compiler makes it with a device function, for operands of any size."""
    op = make_op(tmp_path, TANGENT)
    x = np.concatenate([np.linspace(-20, 20, 301), 10.0 ** np.arange(-30, 38), -(3.0 ** np.arange(60)), [-0.0, 0.0]])
    x = x.astype(np.float32)
    got = np.asarray(op(jnp.asarray(x), implementation="interpret"))
    exact = np.tan(x.astype(np.float64))
    assert np.all(np.abs(got - exact) <= np.spacing(np.abs(exact).astype(np.float32)))
    assert np.array_equal(np.signbit(got[-2:]), [True, False])
    special = op(jnp.asarray([np.inf, -np.inf, np.nan], jnp.float32), implementation="interpret")
    assert np.isnan(np.asarray(special)).all()


RELU_BACKWARD = """
op: relu_backward
summary: ReLU's backward in vectors of four bytes.
types:
  T: [float16, bfloat16]
inputs:
  dy: T[..., N]
  x: T[..., N]
outputs:
  dx: T[..., N]
chain: |
  dx = where(x > 0, dy, 0)
reference: jnp.where(x > 0, dy, 0)
schedule: {vector_bytes: 4}
"""


@pytest.mark.parametrize("dtype", [jnp.float16, jnp.bfloat16])
def test_comparisons_of_pairs(dtype, tmp_path, monkeypatch):
    from codegen.interpret.decode.numbers import logic

    seen = []
    packed = logic.both_halves
    monkeypatch.setattr(logic, "both_halves", lambda *args: seen.append(args[2]) or packed(*args))
    x = jnp.asarray([[-1, 0, 1, 2, -0.0, jnp.nan, jnp.inf, -jnp.inf, 3, -3, 0.5, -0.5]] * 3, dtype)
    dy = jnp.arange(36, dtype=dtype).reshape(3, 12) + 1
    op = make_op(tmp_path, RELU_BACKWARD)
    np.testing.assert_array_equal(op(dy, x, implementation="interpret"), jnp.where(x > 0, dy, 0))
    # The compiler compares two halves at a time; a kernel converts bfloat16 to float32 itself
    assert bool(seen) == (dtype is jnp.float16)
