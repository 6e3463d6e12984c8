"""The node and the indexes on which the linter's cases are tried."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from lint_cases import LintNode, written

from opensearch_neural.cluster.capabilities import quick_capabilities
from opensearch_neural.lint.index_description import IndexDescription


@pytest.fixture(scope="session")
def lint_node(client) -> Iterator[LintNode]:
    capabilities = quick_capabilities(client)
    if capabilities.version_number >= (3, 0):
        pytest.skip("the cases are those of OpenSearch 2.19")
    with written(client) as index, written(client, several=True) as several:
        facts, of_several = (IndexDescription.of(client, name) for name in (index, several))
        yield LintNode(client, index, facts, (several, of_several), capabilities)
