"""What tests of this folder share."""

from tests.meshes import kernels as kernels
