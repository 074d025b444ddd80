"""The imports of a generated module: what its code uses, and nothing else."""

from codegen.render.imports import import_lines

CODE = '''
class PairOutputs(NamedTuple):
    """Not of `templates/scan.py`, nor of my.gemm.launch(x)."""

def pair_launch(stream: cuda.CUstream, mX: cute.Tensor, how: cutlass.Constexpr[RowLaunch]):
    attend.launch(rowwise.grid(how), device.exp(x), my_flat.x, jax.Array)

@runtime.op(SPEC)
'''


def test_a_module_imports_the_names_that_its_code_uses():
    assert import_lines(CODE) == [
        "from typing import NamedTuple",
        "",
        "import cuda.bindings.driver as cuda",
        "import cutlass",
        "import cutlass.cute as cute",
        "import jax",
        "",
        "from codegen import device, runtime",
        "from codegen.device import attention as attend, rowwise",
        "from codegen.shared import RowLaunch",
    ]
