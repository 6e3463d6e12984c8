"""Vectors in files: encoded once, ingested any number of times without a model."""
