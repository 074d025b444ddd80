"""In a checkout: the package `generated` by the name that it has where it is installed. Both names mean the same modules.

No distribution contains this file. There the files of generated/ are the package `cutefuse`.
"""

import importlib
import sys
from collections.abc import Sequence
from importlib.abc import Loader
from importlib.machinery import ModuleSpec
from types import ModuleType

import generated
from codegen import __version__


class Alias(Loader):
    """Finds `cutefuse.NAME` as `generated.NAME`."""

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        return ModuleSpec(name, self) if name.startswith("cutefuse.") else None

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        module = importlib.import_module(f"generated{spec.name.removeprefix('cutefuse')}")
        spec.loader_state = module.__spec__  # the import system is about to replace it
        return module

    def exec_module(self, module: ModuleType) -> None:
        assert module.__spec__ is not None
        module.__spec__ = module.__spec__.loader_state


sys.meta_path.insert(0, Alias())
vars(generated)["__version__"] = __version__
sys.modules[__name__] = generated
