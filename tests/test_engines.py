"""docs/engines.md says what the tests do."""

from __future__ import annotations

import subprocess
import sys

from tests.engines import PAGE, ROOT


def test_the_page_of_engines_is_what_the_tests_say() -> None:
    code = "from tests.engines import page; import sys; sys.stdout.write(page())"
    made = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    assert made.returncode == 0, made.stderr
    assert made.stdout == PAGE.read_text(), "it is out of date; run make docs"
