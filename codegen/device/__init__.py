"""What generated kernels call. Of this project it imports nothing but the numbers that plans know too."""

from codegen.device.circular import cos, sin, sine_and_cosine  # noqa: F401
from codegen.device.elementary import *  # noqa: F403
from codegen.device.functions import *  # noqa: F403
