"""A package of generated ops: a module whose attributes are its ops."""

from __future__ import annotations

import importlib
import types

from codegen import __version__


class OpPackage(types.ModuleType):
    """A package that imports an op's module when the op is first asked for.

    Importing a submodule would otherwise put the module under the op's name.
    """

    __all__: list[str]

    def __setattr__(self, name: str, value: object) -> None:
        if name in self.__all__ and isinstance(value, types.ModuleType):
            value = getattr(value, name)
        super().__setattr__(name, value)

    def __getattr__(self, name: str) -> object:
        if name == "__version__" and self.__name__ == "cutefuse":  # the library of ops, as it is installed
            return __version__
        if name not in self.__all__:
            raise AttributeError(f"module {self.__name__!r} has no op {name!r}")
        return getattr(importlib.import_module(f"{self.__name__}.{name}"), name)

    def __dir__(self) -> list[str]:
        return sorted({*super().__dir__(), *self.__all__})
