"""An OpenSearch cluster as a client sees it.

addresses.py       URLs of nodes
credentials.py     where a user, password or token comes from: environment, netrc file, prompt
settings.py        `ConnectionSettings`: all that says how to reach a cluster
authentication.py  what a client sends (headers, AWS signatures) and which certificates it trusts
connect.py         `connect` and `connect_async`
patience.py        how long a request is tried again
zones.py           replicas on clusters that balance their zones
watermarks.py      from when on a disk counts as full
options.py         the options of a command that connects
errors.py          what an error of opensearch-py means and what to do about it
network_errors.py  the same if no answer came
attempt.py         the request that failed, as far as it may be shown
capabilities.py    what a cluster can do
"""
