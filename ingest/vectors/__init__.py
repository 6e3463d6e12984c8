"""Vectors in files: encoded once, ingested as often as wanted without a model."""
