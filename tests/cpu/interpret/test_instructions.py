"""The interpreter knows every instruction of the generated kernels."""

import pytest
from instruction_list import forms, listed, problem

from codegen.interpret.arithmetic import PTX_TYPES
from codegen.interpret.decode import instructions


def test_every_listed_instruction_is_known():
    """tests/instruction_list.py compiles all kernels and lists their instructions; test_library_compiles compares the list with
    some kernels, in turns."""
    assert len(listed()) > 250
    problems = [found for form in sorted(listed()) if (found := problem(form))]
    assert not problems, "\n".join(problems)


@pytest.mark.parametrize("opcode", ["fma", "shfl", "mma", "cvt"])
def test_an_opcode_that_is_missing_is_named(opcode, monkeypatch):
    monkeypatch.delitem(instructions.TABLE, opcode)
    found = [problem(form) for form in listed() if form.startswith(f"{opcode}.")]
    assert found
    assert all(f"unknown instruction '{opcode}." in text for text in found)


def test_a_type_that_is_missing_is_named(monkeypatch):
    monkeypatch.delitem(PTX_TYPES, "s16")
    assert any("'add.s16'" in problem(form) for form in listed())


def test_operands_are_reduced_to_their_kinds():
    text = """.entry made(.param .b64 made_param_0) {
      .reg .pred %p<2>; .reg .b32 %r<9>; .reg .b64 %rd<4>;
      .shared .align 16 .b8 buffer[64];
      ld.param.b64 %rd1, [made_param_0+8];
      @%p1 st.shared.v2.b32 [buffer+16], {%r7, 5};
      fma.rn.f32 %r1, %r2, 0f3F800000, %r2;
      mov.u32 %r3, %ctaid.y;
      bar.sync 1;
      bra $L__1;
    $L__1:
      ret;
    }"""
    assert forms(text) == {
        "ld.param.b64 %r, [parameter]",
        "st.shared.v2.b32 [place], {%r, 0}",
        "fma.rn.f32 %r, %r, 0f00000000, %r",
        "mov.u32 %r, %ctaid.y",
        "bar.sync 1",
        "bra place",
        "ret",
    }
    assert not any(map(problem, forms(text)))
