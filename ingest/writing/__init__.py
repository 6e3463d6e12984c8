"""From batches of documents to what OpenSearch has acknowledged: nothing lost, nothing twice."""
