"""SQL92 filters: tokens, parser and evaluation over batches of properties."""
