"""A finding: where it stands, and that its rule is documented."""

from __future__ import annotations

import re
from pathlib import Path

from opensearch_neural import queries
from opensearch_neural.lint import lint
from opensearch_neural.lint.findings import RULES


def test_every_rule_is_documented() -> None:
    page = (Path(__file__).parents[2] / "docs" / "queries.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| `([a-z-]+)` \|", page, re.MULTILINE)
    assert rows == list(RULES), "docs/queries.md has a row for each rule, in the order of findings.RULES"


def test_a_finding_says_where_and_what_to_do() -> None:
    (finding,) = lint(queries.neural_sparse({"u.s.a": 0.0}, filter={"match_all": {}}))
    assert finding.path == "query.bool.must[0].neural_sparse.sparse.query_tokens['u.s.a']"
    assert str(finding).startswith("rejected: query.bool.must[0]")
    assert "leave the token out" in str(finding)
