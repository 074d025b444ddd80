"""The demo runs from end to end, and its output fits on a screen or two."""

import os
import subprocess
import sys

from tests.places import ROOT


def test_demo_runs():
    command = [sys.executable, str(ROOT / "examples/demo.py")]
    path = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
    environment = {**os.environ, "PYTHONPATH": path, "JAX_PLATFORMS": "cpu", "COLUMNS": "100"}
    result = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    assert result.returncode == 0, result.stderr
    assert result.stdout.count("every element equal") == 5
    assert "unknown name 'uu'" in result.stdout
    assert len(result.stdout.splitlines()) <= 70
