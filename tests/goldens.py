"""Expected outputs in files. UPDATE=1 writes them."""

import os
from pathlib import Path

UPDATE = os.environ.get("UPDATE") == "1"


def check_golden(path: Path, text: str) -> None:
    if UPDATE:
        path.write_bytes(text.encode())
    assert path.exists(), f"{path} is missing: UPDATE=1 pytest writes it"
    assert text == path.read_bytes().decode()
