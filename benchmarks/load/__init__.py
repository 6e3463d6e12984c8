"""The load benchmark: latency, throughput and quality of the engines of one index, against BM25, on any cluster.

osn bench load --index docs --data scifact --clients 5,20,80          N clients, each asks again after its answer
osn bench load --index docs --queries queries.jsonl --rates 100,200   requests at random moments, at a given rate

command.py      the command line
run.py          a whole run, from ceilings and the warm-up to the last block
variants.py     which engines, with which options
workload.py     queries, engines and nodes, as data for the worker processes
connection.py   HTTP with keep-alive
generator.py    the worker processes, closed and open loop
ceiling.py      how many requests the generator itself can make
blocks.py       engines in random turns within one run; every finished block is written to disk
measurement.py  the settings of a run, and everything it measured
histogram.py    latencies as HDR histograms
statistics.py   percentiles that may be shown; bootstrap intervals of numbers and ratios
server.py       CPU time and garbage collection of the cluster, facts of the index
quality.py      nDCG, recall, overlap with the exact result, postings of the queries
result.py       the run as rows, CSV and text, and its files
report_page.py  the run as an HTML page
osb.py          the same workload for OpenSearch Benchmark
"""
