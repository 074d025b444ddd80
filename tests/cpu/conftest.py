"""Fixtures of the tests of this folder."""

from tests.meshes import kernels as kernels
