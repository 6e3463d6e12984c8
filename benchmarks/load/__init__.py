"""The load benchmark: latency, throughput and quality of the engines of one index, against BM25, on any cluster.

    osn bench load --index docs --data scifact --clients 5,20,80          N clients, each asking again once answered
    osn bench load --index docs --queries queries.jsonl --rates 100,200   requests at random moments, at a given rate

variants workload        which engines, with which options; what is asked of whom and when, as a worker process needs it
connection generator     the load itself: keep-alive HTTP, closed and open loop processes
ceiling phases           what the generator itself can do, and what is refused; the warm-up
blocks                   engines in random turns within one run; every finished block is on disk
measurement run          what is asked and all that was found out; a whole run
histogram statistics     HDR histograms; percentiles that may be shown; bootstrap intervals of numbers and ratios
server quality           CPU time, index facts; nDCG, recall, overlap with the exact result, postings of the queries
result report plots      the run as data; as text and as a page; its plots
osb                      the same workload for OpenSearch Benchmark
command                  the command line
"""
