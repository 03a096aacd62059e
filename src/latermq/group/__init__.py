"""Consumer groups: what they subscribe to, how far they have read, and what was given to whom."""
