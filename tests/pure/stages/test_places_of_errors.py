"""Errors of plans that are tried find their place only when someone asks for it."""

import pickle

import pytest

from codegen.errors import Diagnostic, Later, Span, SpecError
from codegen.language import transfer
from codegen.pipeline import read_op
from codegen.render import render_op


@pytest.mark.parametrize("op", ["rmsnorm", "mlp_swiglu", "layernorm_channels_first", "causal_attention"])
def test_no_chain_is_printed_while_plans_are_tried(op, monkeypatch):
    def printed(*_):
        raise AssertionError("a derived chain was printed")

    monkeypatch.setattr(transfer, "printed", printed)
    render_op(read_op(f"specs/{op}.yaml"))


def test_an_error_finds_its_place_once():
    found = Diagnostic(Span("a.yaml", 3, 5), "no kernel", "", "y = x")
    asked = []
    later = Later("no kernel", "", lambda: asked.append(1) or found)
    error = SpecError([later])
    assert asked == []
    assert str(error) == str(SpecError([found])) and str(later) == str(found)
    assert pickle.loads(pickle.dumps(later)) == found
    assert asked == [1]
