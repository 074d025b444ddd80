"""Measurements as data, for files and generated modules."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from codegen.errors import UserError, known, shown
from codegen.plan.launches import Tuned
from codegen.shared import Tiles
from codegen.tuning.choosing import FIELDS, SCHEDULE

TAKES = ("plan", "launch", "xla")
KEYS = ("kernel", "arch", "types", "sizes", "take", "launch", "measured")
SETTINGS = (*SCHEDULE, *dict.fromkeys(f for fields in FIELDS.values() for f in fields), *Tiles.__dataclass_fields__)


def data_of(tuned: Tuned) -> dict[str, Any]:
    """A measurement as data: keys without a value are left out."""
    found = {
        "kernel": tuned.kernel,
        "arch": tuned.arch,
        "types": dict(tuned.types),
        "sizes": {name: [least, most] for name, least, most in tuned.sizes},
        "take": tuned.take,
        "launch": dict(tuned.launch),
        "measured": dict(tuned.measured),
    }
    return {key: value for key, value in found.items() if value}


def entry_of(data: Mapping[str, Any]) -> Tuned:
    """The measurement in data. Raises `UserError`."""
    for key in data:
        if key not in KEYS:
            raise UserError(f"unknown key {shown(str(key))}", known(str(key), KEYS))
    for key in ("types", "sizes", "launch", "measured"):
        if not isinstance(data.get(key, {}), Mapping):
            raise UserError(f"{key!r} must be a mapping", "")
    if data.get("take") not in TAKES:
        raise UserError(f"'take' is {data.get('take')!r}", f"it is one of {', '.join(TAKES)}")
    launch = dict(data.get("launch", {}))
    for name, value in launch.items():
        if name not in SETTINGS:
            raise UserError(f"unknown setting {shown(str(name))} of a launch", known(str(name), SETTINGS))
        if not isinstance(value, bool | int | float):
            raise UserError(f"{name!r} must be a number, true or false", "")
    sizes = []
    for name, bounds in data.get("sizes", {}).items():
        if not isinstance(bounds, list) or len(bounds) != 2 or not isinstance(bounds[0], int):
            raise UserError(
                f"the sizes of {name!r} are a least and a largest one", "as in [4096, 8191], or [4096, null]"
            )
        sizes.append((str(name), bounds[0], bounds[1]))
    return Tuned(
        str(data.get("kernel", "")), str(data.get("arch", "")), tuple(data.get("types", {}).items()), tuple(sizes),
        str(data["take"]), tuple(launch.items()), tuple(data.get("measured", {}).items()),
    )  # fmt: skip
