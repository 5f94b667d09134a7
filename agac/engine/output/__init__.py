"""What a run leaves for others: files, tables, telemetry and traces."""
