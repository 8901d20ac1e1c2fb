"""Every file of te can be imported first, though the package gives its names lazily."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import renorm


def test_each_file_is_imported_alone() -> None:
    files = sorted(p.stem for p in (Path(renorm.__file__).parent / "te").glob("*.py") if p.stem != "__init__")
    tried = "; ".join(
        f"import renorm.te.{f}; [sys.modules.pop(m) for m in [*sys.modules] if m.startswith('renorm')]" for f in files
    )
    done = subprocess.run([sys.executable, "-c", f"import sys; {tried}"], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
