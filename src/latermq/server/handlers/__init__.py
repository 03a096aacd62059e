"""One handler per request of the remoting protocol, grouped by subject."""
