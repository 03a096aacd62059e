"""`make demo`: the story of unpaid orders and a campaign, with real processes that are killed, and checked figures."""
