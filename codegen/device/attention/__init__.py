"""Attention on the device: the main loops, and what generated functions of scores and rows get.

In reading order:
  entry      the entry of generated kernels: selects a main loop
  arguments  the arguments of the main loops
  scores     what a generated function of scores sees: positions, other arrays
  bounds     a mask's condition over a whole tile
  batches    positions along the axes of the batch
  pages      k and v in pages
  sm80       the main loop for every architecture since Ampere
  fragments  its tiles and fragments
  sm90       the main loop for Hopper
  hopper     the parts that Hopper's kernels share
  weights    a tile's weights on Hopper
  joining    the sum of parts that several blocks wrote
  backward/  the gradients
"""

from codegen.device.attention import bounds as bounds
from codegen.device.attention.arguments import bend as bend
from codegen.device.attention.entry import arranged as arranged
from codegen.device.attention.entry import by_row as by_row
from codegen.device.attention.entry import launch as launch
from codegen.device.attention.entry import launch_backward as launch_backward
from codegen.device.attention.entry import of_pairs as of_pairs
from codegen.device.attention.pages import in_pages as in_pages
from codegen.device.attention.scores import Row as Row
from codegen.device.attention.scores import Scores as Scores
from codegen.device.attention.scores import Tile as Tile
from codegen.device.attention.scores import floats as floats
from codegen.device.attention.scores import line as line
from codegen.device.attention.scores import multiples as multiples
from codegen.device.attention.scores import rising as rising
from codegen.device.attention.scores import shifted as shifted
from codegen.device.attention.scores import tanh as tanh
