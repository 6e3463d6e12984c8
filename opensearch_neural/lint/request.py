"""The request that is checked: its body, what is known about cluster and index, and the findings so far."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from opensearch_neural.lint.clause_count import KEYWORD
from opensearch_neural.lint.findings import RULES, Finding, Outcome, Path, path_text
from opensearch_neural.lint.index_description import IndexDescription
from opensearch_neural.lint.values import as_object, matches, number_or, whole
from opensearch_neural.queries import forward_index, multi_vector
from opensearch_neural.queries.body_parts import Body

if TYPE_CHECKING:
    from opensearch_neural.cluster.capabilities import Capabilities
    from opensearch_neural.index.record import IndexMeta

TEXTS = ("text", "match_only_text", "search_as_you_type")
"""The types of fields that hold words."""
FAILS_BY_SHARD = ("knn_vector", "nested", "rank_features")
"""The types that a query needs of a field. In other fields, only the shards of their index fail."""


def type_in(fields: Mapping[str, Mapping[str, Any]], name: str) -> str:
    """The type of a field of an index; "" if there is none of that name."""
    mapping = fields.get(name)
    return "" if mapping is None else str(mapping.get("type", "object"))


def shards_fail(indexes: Sequence[str]) -> str:
    """What a query does over several indexes if some of them refuse it."""
    return f"the shards of {', '.join(map(repr, indexes))} fail, and hits come from the others alone"


@dataclass
class LintedRequest:
    body: Body
    """Its members that are not null."""
    capabilities: Capabilities | None
    """What the cluster can do; None if not known."""
    meta: IndexMeta | None
    """The record of the index; None if `osn` did not write it, or if not known."""
    index: IndexDescription
    """Limits, fields and pipelines of the index; OpenSearch's defaults if not known."""
    findings: list[Finding] = field(default_factory=list)
    """The problems so far; rules add to them."""
    within: str | None = None
    """The path of the innermost nested query around the current clause; None: no nested query."""

    def report(self, rule: str, outcome: Outcome, path: Path, message: str, remedy: str) -> None:
        assert rule in RULES
        self.findings.append(Finding(rule, outcome, path_text(path), message, remedy))

    # The cluster

    def check_cluster(self, capability: str, path: Path, what: str, remedy: str) -> None:
        """Report `what` the cluster cannot do if it certainly lacks the capability."""
        if self.capabilities and getattr(self.capabilities, capability) is False:
            self.report("plugin", "rejected", path, f"this cluster cannot do {what}", remedy)

    @property
    def release(self) -> tuple[int, int]:
        """(major, minor); (0, 0) if not known."""
        return self.capabilities.version_number if self.capabilities else (0, 0)

    def unless_release(self, *release: int) -> Outcome | None:
        """The outcome for a feature that OpenSearch accepts from a release on: None if this cluster has that release,
        rejected before it, doubtful if the release is not known."""
        if self.release == (0, 0):
            return "doubtful"
        return None if self.release >= release else "rejected"

    # The index

    def type_of(self, name: str) -> str | None:
        """The type of a field; "" if the index certainly has none of that name, None if not known."""
        if self.index.fields is not None:
            return type_in(self.index.fields, name)
        if self.meta is None:
            return None
        if name == "sparse":
            return "" if self.meta.sparse is None else "rank_features"
        if name == self.vector_field:
            return "knn_vector"
        if name == multi_vector.PATH and self.vector_field is not None:
            return "nested"
        if name.partition(".")[0] == multi_vector.PATH:
            return ""
        if name == forward_index.FIELD:
            return "binary" if self.meta.forward_index else ""
        return "binary" if name == "pq" else None

    def lacks(self, name: str, *, patterns: bool) -> bool:
        """Whether the index certainly has no such field. patterns: * in the name stands for any characters."""
        if self.index.fields is None or name.rpartition(".")[2].startswith("_"):
            return False  # _id and the like, and what a search_as_you_type field adds, are not in the mapping
        derived = {each: {"type": "flat_object"} for each in as_object(self.body.get("derived"))}
        fields = {**self.index.fields, **derived}
        join, parent, _ = name.partition("#")
        if parent and fields.get(join, {}).get("type") == "join":
            return False  # the ids of the parents of one relation
        if name in fields or (patterns and "*" in name and any(matches(name, each) for each in fields)):
            return False
        above = name.split(".")
        around = (fields.get(".".join(above[:count]), {}) for count in range(1, len(above)))
        # The fields inside a flat_object have no mapping; an alias may stand for one.
        return not any(mapping.get("type") in ("alias", "flat_object") for mapping in around)

    def check_field(
        self,
        name: str,
        needed: str,
        path: Path,
        outcome: Outcome = "rejected",
        *,
        missing: Outcome | None = None,
        also: str = "",
    ) -> bool:
        """Whether the field may be of the type that the query needs; reports one that certainly is not.

        missing: the verdict on a field that does not exist; None: `outcome`. also: another type that the query takes
        """
        types = {
            index: type_in(fields, name)
            for index, fields in self.index.several.items()
            if self.within is None or type_in(fields, self.within) == "nested"
        }
        taken = (needed, also) if also else (needed,)
        if needed in FAILS_BY_SHARD and (present := [type_ for type_ in taken if type_ in types.values()]):
            verdicts = {
                index: outcome if type_ else missing or outcome for index, type_ in types.items() if type_ not in taken
            }
            if failing := [index for index, verdict in verdicts.items() if verdict == "rejected"]:
                types_ = " or ".join(present)
                message = f"the field {name!r} is of type {types_} in some of the indexes: {shards_fail(failing)}"
                self.report("field", "bends", path, message, "search only the indexes in which it is")
            return True
        type_ = self.type_of(name)
        if type_ is None or type_ in taken:
            return True
        is_ = f"is of type {type_}" if type_ else "does not exist in this index"
        message = f"the field {name!r} {is_}, and the query needs {needed}"
        remedy = f"name a field of type {needed}: GET INDEX/_mapping lists them"
        self.report("field", outcome if type_ else missing or outcome, path, message, remedy)
        return False

    @property
    def prune_postings(self) -> str | None:
        """How the index's postings are pruned; None: not pruned, or not known."""
        return self.meta.prune_postings if self.meta else None

    def analyzer_of(self, name: str) -> str | None:
        """The analyzer of a query's text for a field, "keyword" for a field that holds no words; None if not known."""
        mapping = (self.index.fields or {}).get(name, {})
        if mapping and mapping.get("type") not in TEXTS:
            return KEYWORD
        of_record = self.meta.analyzer if self.meta and name in ("title", "text", "contents") else None
        return mapping.get("search_analyzer") or mapping.get("analyzer") or of_record

    @property
    def vector_field(self) -> str | None:
        """The field with the vectors, from the index's record: `dense`, or the field of its nested documents."""
        return self.meta.dense.field_name if self.meta and self.meta.dense else None

    @property
    def has_nested(self) -> bool | None:
        """Whether the index has nested documents; then OpenSearch puts the whole query into a bool. None if not known."""
        if self.index.fields is not None:
            return any(mapping.get("type") == "nested" for mapping in self.index.fields.values())
        return True if self.vector_field == multi_vector.FIELD else None

    def nested_path(self, name: str) -> str | None:
        """The path of the nested documents that a field certainly belongs to; else None."""
        above = name.split(".")[:-1]
        paths = (".".join(above[:count]) for count in range(len(above), 0, -1))
        return next((path for path in paths if self.type_of(path) == "nested"), None)

    # The body

    @property
    def size(self) -> float:
        return number_or(self.body.get("size"), 10)

    @property
    def page_end(self) -> float:
        """from + size, without fractions, as OpenSearch reads them; only meaningful if both are numbers."""
        return whole(number_or(self.body.get("from"), 0)) + whole(self.size)

    @property
    def queries(self) -> Iterator[tuple[Path, Any]]:
        """(path, query) of each top-level query: in query, post_filter, highlight and rescore."""
        for name in ("query", "post_filter"):
            if name in self.body:
                yield (name,), self.body[name]
        if "highlight_query" in as_object(self.body.get("highlight")):
            yield ("highlight", "highlight_query"), self.body["highlight"]["highlight_query"]
        for path, stage in self.rescore_stages:
            if "rescore_query" in as_object(stage.get("query")):
                yield (*path, "query", "rescore_query"), stage["query"]["rescore_query"]

    @property
    def rescore_stages(self) -> list[tuple[Path, Body]]:
        """(path, stage) of each rescoring stage of the body."""
        rescore = self.body.get("rescore")
        if isinstance(rescore, list):
            return [(("rescore", place), as_object(stage)) for place, stage in enumerate(rescore)]
        return [(("rescore",), rescore)] if isinstance(rescore, dict) else []

    @property
    def pipeline(self) -> tuple[bool, Body, Path]:
        """(whether it is known, the pipeline's definition, its path)."""
        pipeline = self.body.get("search_pipeline", self.index.default_pipeline)
        if isinstance(pipeline, dict):
            return True, pipeline, ("search_pipeline",)
        if pipeline is None or pipeline == "_none":
            return True, {}, ()
        known = self.index.pipelines.get(str(pipeline))
        return known is not None, dict(known or {}), ("search_pipeline", str(pipeline))

    def processors(self, kind: str) -> list[tuple[str, Any, Path]]:
        """(name, configuration, path) of the processors of a kind: request_processors, phase_results_processors."""
        _, spec, path = self.pipeline
        listed = spec.get(kind)
        return [
            (name, config, (*path, kind, place, name))
            for place, entry in enumerate(listed if isinstance(listed, list) else [])
            if isinstance(entry, dict)
            for name, config in entry.items()
        ]
