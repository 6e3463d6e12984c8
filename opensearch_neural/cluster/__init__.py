"""An OpenSearch cluster as a client sees it.

addresses.py       URLs of nodes
credentials.py     where a user, password or token comes from: environment, netrc file, prompt
settings.py        `ConnectionSettings`: how to reach a cluster
authentication.py  what a client sends (headers, AWS signatures) and which certificates it trusts
connect.py         `connect` and `connect_async`
patience.py        how long a request is tried again
zones.py           replicas on clusters that balance their zones
watermarks.py      how full a disk may be before OpenSearch stops writing
errors.py          what an error of opensearch-py means and what to do about it
network_errors.py  the same if no answer came; the request that failed, without its secrets
error_reasons.py   the reasons in an error of OpenSearch, on one line
capabilities.py    what a cluster can do, as its version and plugins say
probe.py           the same, tried on an index of a few documents
"""
