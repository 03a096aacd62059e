"""`latermq pipeline`: the Spark driver and bulk commands."""
