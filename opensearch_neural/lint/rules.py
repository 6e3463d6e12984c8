"""A linter for search bodies: what OpenSearch would reject, or take and silently bend, with the remedy.

    for finding in lint(body, capabilities, meta):
        print(finding)

A finding is one of three things:

    rejected   OpenSearch answers with an error
    bends      it answers, but not what the body seems to ask for
    doubtful   one or the other, or neither, depending on what cannot be seen from the body

Every rule that 2.19.1 can show was tried on it: what is `rejected` here is rejected there, and what `bends` gives other
results than its remedy does (tests/lint/test_lint.py). Rules of other releases come from their documentation and
sources, and say so. `docs/queries.md` lists all of them. Aggregations, suggesters and scripts other than those of
quantized scores are not looked into.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from opensearch_neural import multi_vector
from opensearch_neural.lint import clause_count as clauses
from opensearch_neural.look_up_table import SCRIPT, WEIGHTED_SCRIPT, PackedTable

if TYPE_CHECKING:
    from opensearchpy import OpenSearch

    from opensearch_neural.cluster.capabilities import Capabilities
    from opensearch_neural.index.record import IndexMeta

Body = dict[str, Any]
Path = tuple["str | int", ...]
Outcome = Literal["rejected", "bends", "doubtful"]

MOST_CLAUSES = 1024
MOST_HITS = 10_000
MOST_RESCORED = 10_000
MOST_TERMS = 65_536
MOST_NEIGHBOURS = 10_000
MOST_HYBRID_QUERIES = 5
LARGEST_WEIGHT = 64.0
SEISMIC_IDS = 32_768

TWO_PHASE = "neural_sparse_two_phase_processor"
NORMALIZATION = "normalization-processor"
RANKER = "score-ranker-processor"

RULES: dict[str, str] = {
    "malformed": "a query is an object with one member, its kind",
    "plugin": "the cluster lacks the plugin, or the release, that a query needs",
    "page": "from, size and search_after within what an index gives out",
    "too-many-clauses": "no more clauses than indices.query.bool.max_clause_count",
    "too-many-terms": "no more values in a terms query than index.max_terms_count",
    "boost": "a boost is a finite number above 0",
    "weight": "a sparse query weight lies in (0, 64]",
    "empty-query": "a query without tokens, words or clauses finds nothing, or everything",
    "field": "the field exists and is of the type that the query needs",
    "dot-token": "rank_feature splits its field name at the last dot",
    "not-linear": "a rank_feature clause without a function saturates",
    "optional-tokens": "beside a filter, tokens in `should` need not match",
    "rescore-with-sort": "rescoring excludes sorting and search_after",
    "rescore-with-collapse": "rescoring excludes collapsing",
    "rescore-of-hybrid": "rescoring a hybrid query comes before its normalization",
    "rescore-window": "a window covers the page and stays within index.max_rescore_window",
    "rescore-min-score": "min_score is compared with the score before rescoring",
    "rescore-order": "no stage rescores more hits than the one before",
    "rescore-weight": "a negative rescore weight puts what was rescored last",
    "two-phase-parameter": "the parameters of the two-phase processor have ranges",
    "two-phase-window": "the two-phase window covers the page and stays within its limits",
    "two-phase-not-split": "the two-phase processor splits a bare neural_sparse or one in bool.should, nothing else",
    "two-phase-empty": "phase one keeps at least one token",
    "two-phase-with-rescore": "the two-phase processor adds its rescoring to the body's own",
    "hybrid-nested": "hybrid stands at the top",
    "hybrid-queries": "hybrid takes one to five queries",
    "hybrid-option": "hybrid takes no boost, and a filter from 3.0 on",
    "hybrid-without-pipeline": "hybrid needs a processor that fuses its parts",
    "hybrid-pagination": "pagination_depth covers the page",
    "hybrid-with": "collapse, min_score, profile and mixed sorts do not go with hybrid",
    "fusion-without-hybrid": "a processor that fuses does nothing to other queries",
    "fusion-technique": "the techniques that the release knows",
    "fusion-weights": "one weight a query, decimals from 0.0 to 1.0 that sum to 1",
    "rank-constant": "rank_constant stands where the release reads it, within 1 and 10000",
    "knn-k": "k lies within 1 and 10000 and covers the page",
    "nested-field": "fields of nested documents are asked for within a nested query of their path, other fields outside",
    "knn-vector": "the vector has the field's dimension and type",
    "knn-filter": "a filter on neighbours belongs into the knn query, as one object",
    "quantized-table": "a look-up table has 256 numbers for each byte of a code",
    "seismic-token": "tokens of a sparse_vector field are ids of vocabulary entries",
    "seismic-collision": "ids are folded modulo 32768",
}


ONE_FIELD = ("match", "term", "range", "prefix", "wildcard", "fuzzy", "neural_sparse", "knn", "match_phrase")
"""Queries of one field, {kind: {field: …}}."""


@dataclass(frozen=True)
class Finding:
    """One thing that is wrong with a body.

    path: where, as one would write it in a program: query.bool.should[2].rank_feature.boost
    """

    rule: str
    outcome: Outcome
    path: str
    message: str
    remedy: str

    def __str__(self) -> str:
        return f"{self.outcome}: {self.path}: {self.message} [{self.rule}]\n  {self.remedy}"


@dataclass(frozen=True)
class IndexFacts:
    """What an index says about itself: limits, field types, the pipeline that applies where a request names none.

    fields: mapping by full field name; None where it is not known. pipelines: search pipelines by name.
    """

    max_result_window: int = MOST_HITS
    max_rescore_window: int = MOST_RESCORED
    max_terms_count: int = MOST_TERMS
    fields: Mapping[str, Mapping[str, Any]] | None = None
    default_pipeline: str | None = None
    pipelines: Mapping[str, Body] = field(default_factory=dict)

    @classmethod
    def of(cls, client: OpenSearch, index: str) -> IndexFacts:
        """Ask the cluster, in two requests. Of several indexes behind one name the first one's answer counts.

        Raises the client's errors: NotFoundError where there is no such index.
        """
        answers = list(client.indices.get(index=index, flat_settings=True, include_defaults=True).values())
        answer = answers[0]
        settings = {**answer.get("defaults", {}), **answer.get("settings", {})}
        return cls(
            max_result_window=int(settings.get("index.max_result_window", MOST_HITS)),
            max_rescore_window=int(settings.get("index.max_rescore_window", MOST_RESCORED)),
            max_terms_count=int(settings.get("index.max_terms_count", MOST_TERMS)),
            fields=dict(_flat_fields(answer["mappings"].get("properties", {}))),
            default_pipeline=settings.get("index.search.default_pipeline") or None,
            pipelines=_pipelines(client),
        )


def _flat_fields(properties: Mapping[str, Any], before: str = "") -> Iterator[tuple[str, Mapping[str, Any]]]:
    for name, mapping in properties.items():
        yield before + name, mapping
        yield from _flat_fields(mapping.get("properties", {}), f"{before}{name}.")
        yield from _flat_fields(mapping.get("fields", {}), f"{before}{name}.")


def _pipelines(client: OpenSearch) -> Mapping[str, Body]:
    from opensearchpy.exceptions import ConnectionError, TransportError

    try:
        return client.transport.perform_request("GET", "/_search/pipeline")
    except ConnectionError:
        raise
    except TransportError:  # no pipelines, or no right to see them
        return {}


def lint(
    body: Any,
    capabilities: Capabilities | None = None,
    meta: IndexMeta | None = None,
    *,
    index: IndexFacts | None = None,
) -> list[Finding]:
    """What is wrong with a search body, the worst first; empty where nothing is.

    capabilities: of the cluster, for its release, plugins and clause limit; without them the limits are OpenSearch's
    defaults and the release is unknown. meta: the record of an index that `osn` wrote (which fields it has, the dense
    model's dimension, the analyzer). index: what the index itself says, which is more than `meta` does.
    """
    if not isinstance(body, dict):
        return [Finding("malformed", "rejected", "(body)", "the body is no JSON object", 'write {"query": {…}}')]
    linter = _Linter(body, capabilities, meta, index or IndexFacts())
    linter.run()
    order = {"rejected": 0, "bends": 1, "doubtful": 2}
    return sorted(linter.findings, key=lambda finding: order[finding.outcome])


@dataclass
class _Linter:
    body: Body
    capabilities: Capabilities | None
    meta: IndexMeta | None
    index: IndexFacts
    findings: list[Finding] = field(default_factory=list)
    within: str | None = None
    """The path of the innermost nested query around the clause that is looked at."""

    def report(self, rule: str, outcome: Outcome, path: Path, message: str, remedy: str) -> None:
        assert rule in RULES
        self.findings.append(Finding(rule, outcome, _written(path), message, remedy))

    # ------------------------------------------------------------------------------------------------ what is known

    @property
    def release(self) -> tuple[int, int]:
        """(major, minor); (0, 0) where it is not known."""
        return self.capabilities.version_number if self.capabilities else (0, 0)

    def from_release(self, *release: int) -> Outcome | None:
        """The outcome for what OpenSearch takes from a release on: None there, rejected before, else doubtful."""
        if self.release == (0, 0):
            return "doubtful"
        return None if self.release >= release else "rejected"

    def type_of(self, name: str) -> str | None:
        """The type of a field; "" where the index certainly has none of that name, None where it is not known."""
        if self.index.fields is not None:
            mapping = self.index.fields.get(name)
            return "" if mapping is None else str(mapping.get("type", "object"))
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
        return "binary" if name == "pq" else None

    @property
    def vector_field(self) -> str | None:
        """The field that the record of an index says vectors are in: `dense`, or that of the nested documents in it."""
        return self.meta.dense.field_name if self.meta and self.meta.dense else None

    @property
    def has_nested(self) -> bool | None:
        """Whether the index has nested documents, where OpenSearch puts the whole query into a bool; None if not known."""
        if self.index.fields is not None:
            return any(mapping.get("type") == "nested" for mapping in self.index.fields.values())
        return True if self.vector_field == multi_vector.FIELD else None

    def nested_path(self, name: str) -> str | None:
        """The nested documents that a field is certainly of, or None."""
        above = name.split(".")[:-1]
        paths = (".".join(above[:count]) for count in range(len(above), 0, -1))
        return next((path for path in paths if self.type_of(path) == "nested"), None)

    @property
    def size(self) -> float:
        return _or(_number(self.body.get("size")), 10)

    @property
    def page_end(self) -> float:
        """from + size, fractions cut off as OpenSearch does; only meaningful where both are numbers."""
        return _whole(_or(_number(self.body.get("from")), 0)) + _whole(self.size)

    @property
    def pipeline(self) -> tuple[bool, Body, Path]:
        """(whether it is known, the pipeline's definition, its path)."""
        named = self.body.get("search_pipeline", self.index.default_pipeline)
        if isinstance(named, dict):
            return True, named, ("search_pipeline",)
        if named is None or named == "_none":
            return True, {}, ()
        found = self.index.pipelines.get(str(named))
        return found is not None, dict(found or {}), ("search_pipeline", str(named))

    def processors(self, kind: str) -> list[tuple[str, Any, Path]]:
        """(name, configuration, path) of the processors of a kind: request_processors, phase_results_processors."""
        _, spec, path = self.pipeline
        listed = spec.get(kind)
        found = []
        for place, entry in enumerate(listed if isinstance(listed, list) else []):
            if isinstance(entry, dict):
                found += [(name, config, (*path, kind, place, name)) for name, config in entry.items()]
        return found

    # -------------------------------------------------------------------------------------------------------- rules

    def run(self) -> None:
        self.page()
        self.clause_counts()
        if "query" in self.body:
            self.visit(self.body["query"], ("query",))
        if "post_filter" in self.body:
            self.visit(self.body["post_filter"], ("post_filter",))
            if _neighbours_only(self.body.get("query")):
                message = "post_filter is applied to the k neighbours found without it, so hits are lost"
                self.report("knn-filter", "bends", ("post_filter",), message, "put the filter into the knn query")
        highlight = self.body.get("highlight")
        if isinstance(highlight, dict) and "highlight_query" in highlight:
            self.visit(highlight["highlight_query"], ("highlight", "highlight_query"), quiet=True)
        self.rescores()
        self.two_phase()
        self.fusion()
        if "hybrid" in _object(self.body.get("query")):
            self.hybrid_request()

    def page(self) -> None:
        for name in ("from", "size"):
            number = _number(self.body.get(name, 0))
            if number is None or number < 0:
                self.report("page", "rejected", (name,), f"{self.body[name]!r} is no number from 0", f"give {name} ≥ 0")
                return
        most = self.index.max_result_window
        if self.page_end > most:
            self.report(
                "page",
                "rejected",
                ("size",),
                f"from + size is {self.page_end:,.0f}, and index.max_result_window {most:,}",
                "page with search_after, or raise the index's setting at the price of heap",
            )
        after = self.body.get("search_after")
        if after is None:
            return
        if _or(_number(self.body.get("from")), 0) > 0:
            self.report("page", "rejected", ("from",), "`from` must be 0 beside search_after", "leave `from` out")
        if _sorts_by_score(self.body.get("sort")):
            self.report(
                "page",
                "rejected",
                ("search_after",),
                "search_after needs a sort by more than the descending score",
                'sort by [{"_score": "desc"}, {"_id": "asc"}] or by a field',
            )

    def clause_counts(self) -> None:
        analyzer = self.meta.analyzer if self.meta else None
        most = (self.capabilities.max_clause_count if self.capabilities else None) or MOST_CLAUSES
        highlight = _object(self.body.get("highlight"))
        trees: list[tuple[Path, Any]] = [
            (("query",), self.body.get("query")),
            (("post_filter",), self.body.get("post_filter")),
            (("highlight", "highlight_query"), highlight.get("highlight_query")),
        ]
        trees += [
            ((*path, "query", "rescore_query"), _object(rescore.get("query")).get("rescore_query"))
            for path, rescore in self.rescore_list()
        ]
        for path, tree in trees:
            if tree is None:
                continue
            found = clauses.count(tree, analyzer)
            certainly = found.widest_low > most or found.low > most + 1
            if not certainly and max(found.high, found.widest_high) <= most:
                continue
            counted = max(found.low, found.widest_low) if certainly else found.high
            self.report(
                "too-many-clauses",
                "rejected" if certainly else "doubtful",
                path,
                f"{'at least' if certainly else 'up to'} {counted:,} clauses, and this cluster takes {most:,}",
                "keep the heaviest tokens only, shorten the text, or raise indices.query.bool.max_clause_count "
                "in every node's opensearch.yml",
            )

    def visit(self, clause: Any, path: Path, *, quiet: bool = False) -> None:
        """Every rule on one query and on what it holds. quiet: without those that speak of hits."""
        if not isinstance(clause, dict) or len(clause) != 1:
            self.report("malformed", "rejected", path, RULES["malformed"], 'write {"KIND": {…}}')
            return
        ((kind, inner),) = clause.items()
        path = (*path, kind)
        if not isinstance(inner, dict):
            if kind not in ("query_string",):
                self.report("malformed", "rejected", path, f"{kind} takes an object", f'write {{"{kind}": {{…}}}}')
            return
        self.boosts(kind, inner, path)
        rules = {
            "neural_sparse": self.neural_sparse,
            "rank_feature": self.rank_feature,
            "bool": self.bool_,
            "knn": self.knn,
            "nested": self.nested,
            "terms": self.terms,
            "hybrid": self.hybrid,
            "script_score": self.script_score,
        }
        if kind == "nested" and self.finds_nothing(inner):
            return  # OpenSearch does not look at what it holds
        if kind in rules:
            rules[kind](inner, path)
        for name, where in _fields_of(kind, inner):
            self.nested_field(name, (*path, *where))
        if kind in ("match", "multi_match") and not quiet:
            self.text(inner, kind, path)
        outer = self.within
        if kind == "nested":
            self.within = str(inner.get("path"))
        for below, held in clauses.children(clause):
            self.visit(held, (*path[:-1], *below), quiet=quiet)
        self.within = outer

    def boosts(self, kind: str, inner: Body, path: Path) -> None:
        # A query on one field has its boost beside the value; `term` may be asked of a field named boost.
        by_field = [((*path, name), _object(options)) for name, options in inner.items()]
        places = by_field if kind in ONE_FIELD else [(path, inner)]
        for place, options in places:
            if "boost" not in options:
                continue
            value, boost = options["boost"], _float32(options["boost"])
            where = (*place, "boost")
            sparse = kind == "rank_feature"
            if boost is None or not math.isfinite(boost) or boost < 0 or _sign(value) < 0:
                self.report(
                    "boost", "rejected", where, f"{value!r} is no finite number from 0", "give a number above 0"
                )
            elif boost == 0:
                what = "the token scores 0, and documents that hold no other are hits with score 0" if sparse else ""
                self.report(
                    "weight" if sparse else "boost",
                    "bends",
                    where,
                    what or "the query scores 0 for every hit",
                    "leave the token out" if sparse else "put the query into bool.filter if only matching counts",
                )
            elif sparse and boost > LARGEST_WEIGHT:
                self.report(
                    "weight",
                    "doubtful",
                    where,
                    f"{value!r} is above {LARGEST_WEIGHT:g}: rank_feature takes it, neural_sparse refuses the same query",
                    "scale all weights of the query alike: the order of hits stays",
                )

    # ----------------------------------------------------------------------------------------------- sparse queries

    def neural_sparse(self, inner: Body, path: Path) -> None:
        if self.capabilities and self.capabilities.neural_sparse is False:
            self.lacking(
                path, "neural_sparse with raw tokens", "queries.neural_sparse(…, plugin=False) needs no plugin"
            )
        for name, options in inner.items():
            where, options = (*path, name), _object(options)
            tokens = options.get("query_tokens")
            type_ = self.type_of(name)
            if type_ not in (None, "rank_features", "sparse_vector"):
                self.no_such_field(where, name, "rank_features", "rejected", type_)
            if not isinstance(tokens, dict):
                continue
            if not tokens:
                self.report(
                    "empty-query", "bends", (*where, "query_tokens"), "no token: finds nothing", "send no query"
                )
            for token, weight in tokens.items():
                self.weight(weight, (*where, "query_tokens", token))
            if type_ == "sparse_vector":
                self.seismic(tokens, (*where, "query_tokens"))

    def weight(self, weight: Any, path: Path) -> None:
        value = _float32(weight)
        if value is not None and 0 < value <= LARGEST_WEIGHT:
            return
        why = f"{weight!r} is no number" if value is None else f"the weight {weight!r} is outside (0, 64]"
        if value == 0 and _number(weight):
            why = f"the weight {weight!r} is 0 as a float32"
        remedy = "scale all weights of the query alike: the order of hits stays"
        if value is None or not value > 0:
            remedy = "leave the token out: a weight of 0 adds nothing, and a negative one cannot be asked for"
        self.report("weight", "rejected", path, why, remedy)

    def seismic(self, tokens: Body, path: Path) -> None:
        """From neural-search's sources (SparseAnnQueryBuilder, SparseVector): no release with this field is tried."""
        folded: dict[int, str] = {}
        for token in tokens:
            ident = int(token) if token.isascii() and token.lstrip("+").isdigit() else -1
            if not 0 <= ident < 2**31:
                self.report(
                    "seismic-token",
                    "rejected",
                    (*path, token),
                    f"{token!r} is no id of a vocabulary entry (0 to 2147483647)",
                    "query a sparse_vector field with token ids, not with tokens",
                )
                continue
            other = folded.setdefault(ident % SEISMIC_IDS, token)
            if other != token:
                self.report(
                    "seismic-collision",
                    "bends",
                    (*path, token),
                    f"the ids {other} and {token} are one id modulo {SEISMIC_IDS:,}; the larger weight counts for both",
                    f"use a rank_features field for vocabularies of more than {SEISMIC_IDS:,} entries",
                )
            elif ident >= SEISMIC_IDS:
                self.report(
                    "seismic-collision",
                    "doubtful",
                    (*path, token),
                    f"the id {token} also matches documents that hold {ident % SEISMIC_IDS}",
                    f"use a rank_features field for vocabularies of more than {SEISMIC_IDS:,} entries",
                )

    def rank_feature(self, inner: Body, path: Path) -> None:
        name = inner.get("field")
        if not isinstance(name, str):
            self.report("malformed", "rejected", (*path, "field"), "rank_feature needs a field", "FIELD.TOKEN")
            return
        if not {"linear", "log", "saturation", "sigmoid"} & inner.keys():
            self.report(
                "not-linear",
                "bends",
                path,
                "without a function the clause saturates: w·S/(S + pivot), and scores are no longer sums of products",
                'add "linear": {}',
            )
        field_, token = self.feature(name)
        type_ = self.type_of(field_)
        if type_ == "rank_feature":
            return
        if type_ is not None and type_ != "rank_features":
            self.no_such_field((*path, "field"), field_, "rank_features", "bends", type_)
        elif not token or "." in token:
            self.report(
                "dot-token",
                "bends",
                (*path, "field"),
                f"{name!r} is split at its last dot: the field {name.rpartition('.')[0]!r} is asked for, and nothing found",
                "name the token by queries.DOT_ALIAS in place of dots, as schema.rank_features writes it beside, or use "
                "neural_sparse",
            )

    def feature(self, name: str) -> tuple[str, str]:
        """(field, token) as the writer of a rank_feature clause meant it."""
        known = self.index.fields
        if known is not None:
            if _object(known.get(name)).get("type") == "rank_feature":
                return name, "-"
            held = [
                each for each in known if name.startswith(f"{each}.") and known[each].get("type") == "rank_features"
            ]
            if held:
                longest = max(held, key=len)
                return longest, name[len(longest) + 1 :]
        elif name.startswith("sparse."):
            return "sparse", name.removeprefix("sparse.")
        before, _, after = name.rpartition(".")
        return before, after or "-"

    def bool_(self, inner: Body, path: Path) -> None:
        held = {name: _listed(inner.get(name)) for name in clauses.HOLDERS["bool"]}
        if not any(held.values()):
            self.report("empty-query", "bends", path, "a bool without clauses matches every document", "match_none")
        sparse = [query for query in held["should"] if {"neural_sparse", "rank_feature"} & _object(query).keys()]
        if sparse and held["filter"] and not held["must"] and "minimum_should_match" not in inner:
            self.report(
                "optional-tokens",
                "bends",
                (*path, "should"),
                "beside a filter no token has to match: every document of the filter is a hit",
                'add "minimum_should_match": 1, or put the tokens into a bool of their own in `must`',
            )
        if held["filter"] or held["must_not"]:
            for place, query in enumerate(held["must"]):
                if _neighbours_only(query):
                    self.report(
                        "knn-filter",
                        "bends",
                        (*path, "must", place, *list(query)[:1]),
                        "the filter is applied to the k neighbours found without it, so hits are lost",
                        "put the filter into the knn query: queries.knn(…, filter=…)",
                    )

    def terms(self, inner: Body, path: Path) -> None:
        for name, values in inner.items():
            if isinstance(values, list) and len(values) > self.index.max_terms_count:
                self.report(
                    "too-many-terms",
                    "rejected",
                    (*path, name),
                    f"{len(values):,} values, and index.max_terms_count is {self.index.max_terms_count:,}",
                    "split the list over several terms queries, or filter by a field that groups the values",
                )

    def text(self, inner: Body, kind: str, path: Path) -> None:
        analyzer = self.meta.analyzer if self.meta else None
        if kind == "match":
            ((_, how),) = list(inner.items())[:1] or [("", "")]
            how = how if isinstance(how, dict) else {"query": how}
        else:
            how = inner
        analyzer, text = how.get("analyzer", analyzer), how.get("query")
        if not isinstance(text, str) or how.get("zero_terms_query") == "all":
            return
        words = [word for word in text.lower().split() if word not in clauses.ENGLISH_STOP_WORDS]
        nothing = clauses.words_of(text, analyzer)[1] == 0
        if nothing or (analyzer == "english" and not words):
            self.report(
                "empty-query",
                "bends",
                path,
                f"no term is left of {text[:60]!r}: finds nothing",
                'answer such queries otherwise, or give "zero_terms_query": "all"',
            )

    # ---------------------------------------------------------------------------------------------------- neighbours

    def knn(self, inner: Body, path: Path) -> None:
        if self.capabilities and self.capabilities.knn_lucene is False and not self.capabilities.knn_faiss:
            self.lacking(path, "knn", "osn doctor shows what the cluster has")
        for name, options in inner.items():
            where, options = (*path, name), _object(options)
            if (type_ := self.type_of(name)) not in (None, "knn_vector"):
                self.no_such_field(where, name, "knn_vector", "rejected", type_)
            self.neighbours(options, where)
            self.vector(name, options.get("vector"), (*where, "vector"))
            if isinstance(options.get("filter"), list):
                remedy = 'write {"bool": {"filter": […]}}'
                self.report(
                    "knn-filter", "rejected", (*where, "filter"), "knn takes one filter object, no list", remedy
                )
            elif "filter" in options:
                self.visit(options["filter"], (*where, "filter"))

    def neighbours(self, options: Body, where: Path) -> None:
        given = [name for name in ("k", "min_score", "max_distance") if name in options]
        if len(given) != 1:
            self.report(
                "knn-k", "rejected", where, "knn takes exactly one of k, min_score and max_distance", 'give "k": SIZE'
            )
            return
        if given != ["k"]:
            return
        k = _number(options["k"])
        if k is None or not 1 <= k < MOST_NEIGHBOURS + 1:
            message = f"k is {options['k']!r}, and must lie between 1 and {MOST_NEIGHBOURS:,}"
            self.report("knn-k", "rejected", (*where, "k"), message, "ask for fewer neighbours, and page less deep")
        elif int(k) < self.page_end:
            self.report(
                "knn-k",
                "bends",
                (*where, "k"),
                f"{options['k']} neighbours a segment are asked for, and the page ends at hit {self.page_end:.0f}",
                "give k of at least from + size",
            )
        elif k != int(k):
            self.report("knn-k", "bends", (*where, "k"), f"k = {k} is taken as {int(k)}", "give a whole number")

    def vector(self, name: str, vector: Any, path: Path) -> None:
        numbers = [_float32(number) for number in vector] if isinstance(vector, list) else []
        finite = [number for number in numbers if number is not None and math.isfinite(number)]
        if not numbers or len(finite) != len(numbers):
            message = "the vector is no list of finite numbers"
            self.report("knn-vector", "rejected", path, message, "give as many numbers as the field has dimensions")
            return
        dimension, type_, cosine = self.dense(name)
        if dimension is not None and len(finite) != dimension:
            message = f"{len(finite)} numbers, and the field {name!r} has dimension {dimension}"
            self.report("knn-vector", "rejected", path, message, "encode the query with the model that wrote the index")
        elif type_ == "byte" and any(number != int(number) or not -128 <= number <= 127 for number in finite):
            message = f"the field {name!r} holds bytes: whole numbers from -128 to 127"
            self.report("knn-vector", "rejected", path, message, "schema.to_bytes(vector, scale) makes them")
        elif cosine and not any(finite):
            message = "a vector of zeros has no cosine"
            self.report("knn-vector", "rejected", path, message, "an empty text has no neighbours: answer it otherwise")

    def dense(self, name: str) -> tuple[int | None, str | None, bool]:
        """(dimension, element type, whether compared by cosine) of a knn_vector field, as far as known."""
        mapping = (self.index.fields or {}).get(name)
        if mapping is not None:
            method = _object(mapping.get("method"))
            space = mapping.get("space_type", method.get("space_type"))
            return mapping.get("dimension"), str(mapping.get("data_type", "float")).lower(), space == "cosinesimil"
        if self.meta and self.meta.dense and name == self.vector_field and self.index.fields is None:
            dense = self.meta.dense
            return dense.dimension, dense.type, dense.normalized
        return None, None, False

    # ----------------------------------------------------------------------------------------------- nested documents

    def nested(self, inner: Body, path: Path) -> None:
        if not isinstance(name := inner.get("path"), str):
            self.report("malformed", "rejected", path, "nested has no path", 'give "path": the field of type nested')
        elif (type_ := self.type_of(name)) not in (None, "nested"):
            self.no_such_field((*path, "path"), name, "nested", "rejected", type_)

    def finds_nothing(self, inner: Body) -> bool:
        """Whether a nested query names no object at all, and says that it may."""
        unmapped = isinstance(name := inner.get("path"), str) and self.type_of(name) not in (None, "nested", "object")
        return unmapped and inner.get("ignore_unmapped") in (True, "true")

    def nested_field(self, name: str, path: Path) -> None:
        """A field that is asked for among other documents than those that have it."""
        if self.type_of(name) in (None, "", "nested", "object"):
            return
        above = self.nested_path(name)
        if above == self.within:
            return
        if above is None:
            message = f"the nested documents {self.within!r} have no field {name!r}: nothing is found"
            remedy = "ask for it outside the nested query"
        else:
            message = f"{name!r} is a field of the nested documents {above!r}, and others are asked: nothing is found"
            remedy = f'write {{"nested": {{"path": "{above}", "query": {{…}}, "score_mode": "max"}}}}'
        self.report("nested-field", "bends", path, message, remedy)

    # ----------------------------------------------------------------------------------------------- quantized scores

    def script_score(self, inner: Body, path: Path) -> None:
        """The scripts of `queries.quantized_rescore`; others are not looked into."""
        script = _object(inner.get("script"))
        if script.get("source") not in (SCRIPT, WEIGHTED_SCRIPT):
            return
        if self.capabilities and self.capabilities.painless is False:
            self.lacking(path, "painless scripts", "queries.knn needs none")
        params, where = _object(script.get("params")), (*path, "script", "params")
        field_ = str(params.get("field"))
        if (type_ := self.type_of(field_)) not in (None, "binary"):
            self.no_such_field((*where, "field"), field_, "binary", "rejected", type_)
            return
        remedy = "queries.quantized_rescore makes it of what Quantizer.table gives"
        try:
            parts = PackedTable.from_params(params).parts
        except ValueError as error:
            certain = not isinstance(params.get("table"), str) or not isinstance(params.get("scale"), (int, float))
            self.report("quantized-table", "rejected" if certain else "doubtful", where, str(error), remedy)
            return
        if self.meta is None or field_ != "pq":
            return
        bytes_ = self.meta.quantized.subvectors if self.meta.quantized else 0
        if parts == bytes_:
            return
        message = f"the table is for codes of {parts} bytes, and those of the index have {bytes_}"
        if not bytes_:
            message, remedy = "the index holds no codes: every hit scores 0", "ingest again with --pq MODEL"
        outcome: Outcome = "bends" if parts > bytes_ else "rejected"
        self.report("quantized-table", outcome, (*where, "table"), message, remedy)

    # ------------------------------------------------------------------------------------------------------- rescore

    def rescore_list(self) -> list[tuple[Path, Body]]:
        rescore = self.body.get("rescore")
        if isinstance(rescore, list):
            return [(("rescore", place), _object(each)) for place, each in enumerate(rescore)]
        return [(("rescore",), rescore)] if isinstance(rescore, dict) else []

    def rescores(self) -> None:
        listed = self.rescore_list()
        for path, rescore in listed:
            how = _object(rescore.get("query"))
            if "rescore_query" in how:
                self.visit(how["rescore_query"], (*path, "query", "rescore_query"))
            self.window(rescore, path)
            for name in ("query_weight", "rescore_query_weight"):
                if (_or(_number(how.get(name)), 1)) < 0:
                    self.report(
                        "rescore-weight",
                        "bends",
                        (*path, "query", name),
                        "a negative weight puts the hits that were rescored behind those that were not",
                        "give a weight of 0 or more",
                    )
        if not listed:
            return
        windows = [_or(_number(rescore.get("window_size")), 10) for _, rescore in listed]
        for at in range(1, len(windows)):
            if windows[at] > windows[at - 1]:
                self.report(
                    "rescore-order",
                    "bends",
                    (*listed[at][0], "window_size"),
                    f"the stage before rescores {windows[at - 1]:g} hits a shard: the others have no score of that stage",
                    "give it a window no wider than that of the stage before",
                )
        self.with_rescoring(listed[0][0])
        if "hybrid" in _object(self.body.get("query")):
            self.report(
                "rescore-of-hybrid",
                "bends",
                listed[0][0],
                "each part is rescored by itself in each shard, before the parts are normalized: final scores are others",
                "rescore inside no hybrid query: fuse first, and rank the page again in the application",
            )

    def with_rescoring(self, path: Path) -> None:
        """What no request that rescores may hold, whether by itself or by a processor."""
        if not _sorts_by_score(self.body.get("sort")):
            self.report(
                "rescore-with-sort",
                "rejected",
                ("sort",),
                "a request that rescores cannot be sorted",
                f"drop the sort, or {path[0]}; ties are ordered by shard and document",
            )
        if "collapse" in self.body:
            self.report(
                "rescore-with-collapse",
                "rejected",
                ("collapse",),
                "a request that rescores cannot be collapsed",
                "search without rescoring (queries.neural_sparse), or collapse the hits in the application",
            )
        if "min_score" in self.body:
            self.report(
                "rescore-min-score",
                "bends",
                ("min_score",),
                "it is compared with the score before rescoring, so hits below it come back and others are lost",
                "cut the page in the application",
            )

    def window(self, rescore: Body, path: Path) -> None:
        given = rescore.get("window_size", 10)
        window, path = _number(given), (*path, "window_size")
        most = self.index.max_rescore_window
        if window is None or window < 0:
            self.report(
                "rescore-window", "rejected", path, f"{given!r} is no number of hits", "give from + size or more"
            )
        elif window > most:
            self.report(
                "rescore-window",
                "rejected",
                path,
                f"{given} hits a shard are more than index.max_rescore_window, {most:,}",
                "rescore fewer, or raise the index's setting",
            )
        elif int(window) < self.page_end and self.size:
            said = f"the {given} best hits" if "window_size" in rescore else "unless told the 10 best hits"
            self.report(
                "rescore-window",
                "bends",
                path,
                f"{said} of a shard are rescored, and the page ends at {self.page_end:.0f}: later hits keep another score",
                "give a window of at least from + size",
            )

    # ----------------------------------------------------------------------------------------------------- two phases

    def two_phase(self) -> None:
        for name, config, path in self.processors("request_processors"):
            config = _object(config)
            if name != TWO_PHASE or config.get("enabled") is False:
                continue
            if self.capabilities and self.capabilities.two_phase is False:
                self.lacking(path, name, "queries.high_idf_first needs no processor")
            parameters = _object(config.get("two_phase_parameter"))
            if not self.two_phase_parameters(parameters, (*path, "two_phase_parameter")):
                continue
            split = list(self.split(self.body.get("query")))
            if not split:
                self.report(
                    "two-phase-not-split",
                    "bends",
                    path,
                    "the query has no neural_sparse at its top or in bool.should: the processor does nothing",
                    "put the filter and the query side by side: bool.should and minimum_should_match, or use "
                    "queries.high_idf_first, which splits anywhere",
                )
                continue
            self.with_rescoring(path)
            self.two_phase_window(parameters, path)
            if self.rescore_list():
                message = "the processor adds a second rescoring: the remaining tokens are counted on top of the body's"
                self.report("two-phase-with-rescore", "bends", ("rescore",), message, "keep one of the two")
            if any(self.pruned_to_nothing(tokens, parameters) for tokens in split):
                self.report(
                    "two-phase-empty",
                    "bends",
                    (*path, "two_phase_parameter"),
                    "phase one keeps no token of this query, and so finds nothing",
                    "prune by max_ratio or top_k, which always keep the heaviest token",
                )

    def split(self, clause: Any) -> Iterator[Body]:
        """Tokens of each neural_sparse that the processor splits."""
        clause = _object(clause)
        for options in _object(clause.get("neural_sparse")).values():
            yield _object(_object(options).get("query_tokens"))
        for query in _listed(_object(clause.get("bool")).get("should")):
            yield from self.split(query)

    def two_phase_parameters(self, parameters: Body, path: Path) -> bool:
        kind = str(parameters.get("prune_type", "max_ratio"))
        ratio = _number(parameters.get("prune_ratio", 0.4))
        ranges = {
            "max_ratio": (0, 1, "from 0, below 1"),
            "alpha_mass": (0, 1, "from 0, below 1"),
            "abs_value": (0, math.inf, "0 or more"),
            "top_k": (1, math.inf, "a whole number from 1"),
        }
        wrong: list[tuple[str, str]] = []
        if kind in ranges:
            low, high, said = ranges[kind]
            if ratio is None or not low <= ratio < high or (kind == "top_k" and ratio != int(ratio)):
                wrong.append(("prune_ratio", f"must be {said} for {kind}"))
        elif kind != "none":
            wrong.append(("prune_type", f"must be one of {', '.join(ranges)} and none"))
        if (_or(_number(parameters.get("expansion_rate")), 5.0)) < 1:
            wrong.append(("expansion_rate", "must be 1 or more"))
        if (_or(_number(parameters.get("max_window_size")), 10_000)) < 50:
            wrong.append(("max_window_size", "must be 50 or more"))
        for name, message in wrong:
            value = parameters.get(name)
            self.report("two-phase-parameter", "rejected", (*path, name), f"{value!r} {message}", "mend the pipeline")
        return not wrong

    def two_phase_window(self, parameters: Body, path: Path) -> None:
        window = _whole(self.size * _or(_number(parameters.get("expansion_rate")), 5.0))
        most = min(_or(_number(parameters.get("max_window_size")), 10_000), self.index.max_rescore_window)
        if window > most:
            self.report(
                "two-phase-window",
                "rejected",
                path,
                f"size × expansion_rate is {window:,.0f}, and the most that may be rescored {most:,.0f}",
                "ask for a smaller page, or lower expansion_rate",
            )
        elif self.size and window < self.page_end:
            self.report(
                "two-phase-window",
                "bends",
                ("from",),
                f"the processor rescores size × expansion_rate = {window:.0f} hits a shard whatever `from` is, and the page "
                f"ends at {self.page_end:.0f}",
                "raise expansion_rate to (from + size) / size, or use queries.high_idf_first, whose window follows",
            )

    def pruned_to_nothing(self, tokens: Body, parameters: Body) -> bool:
        weights = sorted((_or(_number(weight), 0) for weight in tokens.values()), reverse=True)
        ratio = _or(_number(parameters.get("prune_ratio")), 0.4)
        if not weights:
            return False
        if parameters.get("prune_type") == "abs_value":
            return weights[0] < ratio
        return parameters.get("prune_type") == "alpha_mass" and weights[0] > ratio * sum(weights)

    # --------------------------------------------------------------------------------------------------------- hybrid

    def hybrid(self, inner: Body, path: Path) -> None:
        if self.capabilities and self.capabilities.hybrid is False:
            self.lacking(path, "hybrid", "search with each query and fuse the hits in the application")
        if path != ("query", "hybrid"):
            self.nested_hybrid(path)
        queries = inner.get("queries")
        if not isinstance(queries, list) or not 1 <= len(queries) <= MOST_HYBRID_QUERIES:
            message = f"hybrid takes one to {MOST_HYBRID_QUERIES} queries"
            self.report("hybrid-queries", "rejected", (*path, "queries"), message, "join some of them by bool.should")
        if "boost" in inner:
            message = "hybrid takes no boost"
            self.report("hybrid-option", "rejected", (*path, "boost"), message, "weigh its parts in the processor")
        if "filter" in inner:
            if outcome := self.from_release(3, 0):
                message = "hybrid takes a filter from OpenSearch 3.0 on"
                self.report(
                    "hybrid-option", outcome, (*path, "filter"), message, "give the filter to each of its parts"
                )
            else:
                self.visit(inner["filter"], (*path, "filter"))

    def nested_hybrid(self, path: Path) -> None:
        """A hybrid below another query: OpenSearch refuses some of these, and adds up raw scores in others."""
        if path[0] not in ("query", "rescore"):
            return  # where only matching counts, a hybrid is as good as a bool
        around: list[tuple[str, str]] = []
        alone, node = True, self.body
        for place, step in enumerate(path[:-1]):
            node = node[step]  # type: ignore[index]
            if step in clauses.HOLDERS and isinstance(node, dict):
                around.append((str(step), str(path[place + 1])))
                alone &= sum(len(_listed(node.get(each))) for each in clauses.HOLDERS[str(step)]) == 1
        outcome: Outcome = "bends"
        if path[0] == "query" and {kind for kind, _ in around} <= {"bool", "dis_max"}:
            members = {member for _, member in around}
            if alone and not members & {"filter", "must_not"}:
                return  # OpenSearch takes such a wrapping off
            outcome = "bends" if alone and "must_not" not in members else "rejected"
            kinds = {kind for kind, _ in around}
            if outcome == "rejected" and "dis_max" in kinds and (len(kinds) > 1 or self.has_nested is not False):
                outcome = "doubtful"  # OpenSearch looks for a hybrid below bools alone, or below dis_max alone
        self.report(
            "hybrid-nested",
            outcome,
            path,
            "hybrid stands below another query: its parts are not normalized there",
            "make it the top-level query, and give filters to each of its parts",
        )

    def hybrid_request(self) -> None:
        """What a request with hybrid at its top may hold beside it."""
        hybrid = _object(self.body["query"]["hybrid"])
        known, _, _ = self.pipeline
        fusing = [name for name, _, _ in self.processors("phase_results_processors") if name in (NORMALIZATION, RANKER)]
        if known and not fusing:
            self.report(
                "hybrid-without-pipeline",
                "bends",
                ("query", "hybrid"),
                "no processor fuses the parts: hits come several times, with markers of -9549511920 among their scores",
                "name a search pipeline with a normalization-processor or a score-ranker-processor; queries.hybrid writes "
                "one into the body",
            )
        self.pagination(hybrid)
        self.beside_hybrid()

    def pagination(self, hybrid: Body) -> None:
        path: Path = ("query", "hybrid", "pagination_depth")
        given = hybrid.get("pagination_depth")
        deep = _or(_number(self.body.get("from")), 0) > 0
        if deep and given is not None:
            message = "where fewer hits than `from` are fused the answer is an error, not an empty page"
            self.report("hybrid-pagination", "doubtful", ("from",), message, "take that error for the end of the hits")
        if given is None:
            if deep:
                message = "`from` needs pagination_depth in hybrid"
                remedy = f'"pagination_depth": {max(100, self.page_end):.0f}'
                self.report("hybrid-pagination", "rejected", ("from",), message, remedy)
            return
        if outcome := self.from_release(2, 19):
            message = "pagination_depth came with OpenSearch 2.19"
            self.report("hybrid-pagination", outcome, path, message, "queries.hybrid(…, depth=None), without `from`")
        depth, most = _number(given), self.index.max_result_window
        if depth is None or not 1 <= depth <= most:
            message = f"{given!r} is no number from 1 to index.max_result_window, {most:,}"
            self.report("hybrid-pagination", "rejected", path, message, "fuse some hundreds of hits of each part")
        elif depth < self.page_end:
            message = f"{given} hits of each part are fused in each shard, and the page ends at {self.page_end:.0f}"
            self.report("hybrid-pagination", "bends", path, message, "give a depth of at least from + size")

    def beside_hybrid(self) -> None:
        sort = self.body.get("sort")
        fields = [_sort_field(each) for each in _listed(sort)]
        if "_score" in fields and len(fields) > 1:
            message = "hybrid is sorted by the score or by fields, not by both"
            self.report("hybrid-with", "rejected", ("sort",), message, "sort by one of them")
        if self.body.get("profile"):
            old = (0, 0) < self.release < (3, 0)
            message = "OpenSearch 2 cannot profile hybrid"
            self.report("hybrid-with", "rejected" if old else "doubtful", ("profile",), message, "profile each part")
        if self.size == 0 and "pagination_depth" in _object(self.body["query"]["hybrid"]):
            message = "an index of one shard fails at it from the second time on, when it answers from its cache"
            self.report("hybrid-with", "doubtful", ("size",), message, "ask for one hit, or ?request_cache=false")
        late = {
            "collapse": ((3, 1), "is ignored before OpenSearch 3.1: several hits of one group come back"),
            "min_score": ((3, 5), "is compared with the parts' scores before OpenSearch 3.5, not with the fused ones"),
        }
        for name, (release, message) in late.items():
            outcome = self.from_release(*release) if name in self.body else None
            if outcome:
                outcome = "bends" if outcome == "rejected" else outcome
                self.report("hybrid-with", outcome, (name,), f"{name} {message}", "do it in the application")

    def fusion(self) -> None:
        """The processors that fuse: their parameters, and whether there is anything to fuse."""
        hybrid = _object(self.body.get("query")).get("hybrid")
        parts = _object(hybrid).get("queries")
        for name, config, path in self.processors("phase_results_processors"):
            if name not in (NORMALIZATION, RANKER):
                continue
            config = _object(config)
            if hybrid is None and not _holds_hybrid(self.body.get("query")):
                message = "it fuses the parts of a hybrid query, and does nothing to this one"
                self.report("fusion-without-hybrid", "bends", path, message, "drop the pipeline, or query with hybrid")
            combination = _object(config.get("combination"))
            parameters = _object(combination.get("parameters"))
            below = (*path, "combination")
            if name == RANKER:
                self.ranker(combination, parameters, below)
            else:
                self.techniques(config, combination, path)
            if "weights" in combination:
                message = "weights beside `technique` are ignored"
                self.report("fusion-weights", "bends", (*below, "weights"), message, "write them into `parameters`")
            if "weights" in parameters:
                where = (*below, "parameters", "weights")
                self.weights(parameters["weights"], len(parts) if isinstance(parts, list) else None, where)

    def ranker(self, combination: Body, parameters: Body, path: Path) -> None:
        if self.capabilities and self.capabilities.rrf is False:
            self.lacking(path, RANKER, "queries.hybrid(…, method='min_max')")
        if "weights" in parameters and (refused := self.from_release(3, 1)):
            message = "rank fusion takes weights from OpenSearch 3.1 on"
            remedy = "leave them out, or fuse by a normalization-processor"
            self.report("fusion-weights", refused, (*path, "parameters", "weights"), message, remedy)
        inside = "rank_constant" in parameters
        if not inside and "rank_constant" not in combination:
            return
        holder, where = (parameters, (*path, "parameters")) if inside else (combination, path)
        where = (*where, "rank_constant")
        # 2.19 reads combination.parameters.rank_constant, 3.0 and later combination.rank_constant.
        older = self.release < (3, 0)
        constant = holder["rank_constant"]
        outcome: Outcome
        if inside and not older:
            message = "combination.parameters takes no rank_constant from OpenSearch 3 on"
            outcome = "rejected" if self.release >= (3, 1) else "doubtful"
            self.report("rank-constant", outcome, where, message, "write combination.rank_constant")
        elif not inside and older and constant != 60:
            outcome = "bends" if self.release != (0, 0) else "doubtful"
            message = f"rank_constant {constant!r} is ignored here by OpenSearch 2.19, which fuses with 60"
            self.report("rank-constant", outcome, where, message, "write combination.parameters.rank_constant")
        elif not isinstance(constant, int) or not 1 <= constant <= 10_000:
            message = f"{constant!r} is no whole number from 1 to 10,000"
            self.report("rank-constant", "rejected", where, message, "60 is usual")

    def techniques(self, config: Body, combination: Body, path: Path) -> None:
        technique = _object(config.get("normalization")).get("technique", "min_max")
        where = (*path, "normalization", "technique")
        if technique == "z_score":
            if outcome := self.from_release(3, 0):
                message = "z_score came with OpenSearch 3.0"
                self.report("fusion-technique", outcome, where, message, "min_max, or l2")
        elif technique not in ("min_max", "l2"):
            message = f"{technique!r} is no normalization that OpenSearch knows"
            self.report("fusion-technique", "rejected", where, message, "min_max, l2, or z_score from 3.0 on")
        if (technique := combination.get("technique", "arithmetic_mean")) == "rrf":
            message = "rrf in a normalization-processor adds up normalized scores and looks at no rank"
            remedy = "use a score-ranker-processor: queries.hybrid(…, method='rrf')"
            self.report("fusion-technique", "bends", (*path, "combination", "technique"), message, remedy)

    def weights(self, weights: Any, parts: int | None, path: Path) -> None:
        listed = _listed(weights)
        remedy = "one decimal for each query, from 0.0 to 1.0, that sum to 1.0"
        if not all(isinstance(weight, float) for weight in listed):
            # A whole number is a Java Integer there, which the processor casts to Double: an internal error.
            message = f"{weights!r} holds something else than decimals (1.0, not 1)"
        elif any(not 0 <= weight <= 1 for weight in listed):
            message = f"{weights!r} holds a weight outside 0.0 to 1.0"
        elif not abs(sum(listed) - 1) <= 0.01 + 1e-6:
            message = f"{weights!r} sums to {sum(listed):g}, not to 1"
        elif parts is not None and len(listed) != parts:
            message = f"{len(listed)} weights for {parts} queries"
        else:
            return
        self.report("fusion-weights", "rejected", path, message, remedy)

    # ----------------------------------------------------------------------------------------------------- in common

    def lacking(self, path: Path, what: str, remedy: str) -> None:
        self.report("plugin", "rejected", path, f"this cluster cannot do {what}", remedy)

    def no_such_field(self, path: Path, name: str, wanted: str, outcome: Outcome, type_: str | None) -> None:
        is_ = f"is of type {type_}" if type_ else "does not exist in this index"
        remedy = f"name a field of type {wanted}: GET INDEX/_mapping lists them"
        self.report("field", outcome, path, f"the field {name!r} {is_}, and the query needs {wanted}", remedy)


def _holds_hybrid(clause: Any) -> bool:
    if not isinstance(clause, dict):
        return False
    return "hybrid" in clause or any(_holds_hybrid(held) for _, held in clauses.children(clause))


def _neighbours_only(clause: Any) -> bool:
    """Whether every hit is one of the neighbours that are asked for: of knn, of several vectors a document, or fields."""
    clause = _object(clause)
    if "nested" in clause:
        return "knn" in _object(_object(clause["nested"]).get("query"))
    parts = [_object(part) for part in _listed(_object(clause.get("dis_max")).get("queries"))]
    return "knn" in clause or (bool(parts) and all("knn" in part for part in parts))


def _fields_of(kind: str, inner: Body) -> list[tuple[str, Path]]:
    """(name, where) of the fields that a query names, of kinds that are asked of one."""
    if kind in ("exists", "rank_feature"):
        return [(inner["field"], ("field",))] if isinstance(inner.get("field"), str) else []
    if kind in ONE_FIELD or kind == "terms":
        return [(name, (name,)) for name in inner if isinstance(name, str) and name not in ("boost", "_name")]
    return []


def _written(path: Path) -> str:
    """("a", 2, "b c") as a[2]["b c"]."""
    text = ""
    for step in path:
        if isinstance(step, int):
            text += f"[{step}]"
        elif step.replace("_", "").replace("-", "").isalnum() and step.isascii():
            text += f".{step}" if text else step
        else:
            text += f"[{step!r}]"
    return text


def _object(value: Any) -> Body:
    return value if isinstance(value, dict) else {}


def _listed(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [] if value is None else [value]


def _or(value: float | None, default: float) -> float:
    return default if value is None else value


def _number(value: Any) -> float | None:
    """A number as OpenSearch reads one, from a string too; None for anything else, NaN among it."""
    if isinstance(value, bool) or not isinstance(value, (int, float, str)):
        return None
    try:
        number = float(value)
    except (ValueError, OverflowError):
        return None
    return None if math.isnan(number) else number


def _whole(number: float) -> float:
    """Without its fraction, as OpenSearch reads 1.5 where it wants a whole number."""
    return math.trunc(number) if math.isfinite(number) else number


def _float32(value: Any) -> float | None:
    """The number as Lucene keeps it; infinite where float32 ends."""
    number = _number(value)
    if number is None:
        return None
    try:
        return struct.unpack("f", struct.pack("f", number))[0]
    except OverflowError:
        return math.copysign(math.inf, number)


def _sign(value: Any) -> float:
    number = _number(value)
    return 1.0 if number is None or number >= 0 else -1.0


def _sort_field(entry: Any) -> str:
    if isinstance(entry, dict):
        return str(next(iter(entry), ""))
    return str(entry)


def _sorts_by_score(sort: Any) -> bool:
    """Whether hits come by descending score and nothing else, which to OpenSearch is no sort at all."""
    entries = _listed(sort)
    if not entries:
        return True
    if len(entries) > 1 or _sort_field(entries[0]) != "_score":
        return False
    how = entries[0]["_score"] if isinstance(entries[0], dict) else "desc"
    order = how.get("order", "desc") if isinstance(how, dict) else how
    return order == "desc"
