"""What generated kernels call. Of this project it imports nothing but the numbers that plans know too."""

from codegen.device.functions import *  # noqa: F403
