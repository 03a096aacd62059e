"""Reports: forecast, lateness and reconciliation."""
