"""A method that computes once: what it keeps, and for how long."""

import gc

from codegen.pipeline import read_op
from codegen.render import render_op
from codegen.render.common import Context
from codegen.render.once import once


class Base:
    def __init__(self):
        self.calls = []

    @once
    def of(self, number: int) -> int:
        self.calls.append(("base", number))
        return 10 * number


class Derived(Base):
    @once
    def of(self, number: int) -> int:
        self.calls.append(("derived", number))
        return super().of(number) + 1


def test_each_object_computes_once_for_its_arguments():
    first, second = Derived(), Derived()
    assert [first.of(1), first.of(1), first.of(2), second.of(1)] == [11, 11, 21, 11]
    assert first.calls == [("derived", 1), ("base", 1), ("derived", 2), ("base", 2)]
    assert second.calls == [("derived", 1), ("base", 1)]


def test_nothing_keeps_the_contexts_of_a_rendered_op():
    """Neither where an op keeps the error that says why a product, or a gradient, has no kernel."""
    gc.collect()
    others = [made for made in gc.get_objects() if isinstance(made, Context)]  # those of a test that failed
    for name in ("rmsnorm", "layernorm", "layernorm_channels_first", "mlp_geglu_dropout", "paged_decoding"):
        render_op(read_op(f"specs/{name}.yaml"))
    gc.collect()
    made = [made for made in gc.get_objects() if isinstance(made, Context)]
    assert len(made) == len(others), [context.spec.op for context in made]
