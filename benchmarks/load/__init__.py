"""The load benchmark: latency, throughput and quality of the engines of one index, against BM25, on any cluster.

    osn bench load --index docs --data scifact --clients 5,20,80          N clients, each asking again once answered
    osn bench load --index docs --queries queries.jsonl --rates 100,200   requests at random moments, at a given rate
    osn bench compare before/load.json after/load.json                    change, or noise?

One file per concern:

    target variants workload        where requests go; which engines, with which options; what a worker process needs
    connection arrivals generator   the load itself: keep-alive HTTP, Poisson arrivals, closed and open loop processes
    ceiling strain warmup           what the generator itself can do, and what is refused; until when nothing counts yet
    blocks journal                  engines in random turns within one run; every finished block is on disk
    histogram statistics            HDR histograms; percentiles that may be shown; bootstrap intervals of ratios
    server postings quality         CPU time, index facts; work a query begins with; nDCG, recall, overlap with the exact
    measurement slo                 a whole run; the highest rate that keeps P99 below a limit
    cells report html compare       numbers with intervals; tables, JSON, CSV, a page with plots; two runs compared
    osb osb_check                   the same workload for OpenSearch Benchmark, and whether both measure the same
    growth field_bytes scale        more documents of the same kind; what fields cost on disk; cost by number of documents
    ablation                        each idea for a faster search on its own: of the request, the documents, the index
    two_phase_quality               what high-IDF-first loses against all tokens, on judged sets
    tuning                          `osn tune`: the fastest setting of high-IDF-first that keeps a share of quality
    command                         the command line
"""
