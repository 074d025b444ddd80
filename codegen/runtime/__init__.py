"""What generated files import: the JAX side of an op, and the device functions kernels share."""

from codegen.runtime.cast import cast as cast
from codegen.runtime.declare import op as op
from codegen.runtime.interpreted import interpret_mode as interpret_mode
from codegen.runtime.op import Implementation as Implementation
from codegen.runtime.op import Op as Op
from codegen.runtime.slopes import dgelu as dgelu
from codegen.runtime.slopes import product_of_others as product_of_others
from codegen.runtime.slopes import settled as settled
