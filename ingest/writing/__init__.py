"""Writes batches of documents until OpenSearch has acknowledged each: none is lost, none is in the index twice."""
