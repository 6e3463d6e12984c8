"""The command-line side of `ingest`: one file a command."""
