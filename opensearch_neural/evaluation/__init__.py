"""Quality and latency: measured, compared, and written as result files.

measures.py           nDCG, recall and the like of a run, by ir-measures
significance.py       confidence intervals and paired comparisons of two engines
query_segments.py     parts of the queries measured apart: head, torso, tail
overlap.py            how much of the exact result an approximate search finds
engine_comparison.py  engines of one index measured side by side
unanswered.py         the queries that an engine cannot answer, in words
engine_report.py      the output of `osn eval`
expectations.py       the goals of `osn eval --expect`
run_files.py          TREC run files
results.py            result files: rows, goals, and how they were made
result_rows.py        measured values as rows of a result file
tables.py             rows as Markdown tables
model_card.py         rows as the table of a model's card
provenance.py         the command, code and machine behind a result, without secrets
"""
