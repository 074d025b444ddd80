"""Fixtures of the tests of this folder."""

import pytest

from codegen.plan.attention import Attention, AttentionBackward
from tests.meshes import kernels as kernels

NARROW = 32


@pytest.fixture
def narrow_tiles(monkeypatch: pytest.MonkeyPatch) -> None:
    """Attention's kernels for Hopper have the narrowest tiles of theirs: a thread then has fewer elements, for each of which a kernel
    has code, and compilation takes half as long. Kernels with the planned tiles are tested with the ops of the library."""
    monkeypatch.setattr(Attention, "_hopper_columns", lambda plan, d, e: NARROW)
    apart, together = AttentionBackward._apart, AttentionBackward._together
    monkeypatch.setattr(AttentionBackward, "_together", lambda plan, d, e: together(plan, d, e)[-1:])

    def fewest(plan: AttentionBackward, d: int, e: int) -> tuple[list[int], ...]:
        rows, columns, alone = apart(plan, d, e)
        return rows[-1:], [n for n in columns if n == NARROW], [n for n in alone if n == NARROW]

    monkeypatch.setattr(AttentionBackward, "_apart", fewest)
