"""Builds distributions of this checkout, and installs them into their own environments, without downloads."""

import os
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import venv
from pathlib import Path

from tests.places import ROOT

PACKAGED = [
    "codegen",
    "generated",
    "specs",
    "templates",
    "cutefuse_command.py",
    "pyproject.toml",
    "README.md",
    "LICENSE",
]


def run(*words: str | Path, cwd: Path, status: int = 0, **variables: str) -> str:
    """The output of a command, which must end with this status. It sees nothing of this checkout."""
    environment = {k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "XLA_FLAGS")} | variables
    command = [str(word) for word in words]
    done = subprocess.run(command, cwd=cwd, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == status, f"{command}\n{done.stdout}{done.stderr}"
    return done.stdout + done.stderr


def sources(folder: Path) -> Path:
    """A copy of the files of a distribution: a build writes into it."""
    for name in PACKAGED:
        if (ROOT / name).is_dir():
            shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__", ".codegen*"))
        else:
            folder.mkdir(exist_ok=True)
            shutil.copy(ROOT / name, folder)
    return folder


def build(kind: str, source: Path, out: Path) -> Path:
    """A distribution made from sources: `kind` is sdist or wheel."""
    code = f"import sys; from setuptools import build_meta; build_meta.build_{kind}(sys.argv[1])"
    run(sys.executable, "-c", code, out, cwd=source)
    return next(out.glob("*.tar.gz" if kind == "sdist" else "*.whl"))


def unpacked(sdist: Path) -> Path:
    with tarfile.open(sdist) as file:
        file.extractall(sdist.parent, filter="data")
    return sdist.parent / sdist.name.removesuffix(".tar.gz")


def environment(folder: Path) -> Path:
    """An environment with the packages of this one, except cutefuse. Returns its folder of commands."""
    venv.create(folder, symlinks=True)
    here = Path(sysconfig.get_path("purelib"))
    lines = [str(here)]
    for path in sorted(here.glob("*.pth")):
        if not path.name.startswith("__editable__"):
            lines += path.read_text().splitlines()
    site = folder / Path(sysconfig.get_path("purelib")).relative_to(sys.prefix)
    (site / "borrowed.pth").write_text("\n".join(lines) + "\n")
    return folder / "bin"


def install(bin: Path, *what: str | Path) -> None:
    """Installs a distribution without its dependencies."""
    options = (
        "--quiet",
        "--disable-pip-version-check",
        "--no-deps",
        "--no-index",
        "--no-build-isolation",
        "--no-compile",
    )
    run(sys.executable, "-m", "pip", "--python", bin / "python", "install", *options, *what, cwd=bin)
