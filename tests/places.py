"""Where tests find the project's files, however deep the test's own folder is."""

from pathlib import Path

ROOT = Path(__file__).parent.parent
SPECS = ROOT / "specs"
GOOD_SPECS = ROOT / "tests/pure/good_specs"
BAD_SPECS = ROOT / "tests/pure/bad_specs"
