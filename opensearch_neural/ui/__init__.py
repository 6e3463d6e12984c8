"""The compare page: one query through several engines, beside each other in a browser.

osn ui docs                                             # opens on http://127.0.0.1:8484/

from opensearch_neural.ui.application import application
from opensearch_neural.ui.columns import Searcher
app.mount("/compare", application(Searcher(client, ("docs",))))  # any ASGI service

state          what the page shows, all of it in its address
columns        one column: an engine with its settings, or an index with a body of the user's own
comparison     several columns: shifts of rank, documents in common, times
pages          the page's text, from templates; also as one file
application    routes, and what keeps them safe
"""
