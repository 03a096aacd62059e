"""The gRPC proxy: serves clients of the 5.x protocol, and speaks remoting to name servers and brokers."""
