"""What the documentation shows is true: its snippets and doctests run."""

from __future__ import annotations

import configparser
import doctest
import importlib
import linecache
import pkgutil
import re
from pathlib import Path

import pytest

import headrace
from headrace.signals import GRACE
from headrace.windows import duration

ROOT = Path(__file__).parents[1]
MODULES = [
    m.name
    for m in pkgutil.walk_packages(headrace.__path__, "headrace.")
    if not m.name.endswith(("__main__", "daemon"))
]


def snippets(name: str) -> list[str]:
    text = (ROOT / name).read_text()
    return re.findall(r"```python\n(.*?)```", text, re.DOTALL)


def test_the_guide_runs(spark_engine):
    space: dict[str, object] = {}
    found = snippets("docs/guide.md")
    assert len(found) >= 5
    for i, code in enumerate(found):
        name = f"guide-{i}.md"
        # So that the source of its functions can be read, as that of any file.
        linecache.cache[name] = (len(code), None, code.splitlines(keepends=True), name)
        exec(compile(code, name, "exec", dont_inherit=True), space)


def test_the_readme_example_runs(spark_engine, tmp_path, monkeypatch, capsys):
    (tmp_path / "books").mkdir()
    (tmp_path / "books" / "a.txt").write_text("To be, or not to be\n")
    monkeypatch.chdir(tmp_path)
    exec(compile(snippets("README.md")[0], "README.md", "exec"), {})
    assert "to" in capsys.readouterr().out


def test_the_page_on_running_jobs_runs():
    (code,) = snippets("docs/deploy.md")
    assert "rate(1000, upto=3000)" in code
    quick = code.replace("rate(1000,", "rate(100_000,")  # it would take three seconds
    exec(compile(quick, "deploy.md", "exec"), {})


def test_the_manifests_are_well_formed():
    text = (ROOT / "docs" / "deploy.md").read_text()
    (unit,) = re.findall(r"```ini\n(.*?)```", text, re.DOTALL)
    service = configparser.ConfigParser()
    service.optionxform = str
    service.read_string(unit)
    assert service["Service"]["KillMode"] == "mixed"
    (manifest,) = re.findall(r"```yaml\n(.*?)```", text, re.DOTALL)
    seconds = int(re.findall(r"terminationGracePeriodSeconds: (\d+)", manifest)[0])
    assert seconds > duration(GRACE, "grace") / 1e6
    assert int(service["Service"]["TimeoutStopSec"]) > duration(GRACE, "grace") / 1e6
    (dockerfile,) = re.findall(r"```dockerfile\n(.*?)```", text, re.DOTALL)
    assert 'CMD ["python"' in dockerfile


def test_links_lead_somewhere():
    for page in (ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))):
        for link in re.findall(r"\]\(([^)#]+)\)", page.read_text()):
            assert (page.parent / link).exists(), f"{page.name}: {link}"


@pytest.mark.parametrize("name", MODULES)
def test_docstrings_tell_the_truth(name):
    failed, _ = doctest.testmod(importlib.import_module(name), optionflags=doctest.ELLIPSIS)
    assert failed == 0
