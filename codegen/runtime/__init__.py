"""The JAX side of an op, and the names that generated files import.

In reading order:
  call/      a call's arguments
  xla/       the jnp form: the same graph evaluated by XLA
  compiled/  kernels compiled, cached, launched or interpreted
  sharding/  arrays on several devices
  ops/       the JAX function itself, its backward, vmap, export
"""

from codegen.runtime.call.cast import cast as cast
from codegen.runtime.call.described import Implementation as Implementation
from codegen.runtime.compiled.interpreted import interpret_mode as interpret_mode
from codegen.runtime.ops.declare import op as op
from codegen.runtime.ops.op import Op as Op
from codegen.runtime.xla.random import random_bits as random_bits
from codegen.runtime.xla.scales import exponent as exponent
from codegen.runtime.xla.scales import ldexp as ldexp
from codegen.runtime.xla.scans import scanned as scanned
from codegen.runtime.xla.selections import argsort as argsort
from codegen.runtime.xla.selections import nucleus as nucleus
from codegen.runtime.xla.selections import placed as placed
from codegen.runtime.xla.selections import sort as sort
from codegen.runtime.xla.selections import top_k as top_k
from codegen.runtime.xla.selections import top_k_index as top_k_index
from codegen.runtime.xla.selections import unsort as unsort
from codegen.runtime.xla.slopes import dgelu as dgelu
from codegen.runtime.xla.slopes import pick as pick
from codegen.runtime.xla.slopes import product_of_others as product_of_others
from codegen.runtime.xla.slopes import settled as settled
