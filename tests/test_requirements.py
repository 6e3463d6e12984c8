"""An install of next month is today's: every requirement ends somewhere, and constraints.txt has what was tested."""

from __future__ import annotations

import configparser
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parent.parent


def requirements() -> list[Requirement]:
    setup = configparser.ConfigParser(interpolation=None)
    setup.read(ROOT / "setup.cfg")
    groups = [setup["options"]["install_requires"], *setup["options.extras_require"].values()]
    lines = (line.partition("#")[0].strip() for group in groups for line in group.splitlines())
    return [Requirement(line) for line in lines if line and not line.startswith("%(")]


def pinned() -> dict[str, Requirement]:
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    constraints = [Requirement(line) for line in lines if not line.startswith("#")]
    return {canonicalize_name(constraint.name): constraint for constraint in constraints}


@pytest.mark.parametrize("requirement", requirements(), ids=str)
def test_a_requirement_begins_and_ends_and_holds_the_version_that_was_tested(requirement: Requirement) -> None:
    operators = {specifier.operator for specifier in requirement.specifier}
    assert operators in ({">=", "<"}, {"=="})
    (tested,) = pinned()[canonicalize_name(requirement.name)].specifier
    assert tested.operator == "=="
    assert requirement.specifier.contains(tested.version)


def test_every_constraint_is_one_version() -> None:
    for constraint in pinned().values():
        assert [specifier.operator for specifier in constraint.specifier] == ["=="], constraint
