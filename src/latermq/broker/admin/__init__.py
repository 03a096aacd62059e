"""Topics, groups, messages and the broker itself, as operators see them."""
