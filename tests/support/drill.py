"""The thirty things that docs/ingest.md counts: which tests stand for each, and a line on each after `make test-faults`.

A test stands for an item by its name (`test_07_…`) or by being named here.
"""

from __future__ import annotations

import re
from collections import Counter
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pytest

ITEMS: dict[int, tuple[str, tuple[str, ...]]] = {
    1: ("a gate before every swap", ()),
    2: (
        "loss of unknown extent ends the run",
        (
            "test_a_stream_that_breaks_off_ends_the_reading",
            "test_of_a_file_cut_anywhere_no_document",
            "test_a_part_of_a_file_that_was_never_written",
        ),
    ),
    3: ("what was removed is gone", ()),
    4: ("a rollback looks at its target alone", ()),
    5: ("a prune during a build", ()),
    6: ("two writers", ()),
    7: ("an index deleted under way", ()),
    8: ("a merge that takes hours", ()),
    9: ("documents that no attempt takes", ()),
    10: ("documents held over a swap", ()),
    11: ("memory", ("test_of_large_records_few_are_held_in_memory",)),
    12: ("patience", ("test_interrupted_while_the_cluster_does_not_answer",)),
    13: ("a lost answer, a kill at the swap", ()),
    14: ("dead letters, settings, unfinished indexes", ()),
    15: ("no refresh for each batch", ()),
    16: ("types and fields", ("tests/ingest/test_preflight.py", "test_numbers_are_doubles_and_iso_dates_are_dates")),
    17: (
        "long texts, shards that fail, time-outs",
        (
            "test_a_text_longer_than_is_highlighted_fails_no_shard",
            "test_hits_that_are_missing_with_a_shard_are_told_of",
            "test_a_search_that_times_out_is_told_of",
        ),
    ),
    18: ("tsv", ("test_a_quotation_mark_in_a_tsv_is_a_letter", "test_a_tab_in_the_text_of_two_columns")),
    19: ("ids and texts of MS MARCO v2", ("tests/corpus/test_first_records.py",)),
    20: ("words that the vocabulary lacks", ("test_documents_without_a_word_of_the_vocabulary_are_counted",)),
    21: (
        "labels decide",
        ("test_labels_decide_which_documents_are_relevant", "test_a_label_that_is_no_integer_is_refused"),
    ),
    22: (
        "queries that are documents themselves",
        (
            "test_a_query_that_is_a_document_itself_is_left_out",
            "test_a_query_that_is_a_document_in_passages_is_left_out",
            "test_a_query_that_is_a_document_is_no_negative_of_itself",
        ),
    ),
    23: (
        "judgements as trec_eval reads them",
        (
            "test_qrels_are_read_as_trec_eval_reads_them",
            "test_judged_queries_without_a_text_are_left_out",
            "test_an_id_with_a_blank_does_not_lose_the_evaluation",
        ),
    ),
    24: ("do_lower_case", ("test_a_tokenizers_configuration_counts_as_in_transformers",)),
    25: (
        "narrow roles",
        ("test_every_request_is_one_of_the_documented", "test_an_error_status_is_told_with_the"),
    ),
    26: (
        "too many fields, a column without a name",
        ("test_a_limit_on_fields", "test_a_column_without_a_name_is_refused"),
    ),
    27: ("a query that is not UTF-8", ("test_a_query_that_is_not_utf_8_is_named", "test_an_argument_of_any_command")),
    28: (
        "clusters that balance their zones",
        ("test_an_index_has_a_copy_in_each_zone", "test_a_load_that_goes_on_with"),
    ),
    29: (
        "security",
        (
            "test_an_index_cannot_make_a_search",
            "test_no_path_is_made_of_an_index_name",
            "test_a_client_certificate",
            "test_a_user_or_password_that_is_not_utf_8",
            "test_maven_gets_no_credential",
            "test_a_value_that_cannot_be_used_is_named",
        ),
    ),
    30: ("an install of next month", ("tests/test_requirements.py",)),
}


def item_of(nodeid: str) -> int | None:
    """The item that a test stands for."""
    if named := re.search(r"::test_(\d\d)_", nodeid):
        return int(named[1])
    for number, (_, tests) in ITEMS.items():
        if any(f"::{each}" in nodeid or nodeid.startswith(each) for each in tests):
            return number
    return None


def lines(reports: list[pytest.TestReport]) -> list[str]:
    """A line an item of the tests that ran, and how many shapes of public files were read."""
    outcomes: dict[int, Counter[str]] = {}
    shapes = set()
    for report in reports:
        number = item_of(report.nodeid)
        if number is not None and (report.when == "call" or report.failed):
            outcomes.setdefault(number, Counter())[report.outcome] += 1
        shapes |= {value for name, value in report.user_properties if name == "public_shape" and report.passed}
    told = []
    for number, (title, _) in ITEMS.items():
        if number in outcomes:
            counts = ", ".join(f"{count} {outcome}" for outcome, count in sorted(outcomes[number].items()))
            told.append(f"{number:>3}  {title:<45} {counts}")
    if told:
        told.append(f"{len(outcomes)} of {len(ITEMS)} items; {len(shapes)} shapes of public files read")
    return told
