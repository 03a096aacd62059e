"""The console process: the HTTP API. It talks to name servers and brokers only over the network, as any client does."""
