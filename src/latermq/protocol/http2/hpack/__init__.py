"""HPACK (RFC 7541): header compression for the receiving side, and an encoder that needs no state."""
