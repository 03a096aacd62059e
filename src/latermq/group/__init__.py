"""Consumer groups: subscriptions, filters, offsets, members and queue locks."""
