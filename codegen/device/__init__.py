"""Functions that generated kernels call. Of this project it imports only the numbers that it shares with plans."""

from codegen.device.functions import *  # noqa: F403
from codegen.device.math.circular import *  # noqa: F403
from codegen.device.math.division import *  # noqa: F403
from codegen.device.math.elementary import *  # noqa: F403
from codegen.device.math.integers import (  # noqa: F401
    floor_divide,
    floor_divide_small,
    modulo,
    modulo_small,
    popcount,
    random_bits,
    shift_left,
    shift_right,
)
from codegen.device.math.narrow import Float4, Uint4, bytes_of, read, rounded, stored  # noqa: F401
from codegen.device.math.scaling import *  # noqa: F403
