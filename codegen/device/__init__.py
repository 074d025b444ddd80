"""Functions that generated kernels call. Of this project it imports only the numbers that it shares with plans."""

from codegen.device.division import *  # noqa: F403
from codegen.device.elementary import *  # noqa: F403
from codegen.device.functions import *  # noqa: F403
from codegen.device.integers import floor_divide, modulo, popcount, random_bits, shift_left, shift_right  # noqa: F401
