"""The compare page: one query through several engines, beside each other in a browser.

osn ui docs                                            # opens on http://127.0.0.1:8484/

from opensearch_neural.ui.application import application
from opensearch_neural.ui.columns import Searcher
app.mount("/compare", application(Searcher(client, ("docs",))))  # any ASGI service

application.py   routes, and what keeps them safe
state.py         what the page shows, all of it in its address
columns.py       a column: an engine with its settings, or an index with a body of the user's own
comparison.py    several columns: shifts of rank, documents in common, times
walk.py          a file of queries, those first on which the columns disagree most
grades.py        grades that people give, a line each in a file
absence.py       why a document is not on a page
pages.py         the page's text, from templates; also as one file
report.py        what `osn eval --report` writes
tune_report.py   what `osn tune --report` writes
report_parts.py  the parts of reports: verdict, forest plot, scatter plot, table
"""
