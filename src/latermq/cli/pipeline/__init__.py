"""`latermq pipeline`: the driver and its bulk commands."""
