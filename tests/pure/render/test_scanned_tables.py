"""Tables that a kernel which scans reads at computed indices."""

from codegen.pipeline import read_op
from codegen.render import render_op
from tests.making import spec_text
from tests.mutants import check_names


def test_a_scan_reads_a_table_at_computed_indices_from_memory():
    text = spec_text(
        "x: float32[..., N]; table: float32[P]", "y: float32[..., N]",
        "y = cumsum(x * take(table, cast(floor(x), int32), axis=P), axis=N)", "x", more="grad: none",
    )  # fmt: skip
    source = render_op(read_op("specs/made.yaml", text))
    assert "scan.walk" in source
    check_names(source)
