"""The compare page: the results of one query by several engines, beside each other in a browser.

osn ui docs                                            # opens on http://127.0.0.1:8484/

from opensearch_neural.ui.application import application
from opensearch_neural.ui.columns import Searcher
app.mount("/compare", application(Searcher(client, ("docs",))))  # any ASGI service

application.py   routes, and their protection
state.py         the state of the page, all of it in its address
columns.py       a column: an engine with its settings, or an index with a body of the user's own
comparison.py    several columns: shifts of rank, documents in common, times
walk.py          a file of queries, sorted by how much the columns disagree
grades.py        grades that people give, one per line in a file
absence.py       why a document is not on a page
pages.py         the page's HTML, from templates; also as one file
report.py        the report of `osn eval --report`
tune_report.py   the report of `osn tune --report`
report_parts.py  the parts of reports: verdict, forest plot, scatter plot, table
"""
