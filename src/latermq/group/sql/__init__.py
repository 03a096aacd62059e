"""SQL92 filters: tokens, parser and evaluation over message properties."""
