"""The command-line side of `ingest`: one file a command, and `run_and_report`."""
