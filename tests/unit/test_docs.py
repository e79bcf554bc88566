"""The pages say what is there: links lead somewhere, and documented keys are the real ones."""

from __future__ import annotations

import re
import subprocess
import tomllib
from pathlib import Path

import pytest

from ballonet.planning.planner import plan_pool
from ballonet.planning.runtime_budget import config_map_data, runtime_budget
from hack.reference import filled
from tests.pools import role, spec, topology

ROOT = Path(__file__).parents[2]
PAGES = sorted(
    [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *(ROOT / "examples").glob("*.md")]
)
LINK = re.compile(r"\]\(([^)\s]+)\)")


def links(page: Path) -> list[str]:
    """Links of a page; what stands in code only looks like one."""
    return LINK.findall(re.sub(r"(?s)```.*?```|`[^`\n]*`", "", page.read_text()))


def anchors(page: Path) -> set[str]:
    """Headings of a page as links name them."""
    headings = re.findall(r"(?m)^#+ (.+)$", page.read_text())
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page: Path) -> None:
    for link in links(page):
        if re.match("[a-z]+:", link):
            continue
        path, _, anchor = link.partition("#")
        target = page.parent / path if path else page
        assert target.exists(), f"{link} is dead"
        if anchor:
            assert anchor in anchors(target), f"{link}: no such heading"


def test_the_map_of_the_code_names_files_that_are_there() -> None:
    page = (ROOT / "docs/architecture.md").read_text()
    named = re.findall(r"`([a-z_]+/[\w/]+(?:\.\w+|/))`", page)
    missing = [
        name
        for name in named
        if not ((ROOT / "operator/ballonet" / name).exists() or (ROOT / name).exists())
    ]
    assert len(named) > 40
    assert missing == []


def test_every_runtime_dependency_has_a_reason() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    given = {re.split("[<>=]", each)[0] for each in project["dependencies"]}
    table = (ROOT / "CONTRIBUTING.md").read_text().partition("## Runtime dependencies")[2]
    assert set(re.findall(r"(?m)^\| ([\w-]+) \|", table)) - {"package"} == given


def test_every_page_of_the_docs_is_linked_from_the_readme() -> None:
    linked = {ROOT / link.partition("#")[0] for link in links(ROOT / "README.md")}
    assert set((ROOT / "docs").glob("*.md")) <= linked
    assert ROOT / "CONTRIBUTING.md" in linked


def documented(heading: str) -> list[str]:
    """First cells of the table of docs/runtime-budget.md whose first heading is given."""
    page = (ROOT / "docs" / "runtime-budget.md").read_text()
    rows = page.split(f"| {heading} |", 1)[1].split("\n\n", 1)[0].splitlines()[2:]
    return [name for row in rows for name in re.findall("`([^`]+)`", row.split("|")[1])]


def test_the_documented_keys_of_the_budget_are_the_real_ones() -> None:
    planner = role("planner", sharedPrefix="p")
    pool = spec(
        sharedPrefixes=[{"name": "p", "tokens": 64}], topologies=[topology(planner, role("w"))]
    )
    document = runtime_budget(plan_pool("demo", pool))
    (runs,) = document["topologies"]
    assert documented("key") == list(document)
    assert documented("key of one of `topologies`") == list(runs)
    assert documented("key of one of `roles`") == list(runs["roles"][0])
    assert documented("key of one of `sharedPrefixes`") == list(document["sharedPrefixes"][0])
    variables = [
        line.split("=")[0] for line in config_map_data(document)["budget.env"].splitlines()
    ]
    assert documented("variable") == variables


def test_what_the_page_names_of_the_cache_folder_is_removed_by_make_clean() -> None:
    page = (ROOT / "docs/testing-images.md").read_text()
    table = page.split("| entry | made from |", 1)[1].split("\n\n", 1)[0]
    cells = [row.split("|")[1] for row in table.splitlines()[2:]]
    entries = {name.split("/")[0] for cell in cells for name in re.findall("`([^`]+)`", cell)}
    command = ["make", "--dry-run", "clean"]
    told = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    removed = set(re.findall(r'"/([^"/\s]+)(?=\s)', told))
    assert len(entries) >= 5
    assert entries <= removed


def test_a_part_of_a_page_is_replaced_and_a_place_that_is_missing_is_an_error() -> None:
    page = "a\n<!-- generated: one -->\nold\n<!-- end of generated -->\nb\n"
    assert filled(page, {"one": "new\n"}) == page.replace("old", "new")
    for parts in ({}, {"one": "", "two": ""}, {"two": ""}):
        with pytest.raises(ValueError, match="the page has places for"):
            filled(page, parts)
