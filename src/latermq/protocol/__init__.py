"""Wire protocols: encoding and decoding of requests and responses, without I/O."""
